package client

import (
	"context"
	"math/rand/v2"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
)

// backOff is the wait between attempts: 50 ms doubling to 5 s, with jitter. The
// zero value is ready.
type backOff struct{ n int }

func (b *backOff) reset() { b.n = 0 }

func (b *backOff) next() time.Duration {
	d := min(50*time.Millisecond<<min(b.n, 10), 5*time.Second)
	b.n++
	return d/2 + rand.N(d/2+1) //nolint:gosec // jitter needs no secrecy
}

// sleep waits for the next delay, at least for atLeast; false when ctx ended first.
func (b *backOff) sleep(ctx context.Context, atLeast time.Duration) bool {
	return sleep(ctx, max(b.next(), atLeast))
}

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

func duration(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}
