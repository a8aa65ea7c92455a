package follow

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
)

// following is what runs for one collection.
type following struct {
	cancel context.CancelFunc
	ended  sync.WaitGroup
	absent time.Time // since when its log has not been there; zero while it is
}

// followers is what runs for all of them. It belongs to discover.
type followers struct {
	s    *Collections
	g    *errgroup.Group
	each map[delta.Collection]*following
}

// begin starts what a collection takes.
func (f *followers) begin(ctx context.Context, c *Collection) {
	ctx, cancel := context.WithCancel(ctx)
	own := &following{cancel: cancel}
	f.each[c.ID] = own
	own.ended.Add(2)
	f.g.Go(func() error {
		defer own.ended.Done()
		return f.s.follow(ctx, c)
	})
	f.g.Go(func() error {
		defer own.ended.Done()
		return f.s.build(ctx, c)
	})
}

// forget gives up the collections whose log was deleted and not recreated for a
// while: what they hold would be served for ever. Those named by the
// configuration stay. The logs must just have been listed and looked at.
func (f *followers) forget(now time.Time) {
	for _, c := range f.s.names.Load().All {
		own := f.each[c.ID]
		switch {
		case !c.absent.Load():
			own.absent = time.Time{}
		case own.absent.IsZero():
			own.absent = now
		case now.Sub(own.absent) >= f.s.cfg.ForgetAfter:
			own.cancel()
			own.ended.Wait() // what follows it may put another in its place until then
			delete(f.each, c.ID)
			f.s.remove(c.ID)
		}
	}
}

// remove takes a collection that nothing runs for any more away. Who reads or
// watches it is told that it is not there.
func (s *Collections) remove(id delta.Collection) {
	s.naming.Lock()
	defer s.naming.Unlock()
	for _, c := range s.names.Load().All {
		if c.ID != id {
			continue
		}
		c.refused.Store(&refusal{fault: fault.New(fault.ErrCollectionNotFound, c.Name+": its log was deleted", "collection", c.Name)})
		s.names.Store(s.names.Load().without(c))
		close(c.evicted)
		c.store.Apply(store.Batch{State: &store.State{}}, c.now()) // wakes who waits for it
		s.health.SetPart(indexv1.IndexService_ServiceDesc.ServiceName+"/"+c.Name, false)
		s.slog.Info("collection forgotten: its log was deleted", slog.String(telemetry.KeyCollection, c.Name))
	}
}
