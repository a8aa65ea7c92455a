package client

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

func TestEverySettingOfAQueueCanBeGiven(t *testing.T) {
	t.Parallel()
	got := QueueConfig{
		RateLimiter: MaxOf(Exponential(1, 2), MaxWait(FastSlow(3, 4, 5), 6), Bucket(7, 8)), Partitions: 9, Lease: 10, MaxLease: 11, MaxProcessing: 12,
		MaxRetries: 13, MaxDeliveries: 14, BarrierRetention: 15, AbsorbDelays: true, ReserveOnce: true, Aging: 16, DispatchQPS: 17, DispatchBurst: 18,
		Durability: DurabilityReplicated, Replicas: 19, Backoff: BackoffConfig{Initial: 20, Max: 21, Jitter: 0.22, ExpireAfter: 23},
	}.proto("q")
	ns := durationpb.New
	want := &queuev1.QueueConfig{
		Name: "q", RateLimiter: &queuev1.RateLimiter{Kind: &queuev1.RateLimiter_MaxOf{MaxOf: &queuev1.MaxOfLimiter{Limiters: []*queuev1.RateLimiter{
			{Kind: &queuev1.RateLimiter_Exponential{Exponential: &queuev1.ExponentialLimiter{Base: ns(1), Max: ns(2)}}},
			{Kind: &queuev1.RateLimiter_MaxWait{MaxWait: &queuev1.MaxWaitLimiter{Max: ns(6), Limiter: &queuev1.RateLimiter{
				Kind: &queuev1.RateLimiter_FastSlow{FastSlow: &queuev1.FastSlowLimiter{Fast: ns(3), Slow: ns(4), MaxFastAttempts: 5}},
			}}}},
			{Kind: &queuev1.RateLimiter_Bucket{Bucket: &queuev1.BucketLimiter{Qps: 7, Burst: 8}}},
		}}}},
		Partitions: 9, LeaseDuration: ns(10), MaxLease: ns(11), MaxProcessing: ns(12), MaxRetries: 13, MaxDeliveries: 14, BarrierRetention: ns(15),
		AbsorbDelays: true, ReserveOnce: true, Aging: ns(16), DispatchLimiter: &queuev1.BucketLimiter{Qps: 17, Burst: 18},
		Durability: queuev1.Durability_DURABILITY_REPLICATED, Replicas: 19,
		Backoff: &queuev1.BackoffConfig{Initial: ns(20), Max: ns(21), JitterFactor: 0.22, ExpireAfter: ns(23)},
	}
	if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	for _, m := range []protoreflect.Message{got.ProtoReflect(), got.GetBackoff().ProtoReflect()} {
		for i := range m.Descriptor().Fields().Len() {
			if f := m.Descriptor().Fields().Get(i); !m.Has(f) {
				t.Errorf("%s is in the contract and cannot be set", f.FullName())
			}
		}
	}
	if d := cmp.Diff(&queuev1.QueueConfig{Name: "q"}, QueueConfig{}.proto("q"), protocmp.Transform()); d != "" {
		t.Errorf("no setting (-want +got):\n%s", d)
	}
}
