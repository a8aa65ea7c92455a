package queue_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
)

func TestBadInputIsNamed(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) { badInput(t, queuetest.Start(t, kind, queue.Config{})) })
}

func badInput(t *testing.T, r *queuetest.Rig) {
	r.Configure(t)
	items := func(keys ...string) (out []*queuev1.AddItem) {
		for _, k := range keys {
			out = append(out, &queuev1.AddItem{Key: k})
		}
		return out
	}
	add := func(req *queuev1.AddRequest) func(context.Context) error {
		if req.Queue == "" {
			req.Queue = queuetest.Q
		}
		return func(ctx context.Context) error { _, err := r.Add(ctx, req); return err }
	}
	after := func(d *durationpb.Duration) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := r.AddAfter(ctx, &queuev1.AddAfterRequest{Queue: queuetest.Q, Items: items("k"), Delay: d})
			return err
		}
	}
	get := func(req *queuev1.GetRequest) func(context.Context) error {
		if req.Queue == "" {
			req.Queue = queuetest.Q
		}
		return func(ctx context.Context) error { _, err := r.Get(ctx, req); return err }
	}
	settle := func(s *queuev1.Settlement) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := r.Settle(ctx, &queuev1.SettleRequest{SessionId: "w", Settlements: []*queuev1.Settlement{s}})
			return err
		}
	}
	config := func(c *queuev1.QueueConfig) func(context.Context) error {
		if c.Name == "" {
			c.Name = "dev/new"
		}
		return func(ctx context.Context) error {
			_, err := r.ConfigureQueue(ctx, &queuev1.ConfigureQueueRequest{Config: c})
			return err
		}
	}
	limiter := func(l *queuev1.RateLimiter) func(context.Context) error {
		return config(&queuev1.QueueConfig{RateLimiter: l})
	}
	barrier := func(collection, rv string) []*deltav1.CollectionRevision {
		return []*deltav1.CollectionRevision{{Collection: collection, Revision: &deltav1.Revision{ResourceVersion: rv}}}
	}
	deep := &queuev1.RateLimiter{Kind: &queuev1.RateLimiter_Exponential{Exponential: &queuev1.ExponentialLimiter{}}}
	for range 6 {
		deep = &queuev1.RateLimiter{Kind: &queuev1.RateLimiter_MaxWait{MaxWait: &queuev1.MaxWaitLimiter{Limiter: deep}}}
	}
	keys := func(call func(ctx context.Context, keys []string) error, keys ...string) func(context.Context) error {
		return func(ctx context.Context) error { return call(ctx, keys) }
	}
	retry := func(ctx context.Context, keys []string) error {
		_, err := r.RetryNow(ctx, &queuev1.RetryNowRequest{Queue: queuetest.Q, Keys: keys})
		return err
	}
	release := func(ctx context.Context, keys []string) error {
		_, err := r.ReleaseItems(ctx, &queuev1.ReleaseItemsRequest{Queue: queuetest.Q, Keys: keys})
		return err
	}
	remove := func(ctx context.Context, keys []string) error {
		_, err := r.DeleteItems(ctx, &queuev1.DeleteItemsRequest{Queue: queuetest.Q, Keys: keys})
		return err
	}

	for name, tc := range map[string]struct {
		call func(context.Context) error
		code codes.Code
		want string // a field, or a reason in capitals
	}{
		"empty key":            {add(&queuev1.AddRequest{Items: items("ok", "")}), codes.InvalidArgument, "items[1].key"},
		"64 KB key":            {add(&queuev1.AddRequest{Items: items(strings.Repeat("k", 64<<10))}), codes.InvalidArgument, "items[0].key"},
		"no items":             {add(&queuev1.AddRequest{}), codes.InvalidArgument, "items"},
		"too many items":       {add(&queuev1.AddRequest{Items: items(queuetest.KeysN(1001)...)}), codes.InvalidArgument, "items"},
		"priority":             {add(&queuev1.AddRequest{Items: []*queuev1.AddItem{{Key: "k", Priority: 4}}}), codes.InvalidArgument, "items[0].priority"},
		"trace":                {add(&queuev1.AddRequest{Items: []*queuev1.AddItem{{Key: "k", Traceparent: "a b"}}}), codes.InvalidArgument, "items[0].traceparent"},
		"barrier collection":   {add(&queuev1.AddRequest{Items: []*queuev1.AddItem{{Key: "k", Barrier: barrier("pods", "1")}}}), codes.InvalidArgument, "items[0].barrier[0].collection"},
		"barrier rv":           {add(&queuev1.AddRequest{Items: []*queuev1.AddItem{{Key: "k", Barrier: barrier("dev/pods.v1", "x")}}}), codes.InvalidArgument, "items[0].barrier[0].revision.resource_version"},
		"unknown queue":        {add(&queuev1.AddRequest{Queue: "dev/none", Items: items("k")}), codes.NotFound, "QUEUE_NOT_FOUND"},
		"malformed queue":      {add(&queuev1.AddRequest{Queue: "a{b}", Items: items("k")}), codes.InvalidArgument, "queue"},
		"long session":         {add(&queuev1.AddRequest{SessionId: strings.Repeat("s", 300), Items: items("k")}), codes.InvalidArgument, "session_id"},
		"negative delay":       {after(queuetest.Seconds(-1)), codes.InvalidArgument, "delay"},
		"delay of 11 years":    {after(queuetest.Seconds(11 * 365 * 24 * 3600)), codes.InvalidArgument, "delay"},
		"delay not a duration": {after(&durationpb.Duration{Seconds: 1, Nanos: -1}), codes.InvalidArgument, "delay"},
		"delay policy": {func(ctx context.Context) error {
			_, err := r.AddAfter(ctx, &queuev1.AddAfterRequest{Queue: queuetest.Q, Items: items("k"), Policy: 9})
			return err
		}, codes.InvalidArgument, "policy"},
		"get without session": {get(&queuev1.GetRequest{}), codes.InvalidArgument, "session_id"},
		"get too many":        {get(&queuev1.GetRequest{SessionId: "w", MaxItems: 1001}), codes.InvalidArgument, "max_items"},
		"get negative":        {get(&queuev1.GetRequest{SessionId: "w", MaxItems: -1}), codes.InvalidArgument, "max_items"},
		"get waits too long":  {get(&queuev1.GetRequest{SessionId: "w", Wait: queuetest.Seconds(61)}), codes.InvalidArgument, "wait"},
		"lease too short":     {get(&queuev1.GetRequest{SessionId: "w", LeaseDuration: durationpb.New(time.Millisecond)}), codes.InvalidArgument, "lease_duration"},
		"get of unknown":      {get(&queuev1.GetRequest{Queue: "none", SessionId: "w"}), codes.NotFound, "QUEUE_NOT_FOUND"},
		"no outcome":          {settle(&queuev1.Settlement{Queue: queuetest.Q, Key: "k", Token: 1}), codes.InvalidArgument, "settlements[0].outcome"},
		"zero token":          {settle(&queuev1.Settlement{Queue: queuetest.Q, Key: "k", Outcome: queuetest.Done}), codes.InvalidArgument, "settlements[0].token"},
		"delay with done":     {settle(&queuev1.Settlement{Queue: queuetest.Q, Key: "k", Token: 1, Outcome: queuetest.Done, Delay: queuetest.Seconds(1)}), codes.InvalidArgument, "settlements[0].delay"},
		"long reason":         {settle(&queuev1.Settlement{Queue: queuetest.Q, Key: "k", Token: 1, Outcome: queuetest.Done, Reason: strings.Repeat("r", 1025)}), codes.InvalidArgument, "settlements[0].reason"},
		"settle in unknown":   {settle(&queuev1.Settlement{Queue: "none", Key: "k", Token: 1, Outcome: queuetest.Done}), codes.NotFound, "QUEUE_NOT_FOUND"},
		"oversize state": {func(ctx context.Context) error {
			_, err := r.SaveState(ctx, &queuev1.SaveStateRequest{Queue: queuetest.Q, Key: "k", Token: 1, State: make([]byte, 4097)})
			return err
		}, codes.InvalidArgument, "state"},
		"expect without owner": {func(ctx context.Context) error {
			_, err := r.Expect(ctx, &queuev1.ExpectRequest{Queue: queuetest.Q, Key: "k", Token: 1})
			return err
		}, codes.InvalidArgument, "owner_uid"},
		"expect a bad name": {func(ctx context.Context) error {
			_, err := r.Expect(ctx, &queuev1.ExpectRequest{Queue: queuetest.Q, Key: "k", Token: 1, OwnerUid: "u", Creations: []string{"a\nb"}})
			return err
		}, codes.InvalidArgument, "creations"},
		"forget nothing": {func(ctx context.Context) error {
			_, err := r.Forget(ctx, &queuev1.ForgetRequest{Queue: queuetest.Q})
			return err
		}, codes.InvalidArgument, "keys"},
		"list an unknown state": {func(ctx context.Context) error {
			_, err := r.ListItems(ctx, &queuev1.ListItemsRequest{Queue: queuetest.Q, State: queuev1.State_STATE_IDLE})
			return err
		}, codes.InvalidArgument, "state"},
		"page token": {func(ctx context.Context) error {
			_, err := r.ListItems(ctx, &queuev1.ListItemsRequest{Queue: queuetest.Q, PageToken: "%"})
			return err
		}, codes.InvalidArgument, "page_token"},
		"page size": {func(ctx context.Context) error {
			_, err := r.ListItems(ctx, &queuev1.ListItemsRequest{Queue: queuetest.Q, PageSize: -1})
			return err
		}, codes.InvalidArgument, "page_size"},
		"len of unknown": {func(ctx context.Context) error {
			_, err := r.Len(ctx, &queuev1.LenRequest{Queue: "none"})
			return err
		}, codes.NotFound, "QUEUE_NOT_FOUND"},
		"drain without session": {func(ctx context.Context) error {
			_, err := r.ShutDownWithDrain(ctx, &queuev1.ShutDownWithDrainRequest{})
			return err
		}, codes.InvalidArgument, "session_id"},
		"config name":        {config(&queuev1.QueueConfig{Name: "no spaces"}), codes.InvalidArgument, "config.name"},
		"config lease":       {config(&queuev1.QueueConfig{LeaseDuration: queuetest.Seconds(7200)}), codes.InvalidArgument, "config.lease_duration"},
		"config retention":   {config(&queuev1.QueueConfig{BarrierRetention: queuetest.Seconds(-1)}), codes.InvalidArgument, "config.barrier_retention"},
		"config retries":     {config(&queuev1.QueueConfig{MaxRetries: -5}), codes.InvalidArgument, "config.max_retries"},
		"65 partitions":      {config(&queuev1.QueueConfig{Partitions: 65}), codes.InvalidArgument, "config.partitions"},
		"-1 partitions":      {config(&queuev1.QueueConfig{Partitions: -1}), codes.InvalidArgument, "config.partitions"},
		"retry nothing":      {keys(retry), codes.InvalidArgument, "keys"},
		"retry an empty key": {keys(retry, "a", ""), codes.InvalidArgument, "keys[1]"},
		"release too many":   {keys(release, queuetest.KeysN(1001)...), codes.InvalidArgument, "keys"},
		"delete a 64 KB key": {keys(remove, strings.Repeat("k", 64<<10)), codes.InvalidArgument, "keys[0]"},
		"extend too many": {func(ctx context.Context) error {
			refs := make([]*queuev1.LeaseRef, 10_001)
			for i := range refs {
				refs[i] = &queuev1.LeaseRef{Queue: queuetest.Q, Key: "k", Token: 1}
			}
			_, err := r.Extend(ctx, &queuev1.ExtendRequest{SessionId: "w", Leases: refs})
			return err
		}, codes.InvalidArgument, "leases"},
		"settle too many": {func(ctx context.Context) error {
			all := make([]*queuev1.Settlement, 1001)
			for i := range all {
				all[i] = &queuev1.Settlement{Queue: queuetest.Q, Key: "k", Token: 1, Outcome: queuetest.Done}
			}
			_, err := r.Settle(ctx, &queuev1.SettleRequest{SessionId: "w", Settlements: all})
			return err
		}, codes.InvalidArgument, "settlements"},
		"expect too many": {func(ctx context.Context) error {
			_, err := r.Expect(ctx, &queuev1.ExpectRequest{Queue: queuetest.Q, Key: "k", Token: 1, OwnerUid: "u", Creations: queuetest.KeysN(1001)})
			return err
		}, codes.InvalidArgument, "creations"},
		"other partitions":   {config(&queuev1.QueueConfig{Name: queuetest.Q, Partitions: 4}), codes.FailedPrecondition, "PARTITIONS_FIXED"},
		"bucket without qps": {limiter(&queuev1.RateLimiter{Kind: &queuev1.RateLimiter_Bucket{Bucket: &queuev1.BucketLimiter{Burst: 1}}}), codes.InvalidArgument, "config.rate_limiter.bucket.qps"},
		"burst of zero":      {limiter(&queuev1.RateLimiter{Kind: &queuev1.RateLimiter_Bucket{Bucket: &queuev1.BucketLimiter{Qps: 1}}}), codes.InvalidArgument, "config.rate_limiter.bucket.burst"},
		"limiter of no kind": {limiter(&queuev1.RateLimiter{}), codes.InvalidArgument, "config.rate_limiter"},
		"limiter too deep":   {limiter(deep), codes.InvalidArgument, "config.rate_limiter.max_wait.limiter.max_wait.limiter.max_wait.limiter.max_wait.limiter"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := tc.call(t.Context())
			if rpc.Code(err) != tc.code {
				t.Fatalf("error %v, want %v", err, tc.code)
			}
			if strings.ToUpper(tc.want) == tc.want {
				if got := rpc.Reason(err); got != tc.want {
					t.Errorf("reason %q, want %q", got, tc.want)
				}
			} else if rpc.Violations(err)[tc.want] == "" {
				t.Errorf("violations %v, want one of %q", rpc.Violations(err), tc.want)
			}
		})
	}
}

func TestAnAddToAClosedQueueFails(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		r := queuetest.Start(t, kind, queue.Config{})
		r.Configure(t)
		ctx := t.Context()
		if _, err := r.CloseQueue(ctx, &queuev1.CloseQueueRequest{Queue: queuetest.Q}); err != nil {
			t.Fatal(err)
		}
		_, err := r.Add(ctx, &queuev1.AddRequest{Queue: queuetest.Q, Items: []*queuev1.AddItem{{Key: "k"}}})
		if rpc.Code(err) != codes.FailedPrecondition || rpc.Reason(err) != "QUEUE_CLOSED" {
			t.Errorf("Add = %v, want QUEUE_CLOSED", err)
		}
	})
}

// bytesCodec sends what it is given.
type bytesCodec struct{}

func (bytesCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (bytesCodec) Unmarshal(b []byte, v any) error { *v.(*[]byte) = b; return nil }

func (bytesCodec) Name() string { return "proto" }

func TestAKeyThatIsNoUTF8IsRefused(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		r := queuetest.Start(t, kind, queue.Config{})
		r.Configure(t)
		conn, err := rpc.Dial(r.Addr, rpc.DialConfig{})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		for name, key := range map[string]string{"good": "good", "bad": "a\xff\xfeb"} { // a Go client cannot be made to send the bad one
			item := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), key)
			req := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), queuetest.Q)
			req = protowire.AppendBytes(protowire.AppendTag(req, 2, protowire.BytesType), item)
			var res []byte
			err := conn.Invoke(t.Context(), queuev1.QueueService_Add_FullMethodName, &req, &res, grpc.ForceCodec(bytesCodec{}))
			if (err == nil) != (name == "good") {
				t.Errorf("a %s key: %v", name, err)
			}
			if err != nil && rpc.Code(err) != codes.InvalidArgument && !strings.Contains(err.Error(), "UTF-8") {
				t.Errorf("the error does not say what is wrong: %v", err)
			}
		}
		if n := r.Counts(t).GetReady(); n != 1 {
			t.Errorf("%d keys wait, want the good one", n)
		}
	})
}

func TestALeaseNobodyHoldsIsAStatusAndChangesNothing(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		r := queuetest.Start(t, kind, queue.Config{})
		r.Configure(t)
		ctx := t.Context()
		r.AddKeys(t, "k")
		settle := func(key string, token uint64) queuev1.SettleStatus {
			t.Helper()
			res, err := r.Settle(ctx, &queuev1.SettleRequest{SessionId: "w", Settlements: []*queuev1.Settlement{{Queue: queuetest.Q, Key: key, Token: token, Outcome: queuetest.Done}}})
			if err != nil {
				t.Fatal(err)
			}
			return res.GetResults()[0].GetStatus()
		}
		for _, key := range []string{"k", "never"} { // client-go would queue it a second time
			if got := settle(key, 1); got != queuev1.SettleStatus_SETTLE_STATUS_NOT_LEASED {
				t.Errorf("settling %q, never leased: %v", key, got)
			}
		}
		res, err := r.Get(ctx, &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "w", LeaseDuration: durationpb.New(time.Second)})
		if err != nil || len(res.GetLeases()) != 1 {
			t.Fatalf("Get = %v, %v", res, err)
		}
		l := res.GetLeases()[0]
		if got := settle("k", l.GetToken()-1); got != queuev1.SettleStatus_SETTLE_STATUS_LOST {
			t.Errorf("settling with a stale token: %v", got)
		}
		r.Advance(2 * time.Second)
		r.Counts(t)
		if _, err := r.Inspect(ctx, &queuev1.InspectRequest{Queue: queuetest.Q, Key: "k"}); err != nil { // a transaction
			t.Fatal(err)
		}
		ext, err := r.Extend(ctx, &queuev1.ExtendRequest{SessionId: "w", Leases: []*queuev1.LeaseRef{queuetest.Ref(l)}})
		if err != nil || ext.GetExtended() != 0 || len(ext.GetLost()) != 1 {
			t.Errorf("extending after expiry: %v, %v", ext, err)
		}
		if got := settle("k", l.GetToken()); got != queuev1.SettleStatus_SETTLE_STATUS_LOST {
			t.Errorf("settling after expiry: %v", got)
		}
		if c := r.Counts(t); c.GetReady() != 1 || c.GetProcessing() != 0 {
			t.Errorf("counts %v, want the key to wait once", c)
		}
	})
}

func TestDeadlinesAreRelativeSoThatAClientsClockDoesNotMatter(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		r := queuetest.Start(t, kind, queue.Config{})
		r.Configure(t)
		for _, step := range []time.Duration{0, 5 * time.Hour} { // the store's clock is that much ahead of this process
			r.Advance(step)
			w := r.OpenWork(t, &queuev1.Hello{SessionId: "w" + step.String(), LeaseDuration: durationpb.New(20 * time.Second)})
			w.Give(1)
			r.AddKeys(t, "k")
			l := queuetest.Wait(t, w.Leases)
			if left := l.GetRemaining().AsDuration(); left < 15*time.Second || left > 20*time.Second {
				t.Errorf("clock %v ahead: %v remain of 20 s", step, left)
			}
			w.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Extend{Extend: &queuev1.ExtendBatch{}}})
			if e := queuetest.Wait(t, w.Extended); e.GetExtended() != 1 || e.GetRemaining().AsDuration() < 15*time.Second || e.GetRemaining().AsDuration() > 20*time.Second {
				t.Errorf("clock %v ahead: %v", step, e)
			}
			if got := w.Settle(queuetest.Forget, l)[0].GetStatus(); got != queuev1.SettleStatus_SETTLE_STATUS_SETTLED {
				t.Errorf("clock %v ahead: settled %v", step, got)
			}
			w.Cancel()
			queuetest.Wait(t, w.End)
		}
	})
}
