package client

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
)

// backOff is the wait between attempts: 50 ms doubling to 2 s, with jitter. The
// zero value is ready.
type backOff struct{ n int }

func (b *backOff) reset() { b.n = 0 }

func (b *backOff) next() time.Duration {
	d := min(50*time.Millisecond<<min(b.n, 10), 2*time.Second)
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

// complaint logs what goes on failing: when it begins, when the reason changes,
// and once a minute. The zero value is ready.
type complaint struct {
	last string
	at   time.Time
}

func (c *complaint) log(log *slog.Logger, msg string, err error, attrs ...any) {
	if err.Error() == c.last && time.Since(c.at) < time.Minute {
		return
	}
	c.last, c.at = err.Error(), time.Now()
	level := slog.LevelWarn
	// While everything starts, in whatever order, these are to be expected.
	for _, expected := range []error{ErrNotSynced, ErrCollectionNotFound, ErrQueueNotFound} {
		if errors.Is(wrap(err, ""), expected) {
			level = slog.LevelInfo
		}
	}
	//nolint:forbidigo,sloglint // no trace belongs to it, and the callers' messages are constants
	log.Log(context.Background(), level, msg, append(attrs, slog.Any("error", err))...)
}

func (c *complaint) over() { *c = complaint{} }
