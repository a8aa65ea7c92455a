package podsync

import (
	"errors"
	"time"
)

// ErrNetworkNotReady says that the runtime has no network for pods yet. A sync
// that fails with it is tried again soon, whatever else failed.
var ErrNetworkNotReady = errors.New("network is not ready")

// Backoff is an error that is over at a time, such as a container that must not be restarted yet.
type Backoff interface {
	error
	// BackoffUntil is when another try may succeed.
	BackoffUntil() time.Time
}

// BackoffUntil is the earliest expiry that an error names anywhere in its tree.
func BackoffUntil(err error) (until time.Time, ok bool) {
	if err == nil {
		return until, false
	}
	earlier := func(at time.Time) {
		if !ok || at.Before(until) {
			until, ok = at, true
		}
	}
	if b, is := err.(Backoff); is { //nolint:errorlint // the walk below visits every error itself: As would find the first only
		earlier(b.BackoffUntil())
	}
	var below []error
	switch u := err.(type) { //nolint:errorlint // as above
	case interface{ Unwrap() error }:
		below = []error{u.Unwrap()}
	case interface{ Unwrap() []error }:
		below = u.Unwrap()
	}
	for _, e := range below {
		if at, is := BackoffUntil(e); is {
			earlier(at)
		}
	}
	return until, ok
}

// Waits are the times between syncs of one pod.
type Waits struct {
	// Resync follows a sync that went well, Error one that failed, and Transient one
	// that found no network.
	Resync, Error, Transient time.Duration
}

// jitterShare is how much of a wait is added at random, at most.
const jitterShare = 0.5

// After is how long to wait after a sync that ended at now with err. moved says that the pod's
// state changed: then the next step is due at once. random is uniform in [0, 1); it adds up to
// half of the wait, so that pods of one start drift apart.
//
// An error that names a back-off's expiry is waited for until then, at most for
// Resync, and nothing is added at random: expiries differ already, and a
// restart is never late by chance. That is on purpose unlike the kubelet.
func (w Waits) After(err error, moved bool, now time.Time, random float64) time.Duration {
	jitter := func(d time.Duration) time.Duration { return d + time.Duration(random*jitterShare*float64(d)) }
	switch {
	case moved:
		return 0
	case err == nil:
		return jitter(w.Resync)
	case errors.Is(err, ErrNetworkNotReady):
		return jitter(w.Transient)
	}
	if until, ok := BackoffUntil(err); ok {
		return min(max(until.Sub(now), 0), w.Resync)
	}
	return jitter(min(w.Error, w.Resync))
}
