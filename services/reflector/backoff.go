package reflector

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Backoff is the wait after failures of a list or a watch: Base, doubled by each failure, at most
// Cap, and up to Jitter times longer. The zero value is 0.8 s, 30 s and 1. It starts again only
// after the source has been well for longer than Cap; client-go starts again every two minutes,
// also during one outage.
type Backoff struct {
	Base, Cap time.Duration
	// Jitter 1 makes a delay of d last between d and 2d; negative means none.
	Jitter float64
}

func (b Backoff) withDefaults() Backoff {
	b.Base = cmp.Or(b.Base, 800*time.Millisecond)
	b.Cap = cmp.Or(b.Cap, 30*time.Second)
	b.Jitter = cmp.Or(b.Jitter, 1)
	return b
}

func (b Backoff) validate() error {
	if b.Base < 0 || b.Cap < b.Base || math.IsNaN(b.Jitter) || b.Jitter > 10 {
		return fmt.Errorf("reflector: backoff from %v to %v with jitter %v: want 0 <= base <= cap, jitter at most 10", b.Base, b.Cap, b.Jitter)
	}
	return nil
}

// delay is the wait after n failures before this one; random is in [0, 1).
func (b Backoff) delay(n int, random float64) time.Duration {
	d := b.Cap
	if n < 32 {
		d = min(b.Base<<n, b.Cap)
	}
	return d + time.Duration(max(b.Jitter, 0)*random*float64(d))
}

// retry counts failures and waits.
type retry struct {
	Backoff
	failures int
	well     time.Time // since when it was seen to be well; zero while failing
}

// succeed notes that the source is seen to be well; it forgets the failures only after it has been
// so for longer than the cap.
func (r *retry) succeed(now time.Time) {
	if r.well.IsZero() {
		r.well = now
	}
	if now.Sub(r.well) > r.Cap {
		r.failures = 0
	}
}

// fail returns how long to wait. What passed since the last success does not count: a source that
// answers lists and lets watches wait until they time out is not well.
func (r *retry) fail(atLeast time.Duration) time.Duration {
	r.well = time.Time{}
	d := r.delay(r.failures, rand.Float64())
	r.failures++
	return max(d, atLeast)
}
