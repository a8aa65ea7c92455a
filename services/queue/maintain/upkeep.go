package maintain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/transaction"
)

// Upkeep keeps the store in order for as long as the service runs.
type Upkeep struct {
	Config
	condition *Condition
}

// Config is what upkeep needs.
type Config struct {
	Engine engine.Engine
	Log    *slog.Logger
	// InUse are the queues that have dispatchers here.
	InUse *transaction.Queues
	// Declared are queues that exist from the start, and are made again when the store
	// lost them.
	Declared map[string]workqueue.Config
	// ExpireAfter is how long a queue that is not declared may be empty and unused
	// before it is deleted; zero for ever.
	ExpireAfter time.Duration
	// Unused counts the queues that were deleted.
	Unused prometheus.Counter
	// SetServing tells health whether the store can be used.
	SetServing func(bool)
	// Tick is called every few seconds.
	Tick func(now time.Time)
}

// New is the upkeep of a store whose condition is kept in c.
func New(cfg Config, c *Condition) *Upkeep { return &Upkeep{cfg, c} }

// WatchStore keeps health in step with the store and makes the configured
// queues.
func (s *Upkeep) WatchStore(ctx context.Context) error {
	const every = 3 * time.Second
	first, wait, generation := true, time.Duration(0), ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		err := s.checkStore(ctx, first)
		if ctx.Err() != nil {
			return nil
		}
		if first && (errors.Is(err, engine.ErrEviction) || errors.Is(err, engine.ErrDenied) || errors.Is(err, engine.ErrUnsuitable)) {
			return err
		}
		err = s.condition.checked(err)
		s.SetServing(err == nil)
		wait = every
		if err == nil && !s.condition.partial() { // else queues are configured later
			first = false
		} else if err != nil && first {
			wait = 250 * time.Millisecond
		}
		if g := s.Engine.Generation(); err == nil && g != generation {
			if err := s.beginRun(ctx); err != nil {
				s.Log.Warn("not every queue was looked at after the store came back", telemetry.Err(err))
			} else {
				generation = g
			}
		}
		s.Tick(time.Now())
	}
}

// starter is a partition of a store that hands nothing out for a time after a
// restart of its own. Start begins that time, unless it has begun; it may be
// called alongside transactions.
type starter interface {
	Start(ctx context.Context) error
}

// beginRun has every queue begin the store's present run: after a restart the
// time in which nothing is handed out should not begin with the first use. Those
// in use here have a transaction; for the others nothing is left running.
func (s *Upkeep) beginRun(ctx context.Context) error {
	names, err := s.Engine.Names(ctx)
	for _, name := range names {
		if l, ok := s.InUse.Known(name); ok {
			l.Request()
			continue
		}
		q, failed := s.Engine.Open(ctx, name)
		if errors.Is(failed, engine.ErrNoQueue) {
			continue // one that was lost is made again at its first use
		}
		if failed == nil {
			failed = begin(ctx, q)
		}
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("queue %q: %w", name, failed))
		}
	}
	return err
}

func begin(ctx context.Context, q engine.Queue) error {
	for _, p := range q.Partitions() {
		if p, ok := p.(starter); ok {
			if err := p.Start(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Upkeep) checkStore(ctx context.Context, configure bool) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	limits := s.Engine.Check(ctx)
	if limits != nil && !errors.Is(limits, engine.ErrFull) && !errors.Is(limits, engine.ErrPartial) || !configure {
		return limits
	}
	for _, name := range slices.Sorted(maps.Keys(s.Declared)) {
		_, _, err := s.Engine.Configure(ctx, name, s.Declared[name])
		if transaction.IsUnreached(err) && errors.Is(limits, engine.ErrPartial) { // it is as it was
			_, err = s.Engine.Open(ctx, name)
		}
		if err != nil && !errors.Is(err, engine.ErrFull) { // a full one has no room for new queues
			return fmt.Errorf("queue %q: %w", name, err)
		}
		limits = cmp.Or(limits, err)
	}
	return limits
}
