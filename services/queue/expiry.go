package queue

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
	// leastExpiry is the shortest [Config.ExpireAfter]: some times as long as a use may
	// take to be noted.
	leastExpiry = time.Minute
	// mostWatch is for how long at most a server must itself see that a queue is not
	// used before it ends it: after an outage, or a step of the store's clock, whoever
	// uses the queue has had the time to say so.
	mostWatch = 5 * time.Minute
	// mostSweep is how often at least all queues are looked at.
	mostSweep = 5 * time.Minute
)

// keep has a queue kept by a stream until release is called.
func (s *Service) keep(l *lines) {
	l.streams.Add(1)
	if !l.usedWithin(engine.UseEvery) {
		select {
		case s.kept <- struct{}{}:
		default:
		}
	}
}

// release ends what keep began.
func (l *lines) release() { l.streams.Add(-1) }

func (l *lines) usedWithin(d time.Duration) bool {
	return time.Since(time.Unix(0, l.used.Load())) < d
}

// keepQueues has the store know of queues that streams are open on, where their
// turns do not tell: a worker without credit, a producer that adds nothing.
func (s *Service) keepQueues(ctx context.Context) error {
	ticker := time.NewTicker(engine.UseEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-s.kept:
		}
		for _, l := range s.inUse() {
			if l.streams.Load() == 0 || l.usedWithin(engine.UseEvery) {
				continue
			}
			at := time.Now()
			switch err := s.engine.Keep(ctx, l.name); {
			case err == nil:
				l.used.Store(at.UnixNano())
			case errors.Is(err, engine.ErrNoQueue):
				l.lookNow() // its next turn finds out why
			}
		}
	}
}

// inUse are the queues that have dispatchers here.
func (s *Service) inUse() []*lines {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*lines, 0, len(s.queues))
	for _, l := range s.queues {
		all = append(all, l)
	}
	return all
}

// sighting is a queue that was seen to be empty and unused.
type sighting struct {
	mark  string
	since time.Time
}

// expiry ends queues that nobody uses. It is used by one goroutine.
type expiry struct {
	s          *Service
	after      time.Duration
	seen       map[string]sighting
	generation string // of the store, in which they were seen
}

func (s *Service) expireQueues(ctx context.Context) error {
	if s.cfg.ExpireAfter == 0 {
		return nil
	}
	x := &expiry{s: s, after: s.cfg.ExpireAfter, seen: map[string]sighting{}}
	ticker := time.NewTicker(min(s.cfg.ExpireAfter/4, mostSweep))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-ticker.C:
			if err := x.sweep(ctx, now); err != nil && ctx.Err() == nil {
				s.log.LogAttrs(ctx, slog.LevelWarn, "queues that nobody uses were not all looked for", telemetry.Err(err))
			}
		}
	}
}

// sweep looks at every queue of the store and ends those that have been unused
// for long enough by the store's clock, and by this server's since it was seen.
func (x *expiry) sweep(ctx context.Context, now time.Time) error {
	names, err := x.s.engine.Names(ctx)
	if err != nil {
		return err
	}
	if g := x.s.engine.Generation(); g != x.generation {
		clear(x.seen)
		x.generation = g
	}
	was := x.seen
	x.seen = make(map[string]sighting, len(was))
	for _, name := range names {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if _, declared := x.s.declared(name); declared {
			continue
		}
		idle, failed := x.s.engine.Idle(ctx, name)
		if failed != nil || !idle.Empty {
			if !errors.Is(failed, engine.ErrNoQueue) {
				err = cmp.Or(err, failed)
			}
			continue
		}
		at := was[name]
		if at.mark != idle.Mark {
			at = sighting{idle.Mark, now}
		}
		if idle.For < x.after || now.Sub(at.since) < min(x.after, mostWatch) {
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
func (x *expiry) end(ctx context.Context, name string, idle engine.Idle) error {
	l, here := x.s.known(name)
	if here && l.streams.Load() > 0 { // the store has not heard of it yet
		return nil
	}
	if err := x.s.engine.Expire(ctx, name, idle); err != nil {
		return err
	}
	x.s.metrics.unused.Inc()
	x.s.log.LogAttrs(ctx, slog.LevelInfo, "queue was deleted: nobody used it",
		slog.String(telemetry.KeyQueue, name), slog.Duration(telemetry.KeyDuration, idle.For))
	if here {
		x.s.drop(l, fmt.Errorf("%w: %q, which nobody used for %v", engine.ErrDeleted, name, idle.For.Round(time.Second)))
	}
	return nil
}
