package follow

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/attempt"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// discoverLeast is the pause between looks for new logs while it is likely that
// there are some: a reflector that starts makes all of its logs at once.
const discoverLeast = 100 * time.Millisecond

// definitionsWait is how long the logs wait for what is declared.
const definitionsWait = 5 * time.Second

// discover starts a follower for every collection, now and whenever a new log
// appears, and keeps health and the known ends of the logs up to date.
func (s *Collections) discover(ctx context.Context, g *errgroup.Group) error {
	// What is declared is read once, at ingest, if it is known before.
	attempt.SleepUntil(ctx, definitionsWait, s.declarations.Known())
	all := followers{s: s, g: g, each: map[delta.Collection]*following{}}
	for _, c := range s.names.Load().All {
		all.begin(ctx, c)
	}
	pause, failing := attempt.Wait{First: min(discoverLeast, s.cfg.DiscoverEvery), Most: s.cfg.DiscoverEvery}, false
	for {
		var err error
		known := len(s.names.Load().All)
		if len(s.cfg.Collections) == 0 {
			err = s.findLogs(ctx, &all)
		}
		if n := len(s.names.Load().All); err == nil && (n == 0 || n > known) {
			pause.Reset()
		}
		if err == nil {
			s.Listed()
		} else if !failing && ctx.Err() == nil {
			s.slog.Warn("cannot list logs", telemetry.Err(err))
		}
		failing = err != nil
		s.lookAtTails(ctx)
		if err == nil && len(s.cfg.Collections) == 0 {
			all.forget(time.Now())
		}
		s.publishHealth(ctx)
		if !pause.Sleep(ctx, 0) {
			return nil
		}
	}
}

func (s *Collections) findLogs(ctx context.Context, all *followers) error {
	ctx2, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	ids, err := s.log.Collections(ctx2)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if c := s.Know(id); c != nil {
			s.slog.Info("following collection", slog.String(telemetry.KeyCollection, c.Name))
			all.begin(ctx, c)
		}
	}
	return nil
}

// Listed notes that the logs have been listed.
func (s *Collections) Listed() { s.discovered.Store(true) }

// Know adds a collection; nil if it is known already.
func (s *Collections) Know(id delta.Collection) *Collection {
	s.naming.Lock()
	defer s.naming.Unlock()
	old := s.names.Load()
	for _, c := range old.All {
		if c.ID == id {
			return nil
		}
	}
	c := s.newCollection(id)
	s.names.Store(old.with(c))
	c.Indexes.Declare() // also what has been declared since c was made
	return c
}

// redeclare tells the collections of a resource that what is declared for it
// has changed.
func (s *Collections) redeclare(resource string) {
	for _, c := range s.names.Load().All {
		if c.ID.ResourceName() == resource {
			c.Indexes.Declare()
		}
	}
}

// lookAtTails learns where the logs end now, for the lag.
func (s *Collections) lookAtTails(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for _, c := range s.names.Load().All {
		tail, err := s.log.Tail(ctx, c.ID)
		c.absent.Store(errors.Is(err, stream.ErrNoLog))
		if err == nil {
			c.tail.Store(tail.Last)
			c.head.Store(tail.First)
			c.logState.bytes.Store(tail.Bytes)
		}
	}
}

// publishHealth tells whether this replica is as good as the log: the service
// is healthy when every log found has been read to its end once. Whether a
// collection is synced, and not lagging, is its own health, named by the service
// and it: one that lags must not take the others out of rotation.
func (s *Collections) publishHealth(ctx context.Context) {
	service := indexv1.IndexService_ServiceDesc.ServiceName
	s.health.SetServing(service, s.CheckReplayed(ctx) == nil)
	for _, c := range s.names.Load().All {
		s.health.SetPart(service+"/"+c.Name, c.store.Snapshot().State().Synced && !c.Lagging())
	}
}
