package queue

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

func TestBadInputIsNamed(t *testing.T) {
	t.Parallel()
	r := start(t, "memory", Config{})
	r.configure(t)
	items := func(keys ...string) (out []*queuev1.AddItem) {
		for _, k := range keys {
			out = append(out, &queuev1.AddItem{Key: k})
		}
		return out
	}
	add := func(req *queuev1.AddRequest) func(context.Context) error {
		if req.Queue == "" {
			req.Queue = q
		}
		return func(ctx context.Context) error { _, err := r.Add(ctx, req); return err }
	}
	after := func(d *durationpb.Duration) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := r.AddAfter(ctx, &queuev1.AddAfterRequest{Queue: q, Items: items("k"), Delay: d})
			return err
		}
	}
	get := func(req *queuev1.GetRequest) func(context.Context) error {
		if req.Queue == "" {
			req.Queue = q
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
	seconds := func(n time.Duration) *durationpb.Duration { return durationpb.New(n * time.Second) }

	for name, tc := range map[string]struct {
		call func(context.Context) error
		code codes.Code
		want string // a field, or a reason in capitals
	}{
		"empty key":            {add(&queuev1.AddRequest{Items: items("ok", "")}), codes.InvalidArgument, "items[1].key"},
		"64 KB key":            {add(&queuev1.AddRequest{Items: items(strings.Repeat("k", 64<<10))}), codes.InvalidArgument, "items[0].key"},
		"no items":             {add(&queuev1.AddRequest{}), codes.InvalidArgument, "items"},
		"too many items":       {add(&queuev1.AddRequest{Items: items(keysN(1001)...)}), codes.InvalidArgument, "items"},
		"priority":             {add(&queuev1.AddRequest{Items: []*queuev1.AddItem{{Key: "k", Priority: 4}}}), codes.InvalidArgument, "items[0].priority"},
		"trace":                {add(&queuev1.AddRequest{Items: []*queuev1.AddItem{{Key: "k", Traceparent: "a b"}}}), codes.InvalidArgument, "items[0].traceparent"},
		"barrier collection":   {add(&queuev1.AddRequest{Items: []*queuev1.AddItem{{Key: "k", Barrier: barrier("pods", "1")}}}), codes.InvalidArgument, "items[0].barrier[0].collection"},
		"barrier rv":           {add(&queuev1.AddRequest{Items: []*queuev1.AddItem{{Key: "k", Barrier: barrier("dev/pods.v1", "x")}}}), codes.InvalidArgument, "items[0].barrier[0].revision.resource_version"},
		"unknown queue":        {add(&queuev1.AddRequest{Queue: "dev/none", Items: items("k")}), codes.NotFound, "QUEUE_NOT_FOUND"},
		"malformed queue":      {add(&queuev1.AddRequest{Queue: "a{b}", Items: items("k")}), codes.InvalidArgument, "queue"},
		"long session":         {add(&queuev1.AddRequest{SessionId: strings.Repeat("s", 300), Items: items("k")}), codes.InvalidArgument, "session_id"},
		"negative delay":       {after(seconds(-1)), codes.InvalidArgument, "delay"},
		"delay of 11 years":    {after(seconds(11 * 365 * 24 * 3600)), codes.InvalidArgument, "delay"},
		"delay not a duration": {after(&durationpb.Duration{Seconds: 1, Nanos: -1}), codes.InvalidArgument, "delay"},
		"delay policy": {func(ctx context.Context) error {
			_, err := r.AddAfter(ctx, &queuev1.AddAfterRequest{Queue: q, Items: items("k"), Policy: 9})
			return err
		}, codes.InvalidArgument, "policy"},
		"get without session": {get(&queuev1.GetRequest{}), codes.InvalidArgument, "session_id"},
		"get too many":        {get(&queuev1.GetRequest{SessionId: "w", MaxItems: 1001}), codes.InvalidArgument, "max_items"},
		"get negative":        {get(&queuev1.GetRequest{SessionId: "w", MaxItems: -1}), codes.InvalidArgument, "max_items"},
		"get waits too long":  {get(&queuev1.GetRequest{SessionId: "w", Wait: seconds(61)}), codes.InvalidArgument, "wait"},
		"lease too short":     {get(&queuev1.GetRequest{SessionId: "w", LeaseDuration: durationpb.New(time.Millisecond)}), codes.InvalidArgument, "lease_duration"},
		"get of unknown":      {get(&queuev1.GetRequest{Queue: "none", SessionId: "w"}), codes.NotFound, "QUEUE_NOT_FOUND"},
		"no outcome":          {settle(&queuev1.Settlement{Queue: q, Key: "k", Token: 1}), codes.InvalidArgument, "settlements[0].outcome"},
		"zero token":          {settle(&queuev1.Settlement{Queue: q, Key: "k", Outcome: done}), codes.InvalidArgument, "settlements[0].token"},
		"delay with done":     {settle(&queuev1.Settlement{Queue: q, Key: "k", Token: 1, Outcome: done, Delay: seconds(1)}), codes.InvalidArgument, "settlements[0].delay"},
		"long reason":         {settle(&queuev1.Settlement{Queue: q, Key: "k", Token: 1, Outcome: done, Reason: strings.Repeat("r", 1025)}), codes.InvalidArgument, "settlements[0].reason"},
		"settle in unknown":   {settle(&queuev1.Settlement{Queue: "none", Key: "k", Token: 1, Outcome: done}), codes.NotFound, "QUEUE_NOT_FOUND"},
		"oversize state": {func(ctx context.Context) error {
			_, err := r.SaveState(ctx, &queuev1.SaveStateRequest{Queue: q, Key: "k", Token: 1, State: make([]byte, 4097)})
			return err
		}, codes.InvalidArgument, "state"},
		"expect without owner": {func(ctx context.Context) error {
			_, err := r.Expect(ctx, &queuev1.ExpectRequest{Queue: q, Key: "k", Token: 1})
			return err
		}, codes.InvalidArgument, "owner_uid"},
		"expect a bad name": {func(ctx context.Context) error {
			_, err := r.Expect(ctx, &queuev1.ExpectRequest{Queue: q, Key: "k", Token: 1, OwnerUid: "u", Creations: []string{"a\nb"}})
			return err
		}, codes.InvalidArgument, "creations"},
		"forget nothing": {func(ctx context.Context) error {
			_, err := r.Forget(ctx, &queuev1.ForgetRequest{Queue: q})
			return err
		}, codes.InvalidArgument, "keys"},
		"list an unknown state": {func(ctx context.Context) error {
			_, err := r.ListItems(ctx, &queuev1.ListItemsRequest{Queue: q, State: queuev1.State_STATE_IDLE})
			return err
		}, codes.InvalidArgument, "state"},
		"page token": {func(ctx context.Context) error {
			_, err := r.ListItems(ctx, &queuev1.ListItemsRequest{Queue: q, PageToken: "%"})
			return err
		}, codes.InvalidArgument, "page_token"},
		"page size": {func(ctx context.Context) error {
			_, err := r.ListItems(ctx, &queuev1.ListItemsRequest{Queue: q, PageSize: -1})
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
		"config name":         {config(&queuev1.QueueConfig{Name: "no spaces"}), codes.InvalidArgument, "config.name"},
		"config lease":        {config(&queuev1.QueueConfig{LeaseDuration: seconds(7200)}), codes.InvalidArgument, "config.lease_duration"},
		"config retention":    {config(&queuev1.QueueConfig{BarrierRetention: seconds(-1)}), codes.InvalidArgument, "config.barrier_retention"},
		"config retries":      {config(&queuev1.QueueConfig{MaxRetries: -5}), codes.InvalidArgument, "config.max_retries"},
		"new with partitions": {config(&queuev1.QueueConfig{Partitions: 4}), codes.InvalidArgument, "config.partitions"},
		"other partitions":    {config(&queuev1.QueueConfig{Name: q, Partitions: 4}), codes.FailedPrecondition, "PARTITIONS_FIXED"},
		"bucket without qps":  {limiter(&queuev1.RateLimiter{Kind: &queuev1.RateLimiter_Bucket{Bucket: &queuev1.BucketLimiter{Burst: 1}}}), codes.InvalidArgument, "config.rate_limiter"},
		"burst of zero":       {limiter(&queuev1.RateLimiter{Kind: &queuev1.RateLimiter_Bucket{Bucket: &queuev1.BucketLimiter{Qps: 1}}}), codes.InvalidArgument, "config.rate_limiter"},
		"limiter of no kind":  {limiter(&queuev1.RateLimiter{}), codes.InvalidArgument, "config.rate_limiter"},
		"limiter too deep":    {limiter(deep), codes.InvalidArgument, "config.rate_limiter.max_wait.limiter.max_wait.limiter.max_wait.limiter.max_wait.limiter"},
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
	on(t, func(t *testing.T, kind string) {
		r := start(t, kind, Config{})
		r.configure(t)
		ctx := t.Context()
		if _, err := r.CloseQueue(ctx, &queuev1.CloseQueueRequest{Queue: q}); err != nil {
			t.Fatal(err)
		}
		_, err := r.Add(ctx, &queuev1.AddRequest{Queue: q, Items: []*queuev1.AddItem{{Key: "k"}}})
		if rpc.Code(err) != codes.FailedPrecondition || rpc.Reason(err) != "QUEUE_CLOSED" {
			t.Errorf("Add = %v, want QUEUE_CLOSED", err)
		}
	})
}
