package admin_test

import (
	"context"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/memory"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
)

func TestEveryFieldOfAConfigurationIsKept(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		r := queuetest.Start(t, kind, queue.Config{})
		want := &queuev1.QueueConfig{
			Name: queuetest.Q, LeaseDuration: queuetest.Seconds(10), MaxLease: queuetest.Seconds(100), Partitions: 3, BarrierRetention: queuetest.Seconds(60), MaxRetries: 7,
			MaxDeliveries: 9,
			RateLimiter: &queuev1.RateLimiter{Kind: &queuev1.RateLimiter_MaxWait{MaxWait: &queuev1.MaxWaitLimiter{
				Max: queuetest.Seconds(5), Limiter: &queuev1.RateLimiter{Kind: &queuev1.RateLimiter_FastSlow{FastSlow: &queuev1.FastSlowLimiter{
					Fast: queuetest.Seconds(.5), Slow: queuetest.Seconds(9), MaxFastAttempts: 3,
				}}},
			}}},
			AbsorbDelays: true, ReserveOnce: true, Aging: queuetest.Seconds(12), DispatchLimiter: &queuev1.BucketLimiter{Qps: 2.5, Burst: 4},
			Durability: queuev1.Durability_DURABILITY_MEMORY, MaxProcessing: queuetest.Seconds(90),
			Backoff: &queuev1.BackoffConfig{Initial: queuetest.Seconds(1), Max: queuetest.Seconds(50), JitterFactor: .25, ExpireAfter: queuetest.Seconds(70)},
		}
		res := r.Config(t, want)
		if diff := cmp.Diff(want, res.GetConfig(), protocmp.Transform()); diff != "" || !res.GetCreated() {
			t.Errorf("in force, created %v (-want +got):\n%s", res.GetCreated(), diff)
		}
		all, err := r.ListQueues(t.Context(), &queuev1.ListQueuesRequest{})
		if err != nil || len(all.GetQueues()) != 1 {
			t.Fatalf("ListQueues = %v, %v", all, err)
		}
		if diff := cmp.Diff(want, all.GetQueues()[0].GetConfig(), protocmp.Transform()); diff != "" {
			t.Errorf("listed (-want +got):\n%s", diff)
		}
		other := r.Config(t, &queuev1.QueueConfig{Partitions: 3}) // replaces it whole
		if c := other.GetConfig(); c.GetAbsorbDelays() || c.GetDispatchLimiter() != nil || c.GetMaxProcessing() != nil || c.GetMaxRetries() != 0 ||
			c.GetAging().AsDuration() != 30*time.Second || c.GetMaxLease().AsDuration() != 30*time.Second || c.GetBackoff().GetExpireAfter().AsDuration() != 10*time.Minute || other.GetCreated() {
			t.Errorf("defaults %v, created %v", c, other.GetCreated())
		}
	})
}

func TestAllFaultsOfAConfigurationAreNamed(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		r := queuetest.Start(t, kind, queue.Config{})
		nan := math.NaN()
		exp := &queuev1.RateLimiter{Kind: &queuev1.RateLimiter_Exponential{Exponential: &queuev1.ExponentialLimiter{Base: queuetest.Seconds(2), Max: queuetest.Seconds(1)}}}
		_, err := r.ConfigureQueue(t.Context(), &queuev1.ConfigureQueueRequest{Config: &queuev1.QueueConfig{
			Name: "a b", LeaseDuration: queuetest.Seconds(.5), MaxLease: queuetest.Seconds(.4), Partitions: 65, BarrierRetention: queuetest.Seconds(-1), MaxRetries: math.MaxInt64, MaxDeliveries: 65_536,
			RateLimiter: &queuev1.RateLimiter{Kind: &queuev1.RateLimiter_MaxOf{MaxOf: &queuev1.MaxOfLimiter{Limiters: []*queuev1.RateLimiter{
				exp, {Kind: &queuev1.RateLimiter_Bucket{Bucket: &queuev1.BucketLimiter{Qps: nan}}}, {},
			}}}},
			Aging: &durationpb.Duration{Seconds: 1, Nanos: -1}, DispatchLimiter: &queuev1.BucketLimiter{Qps: math.Inf(1), Burst: math.MinInt64},
			Durability: 9, Replicas: 3, MaxProcessing: queuetest.Seconds(8 * 24 * 3600),
			Backoff: &queuev1.BackoffConfig{Initial: queuetest.Seconds(-1), Max: queuetest.Seconds(400 * 24 * 3600 * 365), JitterFactor: nan, ExpireAfter: queuetest.Seconds(-2)},
		}})
		if rpc.Code(err) != codes.InvalidArgument {
			t.Fatalf("error %v", err)
		}
		got := rpc.Violations(err)
		for _, field := range []string{
			"name", "lease_duration", "max_lease", "partitions", "barrier_retention", "max_retries", "max_deliveries", "rate_limiter.max_of.limiters[0].exponential.max",
			"rate_limiter.max_of.limiters[1].bucket.qps", "rate_limiter.max_of.limiters[1].bucket.burst", "rate_limiter.max_of.limiters[2]",
			"aging", "dispatch_limiter.qps", "dispatch_limiter.burst", "durability", "replicas", "max_processing",
			"backoff.initial", "backoff.max", "backoff.jitter_factor", "backoff.expire_after",
		} {
			if got["config."+field] == "" {
				t.Errorf("config.%s is not named", field)
			}
			delete(got, "config."+field)
		}
		if len(got) > 0 {
			t.Errorf("also named: %v", got)
		}
	})
}

// picky is an engine that keeps no durability beyond memory.
type picky struct{ engine.Engine }

func (p picky) Configure(ctx context.Context, name string, cfg workqueue.Config) (engine.Queue, bool, error) {
	if cfg.Durability != workqueue.Memory {
		return nil, false, engine.ErrDurability
	}
	return p.Engine.Configure(ctx, name, cfg)
}

func TestADurabilityTheStoreCannotKeepIsRefused(t *testing.T) {
	t.Parallel()
	e, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	r := queuetest.Serve(t, queue.Config{}, picky{e})
	_, err = r.ConfigureQueue(t.Context(), &queuev1.ConfigureQueueRequest{Config: &queuev1.QueueConfig{
		Name: queuetest.Q, Durability: queuev1.Durability_DURABILITY_REPLICATED, Replicas: 2,
	}})
	if rpc.Code(err) != codes.FailedPrecondition || rpc.Reason(err) != "DURABILITY_UNAVAILABLE" {
		t.Errorf("error %v, want DURABILITY_UNAVAILABLE", err)
	}
	if _, err := r.Len(t.Context(), &queuev1.LenRequest{Queue: queuetest.Q}); rpc.Reason(err) != "QUEUE_NOT_FOUND" {
		t.Errorf("the queue exists all the same: %v", err)
	}
}

func TestAStoreWithoutReplicasOrDiskRefusesToPromiseThem(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		r := queuetest.Start(t, kind, queue.Config{})
		for _, d := range []queuev1.Durability{queuev1.Durability_DURABILITY_FSYNC, queuev1.Durability_DURABILITY_REPLICATED} {
			_, err := r.ConfigureQueue(t.Context(), &queuev1.ConfigureQueueRequest{Config: &queuev1.QueueConfig{Name: queuetest.Q, Durability: d}})
			if rpc.Code(err) != codes.FailedPrecondition || rpc.Reason(err) != "DURABILITY_UNAVAILABLE" {
				t.Errorf("%v: %v, want DURABILITY_UNAVAILABLE", d, err)
			}
		}
	})
}

func TestAReconfigurationThatIsRefusedChangesNothing(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		r := queuetest.Start(t, kind, queue.Config{})
		r.Config(t, &queuev1.QueueConfig{Partitions: 2, MaxRetries: 3})
		r.AddKeys(t, queuetest.KeysN(20)...)
		for want, cfg := range map[string]*queuev1.QueueConfig{
			"PARTITIONS_FIXED": {Name: queuetest.Q, Partitions: 4},
			"INVALID_ARGUMENT": {Name: queuetest.Q, Partitions: 2, DispatchLimiter: &queuev1.BucketLimiter{Qps: 0, Burst: 1}},
		} {
			if _, err := r.ConfigureQueue(t.Context(), &queuev1.ConfigureQueueRequest{Config: cfg}); rpc.Reason(err) != want {
				t.Errorf("%v: %v, want %s", cfg, err, want)
			}
		}
		all, err := r.ListQueues(t.Context(), &queuev1.ListQueuesRequest{Prefix: queuetest.Q})
		if err != nil || len(all.GetQueues()) != 1 {
			t.Fatalf("ListQueues = %v, %v", all, err)
		}
		st := all.GetQueues()[0]
		if st.GetConfig().GetPartitions() != 2 || st.GetConfig().GetMaxRetries() != 3 || st.GetCounts().GetReady() != 20 {
			t.Errorf("after refusals: %v", st)
		}
		res, err := r.Get(t.Context(), &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "w", MaxItems: 100, Wait: queuetest.Seconds(5)})
		for err == nil && len(res.GetLeases()) < 20 {
			var more *queuev1.GetResponse
			if more, err = r.Get(t.Context(), &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "w", MaxItems: 100, Wait: queuetest.Seconds(5)}); err == nil {
				res.Leases = append(res.Leases, more.GetLeases()...)
			}
		}
		if err != nil || len(res.GetLeases()) != 20 {
			t.Errorf("Get = %d leases, %v", len(res.GetLeases()), err)
		}
	})
}

func TestAPausedQueueTakesAddsAndHandsOutNothing(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		r := queuetest.Start(t, kind, queue.Config{})
		r.Config(t, &queuev1.QueueConfig{Partitions: 3})
		ctx := t.Context()
		w := r.OpenWork(t, &queuev1.Hello{SessionId: "w"})
		w.Give(1)
		r.AddKeys(t, "held")
		held := queuetest.Wait(t, w.Leases)
		if _, err := r.PauseQueue(ctx, &queuev1.PauseQueueRequest{Queue: queuetest.Q}); err != nil {
			t.Fatal(err)
		}
		paused := func() bool {
			res, err := r.ListQueues(ctx, &queuev1.ListQueuesRequest{})
			if err != nil || len(res.GetQueues()) != 1 {
				t.Fatalf("ListQueues = %v, %v", res, err)
			}
			return res.GetQueues()[0].GetPaused()
		}
		r.AddKeys(t, queuetest.KeysN(30)...)
		w.Settle(queuetest.Forget, held) // settlements go on, and its credit is free again
		res, err := r.Get(ctx, &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "g", MaxItems: 10})
		if err != nil || len(res.GetLeases()) != 0 || !paused() || len(w.Leases) != 0 {
			t.Errorf("paused: Get = %v, %v; paused %v, %d assigned", res, err, paused(), len(w.Leases))
		}
		if _, err := r.ResumeQueue(ctx, &queuev1.ResumeQueueRequest{Queue: queuetest.Q}); err != nil {
			t.Fatal(err)
		}
		w.Give(30)
		for range 30 {
			queuetest.Wait(t, w.Leases)
		}
		if paused() {
			t.Error("still paused after ResumeQueue")
		}
	})
}

func TestAnAddToAnyPartitionOfAClosedQueueFails(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		r := queuetest.Start(t, kind, queue.Config{})
		r.Config(t, &queuev1.QueueConfig{Partitions: 4})
		ctx := t.Context()
		if _, err := r.CloseQueue(ctx, &queuev1.CloseQueueRequest{Queue: queuetest.Q}); err != nil {
			t.Fatal(err)
		}
		for _, k := range queuetest.KeysN(16) {
			if _, err := r.Add(ctx, &queuev1.AddRequest{Queue: queuetest.Q, Items: []*queuev1.AddItem{{Key: k}}}); rpc.Reason(err) != "QUEUE_CLOSED" {
				t.Errorf("Add of %q = %v, want QUEUE_CLOSED", k, err)
			}
		}
		if _, err := r.OpenQueue(ctx, &queuev1.OpenQueueRequest{Queue: queuetest.Q}); err != nil {
			t.Fatal(err)
		}
		r.AddKeys(t, queuetest.KeysN(16)...)
		if n := r.Counts(t).GetReady(); n != 16 {
			t.Errorf("%d ready after OpenQueue, want 16", n)
		}
	})
}

func TestOperatorCallsNameAnUnknownQueue(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		r := queuetest.Start(t, kind, queue.Config{})
		r.Configure(t)
		ctx := t.Context()
		keys := []string{"k"}
		for name, call := range map[string]func() error{
			"PauseQueue":  func() error { _, err := r.PauseQueue(ctx, &queuev1.PauseQueueRequest{Queue: "no"}); return err },
			"ResumeQueue": func() error { _, err := r.ResumeQueue(ctx, &queuev1.ResumeQueueRequest{Queue: "no"}); return err },
			"RetryNow":    func() error { _, err := r.RetryNow(ctx, &queuev1.RetryNowRequest{Queue: "no", Keys: keys}); return err },
			"ReleaseItems": func() error {
				_, err := r.ReleaseItems(ctx, &queuev1.ReleaseItemsRequest{Queue: "no", Keys: keys})
				return err
			},
			"DeleteItems": func() error {
				_, err := r.DeleteItems(ctx, &queuev1.DeleteItemsRequest{Queue: "no", Keys: keys})
				return err
			},
			"RestoreItems": func() error {
				_, err := r.RestoreItems(ctx, &queuev1.RestoreItemsRequest{Queue: "no", Items: []*queuev1.Item{{Key: "k", State: queuev1.State_STATE_READY}}})
				return err
			},
			"BackoffService.Get": func() error {
				_, err := r.Backoff.Get(ctx, &queuev1.BackoffServiceGetRequest{Queue: "no", Ids: keys})
				return err
			},
			"ListItems": func() error { _, err := r.ListItems(ctx, &queuev1.ListItemsRequest{Queue: "no"}); return err },
			"DrainQueue": func() error {
				s, err := r.DrainQueue(ctx, &queuev1.DrainQueueRequest{Queue: "no"})
				if err == nil {
					_, err = s.Recv()
				}
				return err
			},
		} {
			if err := call(); rpc.Code(err) != codes.NotFound || rpc.Reason(err) != "QUEUE_NOT_FOUND" || !strings.HasSuffix(rpc.Message(err), "; there are: "+queuetest.Q) {
				t.Errorf("%s = %v, want QUEUE_NOT_FOUND and which there are", name, err)
			}
		}
	})
}

func TestAKeyOfABackupThatIsWrongNamesItsField(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		r := queuetest.Start(t, kind, queue.Config{})
		r.Configure(t)
		ready := queuev1.State_STATE_READY
		for field, it := range map[string]*queuev1.Item{
			"key":                    {State: ready},
			"state":                  {Key: "k"},
			"priority":               {Key: "k", State: ready, Priority: 9},
			"delayed_until":          {Key: "k", State: queuev1.State_STATE_DELAYED},
			"num_requeues":           {Key: "k", State: ready, NumRequeues: -1},
			"saved_state":            {Key: "k", State: ready, SavedState: make([]byte, 5000)},
			"last_reason":            {Key: "k", State: ready, LastReason: strings.Repeat("a", 2000)},
			"barrier":                {Key: "k", State: ready, Barrier: make([]*deltav1.CollectionRevision, 65)},
			"barrier[0].collection":  {Key: "k", State: ready, Barrier: []*deltav1.CollectionRevision{{Collection: "nonsense", Revision: &deltav1.Revision{ResourceVersion: "1"}}}},
			"expectations.owner_uid": {Key: "k", State: ready, Expectations: &queuev1.Expectations{Creations: []string{"c"}}},
			"expectations.creations": {Key: "k", State: ready, Expectations: &queuev1.Expectations{OwnerUid: "u", Creations: []string{""}}},
		} {
			_, err := r.RestoreItems(t.Context(), &queuev1.RestoreItemsRequest{Queue: queuetest.Q, Items: []*queuev1.Item{{Key: "good", State: ready}, it}})
			named := slices.ContainsFunc(slices.Collect(maps.Keys(rpc.Violations(err))), func(f string) bool { return strings.HasPrefix(f, "items[1]."+field) })
			if rpc.Code(err) != codes.InvalidArgument || !named {
				t.Errorf("%s: %v", field, err)
			}
		}
		if c := r.Counts(t); c.GetReady() != 0 {
			t.Errorf("something of a wrong request was restored: %v", c)
		}
	})
}

func TestOperatorCallsSetStatusesPerKey(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		r := queuetest.Start(t, kind, queue.Config{})
		r.Config(t, &queuev1.QueueConfig{Partitions: 2})
		ctx := t.Context()
		w := r.OpenWork(t, &queuev1.Hello{SessionId: "w"})
		w.Give(2)
		r.AddKeys(t, "held", "dead")
		leases := map[string]*queuev1.Lease{}
		for range 2 {
			l := queuetest.Wait(t, w.Leases)
			leases[l.GetKey()] = l
		}
		w.Request++
		w.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Settle{Settle: &queuev1.SettleBatch{RequestId: w.Request, HoldCredit: true, Settlements: []*queuev1.Settlement{{
			Queue: queuetest.Q, Key: "dead", Token: leases["dead"].GetToken(), Outcome: queuev1.Outcome_OUTCOME_DEAD, Reason: "no such node",
		}}}}})
		queuetest.Wait(t, w.Settled)
		if _, err := r.AddAfter(ctx, &queuev1.AddAfterRequest{Queue: queuetest.Q, Delay: queuetest.Seconds(3600), Items: []*queuev1.AddItem{{Key: "later"}}}); err != nil {
			t.Fatal(err)
		}
		keys := []string{"held", "dead", "later", "unknown"}
		says := func(results []*queuev1.ItemResult, err error, want string) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for i, res := range results {
				if res.GetKey() != keys[i] {
					t.Errorf("result %d is of %q, want %q", i, res.GetKey(), keys[i])
				}
				got = append(got, strings.ToLower(strings.TrimPrefix(res.GetStatus().String(), "ITEM_STATUS_")))
			}
			if strings.Join(got, " ") != want {
				t.Errorf("statuses %v, want %s", got, want)
			}
		}
		retried, err := r.RetryNow(ctx, &queuev1.RetryNowRequest{Queue: queuetest.Q, Keys: keys})
		says(retried.GetResults(), err, "unchanged done done unchanged")
		if c := r.Counts(t); c.GetReady() != 2 || c.GetDelayed() != 0 || c.GetDead() != 0 || c.GetProcessing() != 1 {
			t.Errorf("after RetryNow: %v", c)
		}
		deleted, err := r.DeleteItems(ctx, &queuev1.DeleteItemsRequest{Queue: queuetest.Q, Keys: keys})
		says(deleted.GetResults(), err, "held done done unchanged")
		released, err := r.ReleaseItems(ctx, &queuev1.ReleaseItemsRequest{Queue: queuetest.Q, Keys: keys})
		says(released.GetResults(), err, "done unchanged unchanged unchanged")
		if got := w.Settle(queuetest.Done, leases["held"]); got[0].GetStatus() != queuev1.SettleStatus_SETTLE_STATUS_LOST {
			t.Errorf("settling what was released: %v, want LOST", got)
		}
		if c := r.Counts(t); c.GetReady()+c.GetProcessing() != 1 || c.GetDelayed() != 0 || c.GetDead() != 0 {
			t.Errorf("in the end: %v", c)
		}
	})
}
