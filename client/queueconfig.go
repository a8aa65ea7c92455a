package client

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// QueueConfig is how a queue behaves. Zero values mean defaults, which are client-go's where
// client-go has the same.
type QueueConfig struct {
	// RateLimiter is that of AddRateLimited. Default: the longer of 5 ms doubling to 1000 s for each
	// key and a bucket of 10 per second with a burst of 100.
	RateLimiter RateLimiter
	// Partitions are 1 to 64, fixed when the queue is created. Default 1. What holds for a key does
	// not depend on them; order, priorities and aging hold inside a partition.
	Partitions int
	// Lease is how long leases are when a worker asks for none. Default 30 s.
	Lease time.Duration
	// MaxLease is the longest lease, at most 1 h. Default Lease. Nothing is handed out for as long
	// after a store has lost data.
	MaxLease time.Duration
	// MaxProcessing is how long one lease may be extended, counted from its start. Default: without
	// end.
	MaxProcessing time.Duration
	// MaxRetries is how many rate-limited retries a key has before it is dead. Default: any number.
	MaxRetries int64
	// MaxDeliveries is how many leases of a key may end without a settlement before it is dead.
	// Default: any number.
	MaxDeliveries int
	// BarrierRetention is how long a barrier is kept after its key is done. Default 5 min.
	BarrierRetention time.Duration
	// AbsorbDelays makes an immediate add take the key's pending delay away, and a key that waits
	// already take none, as in controller-runtime.
	AbsorbDelays bool
	// ReserveOnce makes a rate-limited add free while a rate-limited delay of the key is pending.
	ReserveOnce bool
	// Aging is how long a key waits before every 8th lease goes to the oldest, whatever its priority.
	// Default 30 s.
	Aging time.Duration
	// DispatchQPS and DispatchBurst bound how fast keys are handed out. Default: as fast as workers
	// take them.
	DispatchQPS   float64
	DispatchBurst int64
	// Durability is when an answer may be given, and Replicas how many of them DurabilityReplicated
	// waits for. Default: when the store has it in memory.
	Durability Durability
	Replicas   int
	// Backoff is how the queue's back-off entries grow.
	Backoff BackoffConfig
}

// BackoffConfig is how entries of a [Backoff] grow. Zero values mean defaults.
type BackoffConfig struct {
	// Initial is the first delay, which Max does not cap. Default 10 s.
	Initial time.Duration
	// Max is the longest delay. Default 5 min.
	Max time.Duration
	// Jitter is the fraction of the delay before that every step adds at most, at random; 0 to 1.
	Jitter float64
	// ExpireAfter is how long an entry is kept that is not moved. Default twice Max.
	ExpireAfter time.Duration
}

// Durability is when a queue answers.
type Durability int32

// The durabilities.
const (
	// DurabilityMemory: when the store has it.
	DurabilityMemory = Durability(queuev1.Durability_DURABILITY_MEMORY)
	// DurabilityFsync: when it is on the store's disk.
	DurabilityFsync = Durability(queuev1.Durability_DURABILITY_FSYNC)
	// DurabilityReplicated: when QueueConfig.Replicas replicas of the store have it.
	DurabilityReplicated = Durability(queuev1.Durability_DURABILITY_REPLICATED)
)

// RateLimiter is how long retried keys wait; the zero value is the queue's default. Make others
// with the functions below.
type RateLimiter struct{ wire *queuev1.RateLimiter }

// Exponential waits base, doubling with each failure of the key, at most longest.
func Exponential(base, longest time.Duration) RateLimiter {
	return RateLimiter{&queuev1.RateLimiter{Kind: &queuev1.RateLimiter_Exponential{
		Exponential: &queuev1.ExponentialLimiter{Base: durationpb.New(base), Max: durationpb.New(longest)},
	}}}
}

// FastSlow waits fast for the first attempts of a key, then slow.
func FastSlow(fast, slow time.Duration, attempts int64) RateLimiter {
	return RateLimiter{&queuev1.RateLimiter{Kind: &queuev1.RateLimiter_FastSlow{
		FastSlow: &queuev1.FastSlowLimiter{Fast: durationpb.New(fast), Slow: durationpb.New(slow), MaxFastAttempts: attempts},
	}}}
}

// Bucket is one token bucket for the whole queue.
func Bucket(qps float64, burst int64) RateLimiter {
	return RateLimiter{&queuev1.RateLimiter{Kind: &queuev1.RateLimiter_Bucket{Bucket: &queuev1.BucketLimiter{Qps: qps, Burst: burst}}}}
}

// MaxOf asks several limiters and takes the longest delay.
func MaxOf(limiters ...RateLimiter) RateLimiter {
	all := &queuev1.MaxOfLimiter{}
	for _, l := range limiters {
		all.Limiters = append(all.Limiters, l.wire)
	}
	return RateLimiter{&queuev1.RateLimiter{Kind: &queuev1.RateLimiter_MaxOf{MaxOf: all}}}
}

// MaxWait caps the delays of another limiter.
func MaxWait(l RateLimiter, longest time.Duration) RateLimiter {
	return RateLimiter{&queuev1.RateLimiter{Kind: &queuev1.RateLimiter_MaxWait{
		MaxWait: &queuev1.MaxWaitLimiter{Limiter: l.wire, Max: durationpb.New(longest)},
	}}}
}

func (c QueueConfig) proto(name string) *queuev1.QueueConfig {
	out := &queuev1.QueueConfig{
		Name: name, RateLimiter: c.RateLimiter.wire, LeaseDuration: duration(c.Lease), Partitions: int32(c.Partitions), //nolint:gosec // the server checks
		BarrierRetention: duration(c.BarrierRetention), MaxRetries: c.MaxRetries, AbsorbDelays: c.AbsorbDelays, ReserveOnce: c.ReserveOnce,
		Aging: duration(c.Aging), Durability: queuev1.Durability(c.Durability), Replicas: int32(c.Replicas), //nolint:gosec // the server checks
		MaxProcessing: duration(c.MaxProcessing), MaxLease: duration(c.MaxLease), MaxDeliveries: int32(c.MaxDeliveries), //nolint:gosec // the server checks
	}
	if c.DispatchQPS != 0 || c.DispatchBurst != 0 {
		out.DispatchLimiter = &queuev1.BucketLimiter{Qps: c.DispatchQPS, Burst: c.DispatchBurst}
	}
	if b := c.Backoff; b != (BackoffConfig{}) {
		out.Backoff = &queuev1.BackoffConfig{Initial: duration(b.Initial), Max: duration(b.Max), JitterFactor: b.Jitter, ExpireAfter: duration(b.ExpireAfter)}
	}
	return out
}
