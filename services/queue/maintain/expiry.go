package maintain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

const (
	// MinExpiry is the shortest [Config.ExpireAfter]: some times as long as a use may
	// take to be noted.
	MinExpiry = time.Minute
	// MaxWatch is for how long at most a server must itself see that a queue is not
	// used before it ends it: after an outage, or a step of the store's clock, the users
	// of the queue have had the time to say so.
	MaxWatch = 5 * time.Minute
	// maxSweep is how often at least all queues are looked at.
	maxSweep = 5 * time.Minute
)

// observation is a queue that was seen to be empty and unused.
type observation struct {
	mark  string
	since time.Time
}

// Expiry ends queues that nobody uses. It is used by one goroutine.
type Expiry struct {
	s          *Upkeep
	after      time.Duration
	seen       map[string]observation
	generation string // of the store, in which they were seen
}

// NewExpiry ends queues that were unused for a time.
func NewExpiry(s *Upkeep, after time.Duration) *Expiry {
	return &Expiry{s: s, after: after, seen: map[string]observation{}}
}

// ExpireQueues ends queues that nobody uses until ctx ends, if they are to expire.
func (s *Upkeep) ExpireQueues(ctx context.Context) error {
	if s.ExpireAfter == 0 {
		return nil
	}
	x := NewExpiry(s, s.ExpireAfter)
	ticker := time.NewTicker(min(s.ExpireAfter/4, maxSweep))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-ticker.C:
			if err := x.Sweep(ctx, now); err != nil && ctx.Err() == nil {
				s.Log.LogAttrs(ctx, slog.LevelWarn, "queues that nobody uses were not all looked for", telemetry.Err(err))
			}
		}
	}
}

// Sweep looks at every queue of the store and ends those that have been unused
// for long enough by the store's clock, and by this server's since it was seen.
func (x *Expiry) Sweep(ctx context.Context, now time.Time) error {
	names, err := x.s.Engine.Names(ctx)
	if err != nil {
		return err
	}
	if g := x.s.Engine.Generation(); g != x.generation {
		clear(x.seen)
		x.generation = g
	}
	was := x.seen
	x.seen = make(map[string]observation, len(was))
	for _, name := range names {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if _, declared := x.s.Declared[name]; declared {
			continue
		}
		idle, failed := x.s.Engine.Idle(ctx, name)
		if failed != nil || !idle.Empty {
			if !errors.Is(failed, engine.ErrNoQueue) {
				err = cmp.Or(err, failed)
			}
			continue
		}
		at := was[name]
		if at.mark != idle.Mark {
			at = observation{idle.Mark, now}
		}
		if idle.For < x.after || now.Sub(at.since) < min(x.after, MaxWatch) {
			x.seen[name] = at
			continue
		}
		if failed := x.end(ctx, name, idle); failed != nil && !errors.Is(failed, engine.ErrInUse) && !errors.Is(failed, engine.ErrNoQueue) {
			err = cmp.Or(err, failed)
		}
	}
	return err
}

// end has a queue expire, and what this server runs for it end.
func (x *Expiry) end(ctx context.Context, name string, idle engine.Idle) error {
	l, here := x.s.InUse.Known(name)
	if here && l.Streams.Load() > 0 { // the store does not know yet
		return nil
	}
	if err := x.s.Engine.Expire(ctx, name, idle); err != nil {
		return err
	}
	x.s.Unused.Inc()
	x.s.Log.LogAttrs(ctx, slog.LevelInfo, "queue was deleted: nobody used it",
		slog.String(telemetry.KeyQueue, name), slog.Duration(telemetry.KeyDuration, idle.For))
	if here {
		x.s.InUse.Drop(l, fmt.Errorf("%w: %q, which nobody used for %v", engine.ErrDeleted, name, idle.For.Round(time.Second)))
	}
	return nil
}
