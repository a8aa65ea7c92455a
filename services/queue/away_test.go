package queue_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
)

func TestAddsThatAreFreeLeaveTheBucketsFull(t *testing.T) {
	t.Parallel()
	queuetest.Partitioned(t, func(t *testing.T, r *queuetest.Rig) {
		r.Make(t, r.Changed(t, func(c *queuev1.QueueConfig) {
			c.ReserveOnce = true
			c.RateLimiter = &queuev1.RateLimiter{Kind: &queuev1.RateLimiter_MaxOf{MaxOf: &queuev1.MaxOfLimiter{Limiters: []*queuev1.RateLimiter{
				{Kind: &queuev1.RateLimiter_Exponential{Exponential: &queuev1.ExponentialLimiter{Base: durationpb.New(time.Hour), Max: durationpb.New(time.Hour)}}},
				{Kind: &queuev1.RateLimiter_Bucket{Bucket: &queuev1.BucketLimiter{Qps: .01, Burst: 50}}},
			}}}}
		}))
		p := r.OpenProduce(t, "p")
		limited := func(keys ...string) (due []time.Duration) {
			var ops []*queuev1.ProduceOp
			for _, k := range keys {
				ops = append(ops, &queuev1.ProduceOp{Key: k, Kind: queuev1.ProduceKind_PRODUCE_KIND_ADD_RATE_LIMITED})
			}
			for _, d := range p.Do(ops...).GetDetails() {
				due = append(due, time.Until(d.GetReadyAt().AsTime()))
			}
			return due
		}
		storm := queuetest.Jobs(16) // of every partition
		limited(storm...)
		for range 20 {
			limited(storm...)
		}
		for _, in := range limited("fresh-1", "fresh-2", "fresh-3", "fresh-4", "fresh-5", "fresh-6") {
			if in > 61*time.Minute {
				t.Errorf("due in %v, want the hour of the exponential limiter: 22 of 50 tokens are spent", in)
			}
		}
	})
}
