package workqueue

import (
	"cmp"
	"errors"
	"fmt"
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
	MaxMarks     = 64 // collections in one key's barrier
	MaxDelay     = 10 * 365 * 24 * time.Hour

	// SweepMax bounds the due and the expired keys that one turn moves.
	SweepMax = 256
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
	// controller limiter (RL-06).
	Limiter *backoff.Limiter `json:"limiter,omitempty"`
	// LeaseFor is the lease time when a worker asks for none, 1 s to 1 h.
	// Default 30 s.
	LeaseFor time.Duration `json:"lease_for,omitempty"`
	// BarrierRetention is how long an idle key keeps its barrier. Default 5 min.
	BarrierRetention time.Duration `json:"barrier_retention,omitempty"`
	// Partitions is fixed when the queue is created. Default, and for now
	// the only value, 1.
	Partitions int `json:"partitions,omitempty"`
	// MaxRetries is how many rate-limited retries a key gets before it is dead.
	// Zero: any number.
	MaxRetries int `json:"max_retries,omitempty"`
}

// ErrPartitions is wrapped when a partition count cannot be served.
var ErrPartitions = errors.New("workqueue: partitions other than 1 are not served yet")

// WithDefaults fills in every unset field.
func (c Config) WithDefaults() Config {
	if c.Limiter == nil {
		c.Limiter = new(backoff.Controller())
	}
	c.LeaseFor = cmp.Or(c.LeaseFor, 30*time.Second)
	c.BarrierRetention = cmp.Or(c.BarrierRetention, 5*time.Minute)
	c.Partitions = cmp.Or(c.Partitions, 1)
	return c
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
	bad(c.BarrierRetention < 0 || c.BarrierRetention > 24*time.Hour, "barrier_retention", "%v is not between 0 and 24 h", c.BarrierRetention)
	bad(c.MaxRetries < 0 || c.MaxRetries > 1<<30, "max_retries", "%d is negative or absurd", c.MaxRetries)
	bad(c.Partitions < 0, "partitions", "%d is negative", c.Partitions)
	bad(c.Partitions > 1, "partitions", "%d: %w", c.Partitions, ErrPartitions)
	return errors.Join(errs...)
}
