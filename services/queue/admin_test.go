package queue

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/rpc"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/memory"
)

func seconds(n float64) *durationpb.Duration {
	return durationpb.New(time.Duration(n * float64(time.Second)))
}

func (r *rig) config(t testing.TB, cfg *queuev1.QueueConfig) *queuev1.ConfigureQueueResponse {
	t.Helper()
	if cfg.Name == "" {
		cfg.Name = q
	}
	res, err := r.ConfigureQueue(context.Background(), &queuev1.ConfigureQueueRequest{Config: cfg})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func TestEveryFieldOfAConfigurationIsKept(t *testing.T) {
	t.Parallel()
	on(t, func(t *testing.T, kind string) {
		r := start(t, kind, Config{})
		want := &queuev1.QueueConfig{
			Name: q, LeaseDuration: seconds(10), MaxLease: seconds(100), Partitions: 3, BarrierRetention: seconds(60), MaxRetries: 7,
			MaxDeliveries: 9,
			RateLimiter: &queuev1.RateLimiter{Kind: &queuev1.RateLimiter_MaxWait{MaxWait: &queuev1.MaxWaitLimiter{
				Max: seconds(5), Limiter: &queuev1.RateLimiter{Kind: &queuev1.RateLimiter_FastSlow{FastSlow: &queuev1.FastSlowLimiter{
					Fast: seconds(.5), Slow: seconds(9), MaxFastAttempts: 3,
				}}},
			}}},
			AbsorbDelays: true, ReserveOnce: true, Aging: seconds(12), DispatchLimiter: &queuev1.BucketLimiter{Qps: 2.5, Burst: 4},
			Durability: queuev1.Durability_DURABILITY_MEMORY, MaxProcessing: seconds(90),
			Backoff: &queuev1.BackoffConfig{Initial: seconds(1), Max: seconds(50), JitterFactor: .25, ExpireAfter: seconds(70)},
		}
		res := r.config(t, want)
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
		other := r.config(t, &queuev1.QueueConfig{Partitions: 3}) // replaces it whole
		if c := other.GetConfig(); c.GetAbsorbDelays() || c.GetDispatchLimiter() != nil || c.GetMaxProcessing() != nil || c.GetMaxRetries() != 0 ||
			c.GetAging().AsDuration() != 30*time.Second || c.GetMaxLease().AsDuration() != 30*time.Second || c.GetBackoff().GetExpireAfter().AsDuration() != 10*time.Minute || other.GetCreated() {
			t.Errorf("defaults %v, created %v", c, other.GetCreated())
		}
	})
}

func TestAllFaultsOfAConfigurationAreNamed(t *testing.T) {
	t.Parallel()
	on(t, func(t *testing.T, kind string) {
		r := start(t, kind, Config{})
		nan := math.NaN()
		exp := &queuev1.RateLimiter{Kind: &queuev1.RateLimiter_Exponential{Exponential: &queuev1.ExponentialLimiter{Base: seconds(2), Max: seconds(1)}}}
		_, err := r.ConfigureQueue(t.Context(), &queuev1.ConfigureQueueRequest{Config: &queuev1.QueueConfig{
			Name: "a b", LeaseDuration: seconds(.5), MaxLease: seconds(.4), Partitions: 65, BarrierRetention: seconds(-1), MaxRetries: math.MaxInt64, MaxDeliveries: 65_536,
			RateLimiter: &queuev1.RateLimiter{Kind: &queuev1.RateLimiter_MaxOf{MaxOf: &queuev1.MaxOfLimiter{Limiters: []*queuev1.RateLimiter{
				exp, {Kind: &queuev1.RateLimiter_Bucket{Bucket: &queuev1.BucketLimiter{Qps: nan}}}, {},
			}}}},
			Aging: &durationpb.Duration{Seconds: 1, Nanos: -1}, DispatchLimiter: &queuev1.BucketLimiter{Qps: math.Inf(1), Burst: math.MinInt64},
			Durability: 9, Replicas: 3, MaxProcessing: seconds(8 * 24 * 3600),
			Backoff: &queuev1.BackoffConfig{Initial: seconds(-1), Max: seconds(400 * 24 * 3600 * 365), JitterFactor: nan, ExpireAfter: seconds(-2)},
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
	r := serve(t, Config{}, picky{e})
	_, err = r.ConfigureQueue(t.Context(), &queuev1.ConfigureQueueRequest{Config: &queuev1.QueueConfig{
		Name: q, Durability: queuev1.Durability_DURABILITY_REPLICATED, Replicas: 2,
	}})
	if rpc.Code(err) != codes.FailedPrecondition || rpc.Reason(err) != "DURABILITY_UNAVAILABLE" {
		t.Errorf("error %v, want DURABILITY_UNAVAILABLE", err)
	}
	if _, err := r.Len(t.Context(), &queuev1.LenRequest{Queue: q}); rpc.Reason(err) != "QUEUE_NOT_FOUND" {
		t.Errorf("the queue exists all the same: %v", err)
	}
}

func TestAStoreWithoutReplicasOrDiskRefusesToPromiseThem(t *testing.T) {
	t.Parallel()
	on(t, func(t *testing.T, kind string) {
		r := start(t, kind, Config{})
		for _, d := range []queuev1.Durability{queuev1.Durability_DURABILITY_FSYNC, queuev1.Durability_DURABILITY_REPLICATED} {
			_, err := r.ConfigureQueue(t.Context(), &queuev1.ConfigureQueueRequest{Config: &queuev1.QueueConfig{Name: q, Durability: d}})
			if rpc.Code(err) != codes.FailedPrecondition || rpc.Reason(err) != "DURABILITY_UNAVAILABLE" {
				t.Errorf("%v: %v, want DURABILITY_UNAVAILABLE", d, err)
			}
		}
	})
}

func TestAReconfigurationThatIsRefusedChangesNothing(t *testing.T) {
	t.Parallel()
	on(t, func(t *testing.T, kind string) {
		r := start(t, kind, Config{})
		r.config(t, &queuev1.QueueConfig{Partitions: 2, MaxRetries: 3})
		r.add(t, keysN(20)...)
		for want, cfg := range map[string]*queuev1.QueueConfig{
			"PARTITIONS_FIXED": {Name: q, Partitions: 4},
			"INVALID_ARGUMENT": {Name: q, Partitions: 2, DispatchLimiter: &queuev1.BucketLimiter{Qps: 0, Burst: 1}},
		} {
			if _, err := r.ConfigureQueue(t.Context(), &queuev1.ConfigureQueueRequest{Config: cfg}); rpc.Reason(err) != want {
				t.Errorf("%v: %v, want %s", cfg, err, want)
			}
		}
		all, err := r.ListQueues(t.Context(), &queuev1.ListQueuesRequest{Prefix: q})
		if err != nil || len(all.GetQueues()) != 1 {
			t.Fatalf("ListQueues = %v, %v", all, err)
		}
		st := all.GetQueues()[0]
		if st.GetConfig().GetPartitions() != 2 || st.GetConfig().GetMaxRetries() != 3 || st.GetCounts().GetReady() != 20 {
			t.Errorf("after refusals: %v", st)
		}
		res, err := r.Get(t.Context(), &queuev1.GetRequest{Queue: q, SessionId: "w", MaxItems: 100, Wait: seconds(5)})
		for err == nil && len(res.GetLeases()) < 20 {
			var more *queuev1.GetResponse
			if more, err = r.Get(t.Context(), &queuev1.GetRequest{Queue: q, SessionId: "w", MaxItems: 100, Wait: seconds(5)}); err == nil {
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
	on(t, func(t *testing.T, kind string) {
		r := start(t, kind, Config{})
		r.config(t, &queuev1.QueueConfig{Partitions: 3})
		ctx := t.Context()
		w := r.work(t, &queuev1.Hello{SessionId: "w"})
		w.give(1)
		r.add(t, "held")
		held := wait(t, w.leases)
		if _, err := r.PauseQueue(ctx, &queuev1.PauseQueueRequest{Queue: q}); err != nil {
			t.Fatal(err)
		}
		paused := func() bool {
			res, err := r.ListQueues(ctx, &queuev1.ListQueuesRequest{})
			if err != nil || len(res.GetQueues()) != 1 {
				t.Fatalf("ListQueues = %v, %v", res, err)
			}
			return res.GetQueues()[0].GetPaused()
		}
		r.add(t, keysN(30)...)
		w.settle(forget, held) // settlements go on, and its credit is free again
		res, err := r.Get(ctx, &queuev1.GetRequest{Queue: q, SessionId: "g", MaxItems: 10})
		if err != nil || len(res.GetLeases()) != 0 || !paused() || len(w.leases) != 0 {
			t.Errorf("paused: Get = %v, %v; paused %v, %d assigned", res, err, paused(), len(w.leases))
		}
		if _, err := r.ResumeQueue(ctx, &queuev1.ResumeQueueRequest{Queue: q}); err != nil {
			t.Fatal(err)
		}
		w.give(30)
		for range 30 {
			wait(t, w.leases)
		}
		if paused() {
			t.Error("still paused after ResumeQueue")
		}
	})
}

func TestAnAddToAnyPartitionOfAClosedQueueFails(t *testing.T) {
	t.Parallel()
	on(t, func(t *testing.T, kind string) {
		r := start(t, kind, Config{})
		r.config(t, &queuev1.QueueConfig{Partitions: 4})
		ctx := t.Context()
		if _, err := r.CloseQueue(ctx, &queuev1.CloseQueueRequest{Queue: q}); err != nil {
			t.Fatal(err)
		}
		for _, k := range keysN(16) {
			if _, err := r.Add(ctx, &queuev1.AddRequest{Queue: q, Items: []*queuev1.AddItem{{Key: k}}}); rpc.Reason(err) != "QUEUE_CLOSED" {
				t.Errorf("Add of %q = %v, want QUEUE_CLOSED", k, err)
			}
		}
		if _, err := r.OpenQueue(ctx, &queuev1.OpenQueueRequest{Queue: q}); err != nil {
			t.Fatal(err)
		}
		r.add(t, keysN(16)...)
		if n := r.counts(t).GetReady(); n != 16 {
			t.Errorf("%d ready after OpenQueue, want 16", n)
		}
	})
}

func TestOperatorCallsNameAnUnknownQueue(t *testing.T) {
	t.Parallel()
	on(t, func(t *testing.T, kind string) {
		r := start(t, kind, Config{})
		r.configure(t)
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
			"GetBackoff": func() error {
				_, err := r.GetBackoff(ctx, &queuev1.GetBackoffRequest{Queue: "no", Ids: keys})
				return err
			},
			"GCBackoff": func() error { _, err := r.GCBackoff(ctx, &queuev1.GCBackoffRequest{Queue: "no"}); return err },
			"ListItems": func() error { _, err := r.ListItems(ctx, &queuev1.ListItemsRequest{Queue: "no"}); return err },
			"DrainQueue": func() error {
				s, err := r.DrainQueue(ctx, &queuev1.DrainQueueRequest{Queue: "no"})
				if err == nil {
					_, err = s.Recv()
				}
				return err
			},
		} {
			if err := call(); rpc.Code(err) != codes.NotFound || rpc.Reason(err) != "QUEUE_NOT_FOUND" || !strings.HasSuffix(rpc.Message(err), "; there are: "+q) {
				t.Errorf("%s = %v, want QUEUE_NOT_FOUND and which there are", name, err)
			}
		}
	})
}

func TestOperatorCallsSetStatusesPerKey(t *testing.T) {
	t.Parallel()
	on(t, func(t *testing.T, kind string) {
		r := start(t, kind, Config{})
		r.config(t, &queuev1.QueueConfig{Partitions: 2})
		ctx := t.Context()
		w := r.work(t, &queuev1.Hello{SessionId: "w"})
		w.give(2)
		r.add(t, "held", "dead")
		leases := map[string]*queuev1.Lease{}
		for range 2 {
			l := wait(t, w.leases)
			leases[l.GetKey()] = l
		}
		w.request++
		w.send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Settle{Settle: &queuev1.SettleBatch{RequestId: w.request, HoldCredit: true, Settlements: []*queuev1.Settlement{{
			Queue: q, Key: "dead", Token: leases["dead"].GetToken(), Outcome: queuev1.Outcome_OUTCOME_DEAD, Reason: "no such node",
		}}}}})
		wait(t, w.settled)
		if _, err := r.AddAfter(ctx, &queuev1.AddAfterRequest{Queue: q, Delay: seconds(3600), Items: []*queuev1.AddItem{{Key: "later"}}}); err != nil {
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
		retried, err := r.RetryNow(ctx, &queuev1.RetryNowRequest{Queue: q, Keys: keys})
		says(retried.GetResults(), err, "unchanged done done unchanged")
		if c := r.counts(t); c.GetReady() != 2 || c.GetDelayed() != 0 || c.GetDead() != 0 || c.GetProcessing() != 1 {
			t.Errorf("after RetryNow: %v", c)
		}
		deleted, err := r.DeleteItems(ctx, &queuev1.DeleteItemsRequest{Queue: q, Keys: keys})
		says(deleted.GetResults(), err, "held done done unchanged")
		released, err := r.ReleaseItems(ctx, &queuev1.ReleaseItemsRequest{Queue: q, Keys: keys})
		says(released.GetResults(), err, "done unchanged unchanged unchanged")
		if got := w.settle(done, leases["held"]); got[0].GetStatus() != queuev1.SettleStatus_SETTLE_STATUS_LOST {
			t.Errorf("settling what was released: %v, want LOST", got)
		}
		if c := r.counts(t); c.GetReady()+c.GetProcessing() != 1 || c.GetDelayed() != 0 || c.GetDead() != 0 {
			t.Errorf("in the end: %v", c)
		}
	})
}
