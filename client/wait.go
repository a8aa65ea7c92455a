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

// startUp is how long it is ordinary that something does not exist yet: services and
// their users may start in any order.
const startUp = 30 * time.Second

// complaint logs what goes on failing: when it begins, when the reason changes,
// and once a minute. The zero value is ready.
type complaint struct {
	last  string
	level slog.Level
	began time.Time
	at    time.Time
}

func (c *complaint) log(log *slog.Logger, msg string, err error, attrs ...any) {
	now, level := time.Now(), slog.LevelWarn
	if c.began.IsZero() {
		c.began = now
	}
	for _, expected := range []error{ErrNotSynced, ErrCollectionNotFound, ErrQueueNotFound} {
		if errors.Is(wrap(err, ""), expected) && now.Sub(c.began) < startUp {
			level = slog.LevelInfo
		}
	}
	if err.Error() == c.last && now.Sub(c.at) < time.Minute && level == c.level {
		return
	}
	c.last, c.at, c.level = err.Error(), now, level
	//nolint:forbidigo,sloglint // no trace belongs to it, and the callers' messages are constants
	log.Log(context.Background(), level, msg, append(attrs, slog.Any("error", err))...)
}

func (c *complaint) over() { *c = complaint{} }

// logger is where a configuration without one logs to: who wants silence says so.
func logger(log *slog.Logger) *slog.Logger {
	if log == nil {
		return slog.Default() //nolint:forbidigo // a library's user finds out what fails without being asked for a logger
	}
	return log
}
