// Package attempt holds the wait between attempts: one that grows with each failure, is spread at
// random, and ends with a context. It waits by the timers of the standard library, which in a
// testing/synctest bubble are the test's.
package attempt

import (
	"context"
	"math/rand/v2"
	"time"
)

// Wait is the wait before the next attempt: First, doubled by each attempt, at most Most. It is for
// one goroutine.
type Wait struct {
	First, Most time.Duration
	// Low and High are the fractions of the delay between which the wait is drawn: 0.5 and 1.5
	// keep its mean, 0 and 1 spread the attempts of very many. When both are zero it is the delay.
	Low, High float64

	attempts int
}

// Attempts is how many waits there were since the last Reset.
func (w *Wait) Attempts() int { return w.attempts }

// Reset begins again with First, after an attempt that went well.
func (w *Wait) Reset() { w.attempts = 0 }

// Next returns the next wait and counts it.
func (w *Wait) Next() time.Duration {
	d := w.Most
	if w.attempts < 32 && w.First<<w.attempts>>w.attempts == w.First {
		d = min(w.First<<w.attempts, w.Most)
	}
	w.attempts++
	if w.Low == 0 && w.High == 0 {
		return d
	}
	fraction := w.Low + (w.High-w.Low)*rand.Float64() //nolint:gosec // jitter needs no secrecy
	return time.Duration(fraction * float64(d))
}

// Sleep waits for the next delay, at least for atLeast; false when ctx ended first.
func (w *Wait) Sleep(ctx context.Context, atLeast time.Duration) bool {
	return Sleep(ctx, max(w.Next(), atLeast))
}

// Sleep waits for d, or returns false when ctx ended first.
func Sleep(ctx context.Context, d time.Duration) bool { return SleepUntil(ctx, d, nil) }

// SleepUntil is Sleep that wake ends early.
func SleepUntil(ctx context.Context, d time.Duration, wake <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-wake:
		return true
	case <-timer.C:
		return true
	}
}
