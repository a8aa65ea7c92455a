package pleg

import (
	"errors"
	"fmt"
	"time"
)

// ErrNeverListed says that no list of the runtime has succeeded yet.
var ErrNeverListed = errors.New("pleg: the runtime was never listed")

// StaleError says that the runtime has not been listed for too long.
type StaleError struct {
	Since, Limit time.Duration
}

func (e *StaleError) Error() string {
	return fmt.Sprintf("pleg: the runtime was last listed %v ago, more than %v", e.Since.Round(time.Millisecond), e.Limit)
}

// Pace is how often to list, and how old a list may be.
type Pace struct {
	// Period and Threshold hold while nothing but lists tells of changes.
	Period, Threshold time.Duration
	// SlowPeriod and SlowThreshold hold while an event stream does.
	SlowPeriod, SlowThreshold time.Duration
}

// Standard is Kubernetes' pace: 1 s and 3 min, 5 min and 10 min.
func Standard() Pace {
	return Pace{Period: time.Second, Threshold: 3 * time.Minute, SlowPeriod: 5 * time.Minute, SlowThreshold: 10 * time.Minute}
}

// Validate reports every fault of p together.
func (p Pace) Validate() error {
	var faults []error
	for _, f := range []struct {
		name              string
		period, threshold time.Duration
	}{{"", p.Period, p.Threshold}, {"slow ", p.SlowPeriod, p.SlowThreshold}} {
		if f.period <= 0 {
			faults = append(faults, fmt.Errorf("pleg: the %speriod is not positive: %v", f.name, f.period))
		}
		if f.threshold <= f.period {
			faults = append(faults, fmt.Errorf("pleg: the %sthreshold %v is not longer than the period %v", f.name, f.threshold, f.period))
		}
	}
	return errors.Join(faults...)
}

// Next is the pause after a list.
func (p Pace) Next(streamed bool) time.Duration {
	if streamed {
		return p.SlowPeriod
	}
	return p.Period
}

// Healthy judges by the start of the last list that succeeded. While a stream
// tells of changes, streamed is true; when it stopped doing so, since is when
// (zero for never), and the lists have the shorter threshold to take over: the
// moment a stream breaks, a list that was in time a moment before is not late.
func (p Pace) Healthy(now, listed time.Time, streamed bool, since time.Time) error {
	if listed.IsZero() {
		return ErrNeverListed
	}
	age := now.Sub(listed)
	switch {
	case age > p.SlowThreshold:
		return &StaleError{Since: age, Limit: p.SlowThreshold}
	case !streamed && age > p.Threshold && now.Sub(since) > p.Threshold:
		return &StaleError{Since: age, Limit: p.Threshold}
	}
	return nil
}
