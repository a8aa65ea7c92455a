package explain

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/core/backoff"
	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

func TestAConfigurationIsReadAsTheQueueReadsIt(t *testing.T) {
	t.Parallel()
	exponential := backoff.Limiter{Kind: backoff.Exponential, Base: time.Second, Max: time.Minute}
	bucket := backoff.Limiter{Kind: backoff.Bucket, Rate: 10, Burst: 100}
	fast := backoff.Limiter{Kind: backoff.FastSlow, Fast: time.Millisecond, Slow: time.Second, MaxFast: 3}
	for name, l := range map[string]backoff.Limiter{
		"none given":  backoff.PriorityQueue(),
		"exponential": exponential, "bucket": bucket, "fast and slow": fast,
		"the longest": {Kind: backoff.MaxOf, Of: []backoff.Limiter{exponential, bucket}},
		"bounded":     {Kind: backoff.MaxWait, Max: time.Second, Of: []backoff.Limiter{fast}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := workqueue.Config{
				Limiter: &l, MaxRetries: 7, MaxDeliveries: 3, LeaseFor: 9 * time.Second, MaxLease: time.Minute, Dispatch: &workqueue.Rate{QPS: 0.5, Burst: 2},
			}.WithDefaults()
			got := config(wire.ConfigOut("q", want))
			for what, pair := range map[string][2]any{
				"limiter": {want.Limiter, got.Limiter}, "dispatch limiter": {want.Dispatch, got.Dispatch},
				"bounds": {
					[]any{want.MaxRetries, want.MaxDeliveries, want.LeaseFor, want.MaxLease},
					[]any{got.MaxRetries, got.MaxDeliveries, got.LeaseFor, got.MaxLease},
				},
			} {
				if diff := cmp.Diff(pair[0], pair[1]); diff != "" {
					t.Errorf("%s (-want +got):\n%s", what, diff)
				}
			}
		})
	}
}

func TestALimiterThatIsNotUnderstoodIsLeftAtItsDefault(t *testing.T) {
	t.Parallel()
	nested := &queuev1.RateLimiter{Kind: &queuev1.RateLimiter_Exponential{Exponential: &queuev1.ExponentialLimiter{Base: durationpb.New(time.Second)}}}
	for range 5 {
		nested = &queuev1.RateLimiter{Kind: &queuev1.RateLimiter_MaxOf{MaxOf: &queuev1.MaxOfLimiter{Limiters: []*queuev1.RateLimiter{nested}}}}
	}
	want := workqueue.Config{}.WithDefaults().Limiter
	for name, in := range map[string]*queuev1.RateLimiter{"of no kind": {}, "too deep": nested} {
		if diff := cmp.Diff(want, config(&queuev1.QueueConfig{RateLimiter: in}).Limiter); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	for i, e := range states {
		if wire.States[e] != i {
			t.Errorf("state %v is read as %v", i, e)
		}
	}
	for i, e := range outcomes {
		if wire.Outcomes[i] != e {
			t.Errorf("outcome %v is read as %v", i, e)
		}
	}
}
