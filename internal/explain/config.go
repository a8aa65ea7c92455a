package explain

import (
	"math"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/core/backoff"
	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

var states = map[queuev1.State]workqueue.State{
	queuev1.State_STATE_IDLE: workqueue.Idle, queuev1.State_STATE_READY: workqueue.Ready, queuev1.State_STATE_DELAYED: workqueue.Waiting,
	queuev1.State_STATE_PROCESSING: workqueue.Processing, queuev1.State_STATE_DIRTY: workqueue.Dirty, queuev1.State_STATE_DEAD: workqueue.StateDead,
}

var outcomes = map[queuev1.Outcome]workqueue.Outcome{
	queuev1.Outcome_OUTCOME_DONE: workqueue.Done, queuev1.Outcome_OUTCOME_FORGET: workqueue.Forget, queuev1.Outcome_OUTCOME_RETRY_RATE_LIMITED: workqueue.Retry,
	queuev1.Outcome_OUTCOME_RETRY_AFTER: workqueue.After, queuev1.Outcome_OUTCOME_RELEASE: workqueue.Release, queuev1.Outcome_OUTCOME_DEAD: workqueue.Dead,
}

// config is what a queue's configuration says of when keys run. What cannot be read of it is left
// at its default: a later server may know more.
func config(in *queuev1.QueueConfig) workqueue.Config {
	cfg := workqueue.Config{
		MaxRetries: int(min(max(in.GetMaxRetries(), 0), math.MaxInt32)), MaxDeliveries: int(in.GetMaxDeliveries()),
		LeaseFor: span(in.GetLeaseDuration()), MaxLease: span(in.GetMaxLease()),
	}
	if l, known := limiter(in.GetRateLimiter(), 1); known {
		cfg.Limiter = &l
	}
	if d := in.GetDispatchLimiter(); d != nil {
		cfg.Dispatch = &workqueue.Rate{QPS: d.GetQps(), Burst: int(min(max(d.GetBurst(), 0), math.MaxInt32))}
	}
	return cfg.WithDefaults()
}

func span(d *durationpb.Duration) time.Duration { return max(d.AsDuration(), 0) }

// deepest is how deep limiters may be nested, as queues take them.
const deepest = 4

// limiter reads a limiter; known is false for one that is not understood.
func limiter(in *queuev1.RateLimiter, depth int) (l backoff.Limiter, known bool) {
	if depth > deepest {
		return l, false
	}
	switch k := in.GetKind().(type) {
	case *queuev1.RateLimiter_Exponential:
		l = backoff.Limiter{Kind: backoff.Exponential, Base: span(k.Exponential.GetBase()), Max: span(k.Exponential.GetMax())}
	case *queuev1.RateLimiter_Bucket:
		l = backoff.Limiter{Kind: backoff.Bucket, Rate: k.Bucket.GetQps(), Burst: int(min(max(k.Bucket.GetBurst(), 0), math.MaxInt32))}
	case *queuev1.RateLimiter_FastSlow:
		l = backoff.Limiter{Kind: backoff.FastSlow, Fast: span(k.FastSlow.GetFast()), Slow: span(k.FastSlow.GetSlow())}
		l.MaxFast = int(min(max(k.FastSlow.GetMaxFastAttempts(), 0), math.MaxInt32))
	case *queuev1.RateLimiter_MaxOf:
		l = backoff.Limiter{Kind: backoff.MaxOf}
		for _, one := range k.MaxOf.GetLimiters() {
			of, known := limiter(one, depth+1)
			if !known {
				return l, false
			}
			l.Of = append(l.Of, of)
		}
	case *queuev1.RateLimiter_MaxWait:
		of, known := limiter(k.MaxWait.GetLimiter(), depth+1)
		if !known {
			return l, false
		}
		l = backoff.Limiter{Kind: backoff.MaxWait, Max: span(k.MaxWait.GetMax()), Of: []backoff.Limiter{of}}
	default:
		return l, false
	}
	return l, l.Validate() == nil
}
