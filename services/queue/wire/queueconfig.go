package wire

import (
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/core/backoff"
	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/rpc"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// ConfigIn reads a configuration. What is wrong with it is all in c afterwards.
func (c *Checks) ConfigIn(field string, in *queuev1.QueueConfig) workqueue.Config {
	const long = workqueue.MaxDelay
	cfg := workqueue.Config{
		Partitions: int(in.GetPartitions()), MaxRetries: clamp(in.GetMaxRetries()), MaxDeliveries: int(in.GetMaxDeliveries()), Replicas: int(in.GetReplicas()),
		AbsorbDelays: in.GetAbsorbDelays(), ReserveOnce: in.GetReserveOnce(),
		LeaseFor:         c.Duration(field+".lease_duration", in.GetLeaseDuration(), time.Hour),
		MaxLease:         c.Duration(field+".max_lease", in.GetMaxLease(), time.Hour),
		BarrierRetention: c.Duration(field+".barrier_retention", in.GetBarrierRetention(), 24*time.Hour),
		Aging:            c.Duration(field+".aging", in.GetAging(), long),
		MaxProcessing:    c.Duration(field+".max_processing", in.GetMaxProcessing(), 7*24*time.Hour),
	}
	if in.GetRateLimiter() != nil {
		cfg.Limiter = new(c.limiterIn(field+".rate_limiter", in.GetRateLimiter(), 1))
	}
	if d := in.GetDispatchLimiter(); d != nil {
		cfg.Dispatch = new(c.rate(field+".dispatch_limiter", d))
	}
	var known bool
	if cfg.Durability, known = durabilities[in.GetDurability()]; !known {
		c.Add(field+".durability", "%d is not known", in.GetDurability())
	}
	if b := in.GetBackoff(); b != nil {
		cfg.Backoff = workqueue.BackoffConfig{
			Initial: c.Duration(field+".backoff.initial", b.GetInitial(), long), Max: c.Duration(field+".backoff.max", b.GetMax(), long),
			Jitter: b.GetJitterFactor(), ExpireAfter: c.Duration(field+".backoff.expire_after", b.GetExpireAfter(), 2*long),
		}
	}
	c.faults(field, cfg.Validate())
	return cfg
}

// faults adds what core finds wrong with a configuration, field by field,
// unless something was found wrong with the field already.
func (c *Checks) faults(field string, err error) {
	switch e := err.(type) { //nolint:errorlint // the tree is walked by hand
	case *workqueue.FieldError:
		at := field + "." + e.Field
		known := func(err error) bool {
			f, ok := errors.AsType[*rpc.FieldError](err)
			return ok && (f.Field == at || strings.HasPrefix(f.Field, at+"."))
		}
		if !slices.ContainsFunc(c.Errs, known) {
			c.Errs = append(c.Errs, rpc.InvalidField(at, e.Err))
		}
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			c.faults(field, one)
		}
	}
}

// rate reads a token bucket that lets something through now and then.
func (c *Checks) rate(field string, in *queuev1.BucketLimiter) workqueue.Rate {
	r := workqueue.Rate{QPS: in.GetQps(), Burst: clamp(in.GetBurst())}
	if !(r.QPS >= 1e-6) || math.IsInf(r.QPS, 0) { // not a number is not
		c.Add(field+".qps", "%v is not a number of at least one in a million seconds", r.QPS)
	}
	c.Count(field+".burst", r.Burst, 1, 1<<30)
	return r
}

// clamp makes an int of a number, also where it has 32 bits.
func clamp(n int64) int { return int(max(min(n, math.MaxInt32), math.MinInt32)) }

var durabilities = map[queuev1.Durability]workqueue.Durability{
	queuev1.Durability_DURABILITY_UNSPECIFIED: workqueue.Memory,
	queuev1.Durability_DURABILITY_MEMORY:      workqueue.Memory,
	queuev1.Durability_DURABILITY_FSYNC:       workqueue.Fsync,
	queuev1.Durability_DURABILITY_REPLICATED:  workqueue.Replicated,
}

func durabilityOut(d workqueue.Durability) queuev1.Durability {
	switch d {
	case workqueue.Fsync:
		return queuev1.Durability_DURABILITY_FSYNC
	case workqueue.Replicated:
		return queuev1.Durability_DURABILITY_REPLICATED
	case workqueue.Memory:
	}
	return queuev1.Durability_DURABILITY_MEMORY
}

// ConfigOut is a configuration with its defaults filled in.
func ConfigOut(name string, c workqueue.Config) *queuev1.QueueConfig {
	out := &queuev1.QueueConfig{
		Name: name, RateLimiter: limiterOut(*c.Limiter), LeaseDuration: durationpb.New(c.LeaseFor), MaxLease: durationpb.New(c.MaxLease),
		Partitions: int32(c.Partitions), BarrierRetention: durationpb.New(c.BarrierRetention), MaxRetries: int64(c.MaxRetries),
		MaxDeliveries: int32(c.MaxDeliveries),
		AbsorbDelays:  c.AbsorbDelays, ReserveOnce: c.ReserveOnce, Aging: durationpb.New(c.Aging),
		Durability: durabilityOut(c.Durability), Replicas: int32(c.Replicas),
		Backoff: &queuev1.BackoffConfig{
			Initial: durationpb.New(c.Backoff.Initial), Max: durationpb.New(c.Backoff.Max),
			JitterFactor: c.Backoff.Jitter, ExpireAfter: durationpb.New(c.Backoff.ExpireAfter),
		},
	}
	if c.Dispatch != nil {
		out.DispatchLimiter = &queuev1.BucketLimiter{Qps: c.Dispatch.QPS, Burst: int64(c.Dispatch.Burst)}
	}
	if c.MaxProcessing > 0 {
		out.MaxProcessing = durationpb.New(c.MaxProcessing)
	}
	return out
}

func limiterOut(l backoff.Limiter) *queuev1.RateLimiter {
	out := &queuev1.RateLimiter{}
	switch l.Kind {
	case backoff.Exponential:
		out.Kind = &queuev1.RateLimiter_Exponential{Exponential: &queuev1.ExponentialLimiter{Base: durationpb.New(l.Base), Max: durationpb.New(l.Max)}}
	case backoff.Bucket:
		out.Kind = &queuev1.RateLimiter_Bucket{Bucket: &queuev1.BucketLimiter{Qps: l.Rate, Burst: int64(l.Burst)}}
	case backoff.FastSlow:
		out.Kind = &queuev1.RateLimiter_FastSlow{FastSlow: &queuev1.FastSlowLimiter{
			Fast: durationpb.New(l.Fast), Slow: durationpb.New(l.Slow), MaxFastAttempts: int64(l.MaxFast),
		}}
	case backoff.MaxOf:
		of := &queuev1.MaxOfLimiter{}
		for _, c := range l.Of {
			of.Limiters = append(of.Limiters, limiterOut(c))
		}
		out.Kind = &queuev1.RateLimiter_MaxOf{MaxOf: of}
	case backoff.MaxWait:
		out.Kind = &queuev1.RateLimiter_MaxWait{MaxWait: &queuev1.MaxWaitLimiter{Limiter: limiterOut(l.Of[0]), Max: durationpb.New(l.Max)}}
	case backoff.None:
	}
	return out
}

const (
	maxLimiterDepth = 4
	maxLimiters     = 8
)

// limiterIn reads a limiter tree; what it means is checked by its Validate.
func (c *Checks) limiterIn(field string, in *queuev1.RateLimiter, depth int) backoff.Limiter {
	if depth > maxLimiterDepth {
		c.Add(field, "deeper than %d limiters", maxLimiterDepth)
		return backoff.Limiter{}
	}
	const limit = workqueue.MaxDelay
	count := func(field string, n int64) int {
		c.Count(field, int(max(min(n, 1<<31), -1<<31)), 0, 1<<30)
		return int(max(min(n, 1<<30), 0))
	}
	switch k := in.GetKind().(type) {
	case *queuev1.RateLimiter_Exponential:
		e := k.Exponential
		l := backoff.Limiter{Kind: backoff.Exponential}
		l.Base = c.Duration(field+".exponential.base", e.GetBase(), limit)
		l.Max = c.Duration(field+".exponential.max", e.GetMax(), limit)
		if l.Max > 0 && l.Base > l.Max {
			c.Add(field+".exponential.max", "%v is below the base, %v", l.Max, l.Base)
		}
		return l
	case *queuev1.RateLimiter_Bucket:
		rate := c.rate(field+".bucket", k.Bucket)
		return backoff.Limiter{Kind: backoff.Bucket, Rate: rate.QPS, Burst: rate.Burst}
	case *queuev1.RateLimiter_FastSlow:
		f := k.FastSlow
		l := backoff.Limiter{Kind: backoff.FastSlow, MaxFast: count(field+".fast_slow.max_fast_attempts", f.GetMaxFastAttempts())}
		l.Fast = c.Duration(field+".fast_slow.fast", f.GetFast(), limit)
		l.Slow = c.Duration(field+".fast_slow.slow", f.GetSlow(), limit)
		return l
	case *queuev1.RateLimiter_MaxOf:
		l := backoff.Limiter{Kind: backoff.MaxOf}
		if c.Count(field+".max_of.limiters", len(k.MaxOf.GetLimiters()), 1, maxLimiters) {
			for i, o := range k.MaxOf.GetLimiters() {
				l.Of = append(l.Of, c.limiterIn(field+".max_of.limiters["+strconv.Itoa(i)+"]", o, depth+1))
			}
		}
		return l
	case *queuev1.RateLimiter_MaxWait:
		l := backoff.Limiter{Kind: backoff.MaxWait, Max: c.Duration(field+".max_wait.max", k.MaxWait.GetMax(), limit)}
		l.Of = []backoff.Limiter{c.limiterIn(field+".max_wait.limiter", k.MaxWait.GetLimiter(), depth+1)}
		return l
	default:
		c.Add(field, "no kind of limiter is set")
		return backoff.Limiter{}
	}
}
