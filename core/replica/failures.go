package replica

import (
	"slices"
	"time"
)

// Failures is how often children have failed since the last success. The zero
// value is none.
type Failures struct {
	Count int32
	Last  time.Time // of the last failure; zero when Count is zero
}

// Add takes newly finished children into account, by the times they finished. A
// success resets what failed before it or at the same time.
func (f Failures) Add(succeeded, failed []time.Time) Failures {
	if len(failed) == 0 {
		if len(succeeded) == 0 {
			return f
		}
		return Failures{}
	}
	if len(succeeded) == 0 {
		f.Count += int32(len(failed)) //nolint:gosec // at most the pods of one Job
		f.Last = slices.MaxFunc(failed, time.Time.Compare)
		return f
	}
	f = Failures{}
	success := slices.MaxFunc(succeeded, time.Time.Compare)
	for _, t := range failed {
		if !t.After(success) {
			continue
		}
		f.Count++
		if t.After(f.Last) {
			f.Last = t
		}
	}
	return f
}

// Wait is how long from now no replacement may be created: base doubled with
// each failure after the first and capped, counted from the last failure.
func (f Failures) Wait(now time.Time, base, limit time.Duration) time.Duration {
	if f.Count <= 0 {
		return 0
	}
	d := base
	for i := int32(1); i < f.Count && d < limit; i++ {
		d *= 2
	}
	return max(0, min(d, limit)-now.Sub(f.Last))
}
