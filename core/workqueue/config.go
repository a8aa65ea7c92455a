package workqueue

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/deltaplane/deltaplane/core/backoff"
)

// Bounds that every engine keeps.
const (
	Levels       = 8 // priorities -4..3 become levels 0..7
	MaxKeyLen    = 1024
	MaxStateLen  = 4096
	MaxReasonLen = 1024
	MaxTraces    = 8
	MaxMarks     = 64 // collections in one key's barrier; of more that a settlement wrote the first by name are kept
	MaxDelay     = 10 * 365 * 24 * time.Hour

	// SweepMax bounds the due and the expired keys that one transaction moves.
	SweepMax = 256

	// MaxPartitions bounds the partitions of a queue.
	MaxPartitions = 64
	// MaxHolders is how many of the last sessions that held a key and did not
	// settle it are kept.
	MaxHolders = 3
	// AgedShare is one of how many leases goes to the key that has waited
	// longest, once that is longer than the queue's aging.
	AgedShare = 8
)

// Priorities a caller may use; 0 is the default.
const (
	MinPriority = -4
	MaxPriority = 3
)

// Level is the ready list of a priority, clamped to what exists.
func Level(priority int) uint8 {
	return uint8(min(max(priority, MinPriority), MaxPriority) - MinPriority)
}

// Priority is the priority of a level.
func Priority(level uint8) int { return int(level) + MinPriority }

// Config is how one queue behaves. Zero values mean defaults.
type Config struct {
	// Limiter gives the delay of rate-limited adds. Default: client-go's
	// controller limiter.
	Limiter *backoff.Limiter `json:"limiter,omitempty"`
	// LeaseFor is the lease time when a worker asks for none, 1 s to 1 h.
	// Default 30 s.
	LeaseFor time.Duration `json:"lease_for,omitempty"`
	// MaxLease is the longest lease: a Take or an OpExtend that asks for more
	// gets this. LeaseFor to 1 h. Default: LeaseFor.
	MaxLease time.Duration `json:"max_lease,omitempty"`
	// BarrierRetention is how long an idle key keeps its barrier. Default 5 min.
	BarrierRetention time.Duration `json:"barrier_retention,omitempty"`
	// Partitions is fixed when the queue is created, 1 to [MaxPartitions].
	// Default 1.
	Partitions int `json:"partitions,omitempty"`
	// MaxRetries is how many rate-limited retries a key gets before it is dead.
	// A limited add beyond it is no retry either: a key that nobody holds is
	// dead at once, one that is held once it is settled as Done. Zero: any number.
	MaxRetries int `json:"max_retries,omitempty"`
	// MaxDeliveries is how many leases of a key may end without a settlement
	// before it is dead, unless it was added meanwhile. Zero: any number.
	MaxDeliveries int `json:"max_deliveries,omitempty"`
	// AbsorbDelays is controller-runtime's way: an immediate add takes a
	// pending delay away, and a key that waits takes no delay.
	// Otherwise a pending delay stays (as in client-go).
	AbsorbDelays bool `json:"absorb_delays,omitempty"`
	// ReserveOnce makes a limited add free while a delay that the limiter gave
	// the key is pending. Otherwise every call is charged.
	ReserveOnce bool `json:"reserve_once,omitempty"`
	// Aging is how long a key waits before every [AgedShare]th lease is its,
	// whatever its priority. Default 30 s.
	Aging time.Duration `json:"aging,omitempty"`
	// Dispatch bounds how fast keys are handed out; nil for no bound.
	Dispatch *Rate `json:"dispatch,omitempty"`
	// Durability is when a transaction counts as done. Default Memory.
	Durability Durability `json:"durability,omitempty"`
	// Replicas is what Replicated waits for. Default 1.
	Replicas int `json:"replicas,omitempty"`
	// MaxProcessing is how long after its start a lease can be extended to;
	// zero for without end.
	MaxProcessing time.Duration `json:"max_processing,omitempty"`
	// Backoff is how the queue's back-off entries grow.
	Backoff BackoffConfig `json:"backoff,omitzero"`
}

// Rate is a token bucket: QPS tokens per second, Burst at most at once.
type Rate struct {
	QPS   float64 `json:"qps"`
	Burst int     `json:"burst"`
}

// Durability is when a transaction counts as done.
type Durability uint8

// The durabilities.
const (
	Memory     Durability = iota // when the store has it
	Fsync                        // when it is on the store's disk
	Replicated                   // when Replicas replicas have it
)

// BackoffConfig is flowcontrol.Backoff's (docs/rules.md, "Queue: back-off entries").
type BackoffConfig struct {
	Initial     time.Duration `json:"initial,omitempty"`      // default 10 s
	Max         time.Duration `json:"max,omitempty"`          // default 5 min
	Jitter      float64       `json:"jitter,omitempty"`       // 0 to 1, default none
	ExpireAfter time.Duration `json:"expire_after,omitempty"` // default twice Max
}

// Growth is the configuration, defaults filled in, in the store's units.
func (b BackoffConfig) Growth() backoff.Growth {
	return backoff.Growth{
		Initial: b.Initial.Microseconds(), Max: b.Max.Microseconds(),
		ExpireAfter: b.ExpireAfter.Microseconds(), Jitter: b.Jitter,
	}
}

// WithDefaults fills in every unset field.
func (c Config) WithDefaults() Config {
	if c.Limiter == nil {
		c.Limiter = new(backoff.Controller())
	}
	c.LeaseFor = cmp.Or(c.LeaseFor, 30*time.Second)
	c.MaxLease = cmp.Or(c.MaxLease, c.LeaseFor)
	c.BarrierRetention = cmp.Or(c.BarrierRetention, 5*time.Minute)
	c.Partitions = cmp.Or(c.Partitions, 1)
	c.Aging = cmp.Or(c.Aging, 30*time.Second)
	if c.Durability == Replicated {
		c.Replicas = cmp.Or(c.Replicas, 1)
	}
	c.Backoff.Initial = cmp.Or(c.Backoff.Initial, 10*time.Second)
	c.Backoff.Max = cmp.Or(c.Backoff.Max, 5*time.Minute)
	c.Backoff.ExpireAfter = cmp.Or(c.Backoff.ExpireAfter, 2*c.Backoff.Max)
	return c
}

// Capped is a lease time in microseconds as it is granted: LeaseFor where zero
// is asked for, at most MaxLease. Defaults must be filled in.
func (c Config) Capped(us int64) int64 {
	return min(cmp.Or(us, c.LeaseFor.Microseconds()), c.MaxLease.Microseconds())
}

// A FieldError is what is wrong with one field of a [Config].
type FieldError struct {
	Field string // in the contract's spelling
	Err   error
}

// Error is the field and what is wrong with it.
func (f *FieldError) Error() string { return f.Field + ": " + f.Err.Error() }

// Unwrap returns the cause.
func (f *FieldError) Unwrap() error { return f.Err }

// Validate reports every fault, each a [FieldError], joined.
func (c Config) Validate() error {
	var errs []error
	bad := func(cond bool, field, format string, args ...any) {
		if cond {
			errs = append(errs, &FieldError{field, fmt.Errorf(format, args...)})
		}
	}
	if c.Limiter != nil {
		if err := c.Limiter.Validate(); err != nil {
			errs = append(errs, &FieldError{"rate_limiter", err})
		}
	}
	bad(c.LeaseFor != 0 && (c.LeaseFor < time.Second || c.LeaseFor > time.Hour), "lease_duration", "%v is not between 1 s and 1 h", c.LeaseFor)
	least := c.WithDefaults().LeaseFor
	bad(c.MaxLease != 0 && (c.MaxLease < least || c.MaxLease > time.Hour), "max_lease", "%v is not between the lease duration, %v, and 1 h", c.MaxLease, least)
	bad(c.BarrierRetention < 0 || c.BarrierRetention > 24*time.Hour, "barrier_retention", "%v is not between 0 and 24 h", c.BarrierRetention)
	bad(c.MaxRetries < 0 || c.MaxRetries > 1<<30, "max_retries", "%d is not between 0 (any number) and 2^30", c.MaxRetries)
	bad(c.MaxDeliveries < 0 || c.MaxDeliveries > math.MaxUint16, "max_deliveries", "%d is not between 0 (any number) and 65,535", c.MaxDeliveries)
	bad(c.Partitions < 0 || c.Partitions > MaxPartitions, "partitions", "%d is not between 1 and %d", c.Partitions, MaxPartitions)
	bad(c.Aging < 0 || c.Aging > MaxDelay, "aging", "%v is not between 0 and 10 years", c.Aging)
	if d := c.Dispatch; d != nil {
		bad(!(d.QPS > 0) || math.IsInf(d.QPS, 0), "dispatch_limiter.qps", "%v is not above zero", d.QPS)
		bad(d.QPS > 0 && (d.QPS < 1e-6 || d.QPS > 1e6), "dispatch_limiter.qps", "%v is not between one in a million seconds and a million a second", d.QPS)
		bad(d.Burst < 1 || d.Burst > 1<<30, "dispatch_limiter.burst", "%d is not between 1 and 2^30", d.Burst)
	}
	bad(c.Durability > Replicated, "durability", "%d is not known", c.Durability)
	bad(c.Durability != Replicated && c.Replicas != 0, "replicas", "%d is set without DURABILITY_REPLICATED", c.Replicas)
	bad(c.Replicas < 0 || c.Replicas > 10, "replicas", "%d is not between 1 and 10", c.Replicas)
	bad(c.MaxProcessing < 0 || c.MaxProcessing > 7*24*time.Hour, "max_processing", "%v is not between 0 and 7 days", c.MaxProcessing)
	bad(c.MaxProcessing > 0 && c.MaxProcessing < time.Second, "max_processing", "%v is below 1 s", c.MaxProcessing)
	b := c.Backoff
	bad(b.Initial < 0 || b.Initial > MaxDelay, "backoff.initial", "%v is not between 0 and 10 years", b.Initial)
	bad(b.Max < 0 || b.Max > MaxDelay, "backoff.max", "%v is not between 0 and 10 years", b.Max)
	bad(!(b.Jitter >= 0 && b.Jitter <= 1), "backoff.jitter_factor", "%v is not between 0 and 1", b.Jitter)
	bad(b.ExpireAfter < 0 || b.ExpireAfter > 2*MaxDelay, "backoff.expire_after", "%v is not between 0 and 20 years", b.ExpireAfter)
	return errors.Join(errs...)
}
