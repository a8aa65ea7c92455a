package follow

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/indexer/checkpoint"
)

// savedFile is what is known of a collection's file.
type savedFile struct {
	position  delta.Position
	at, fresh time.Time
	bytes     int64
}

// cut returns what a file is made of; false while there is nothing worth
// keeping.
func (c *Collection) cut() (checkpoint.Header, *store.Snapshot, bool) {
	plan, release := c.Indexes.Hold()
	defer release()
	mark, ok := c.follower.Mark()
	snap := c.store.Snapshot()
	h := checkpoint.Header{
		Collection: c.Name, Created: c.created, Facts: factsOf(plan), Mark: mark, Fresh: snap.State().Fresh, Horizon: snap.Dump().Horizon,
	}
	if terms := c.terms.Load(); terms != nil {
		for _, t := range *terms {
			h.Terms = append(h.Terms, checkpoint.Term{Term: t.term, First: t.first})
		}
	}
	// Objects may not have all that the plan reads until they have been renewed.
	ok = ok && c.Indexes.Complete()
	// Nor is it known yet, while a replay looks for it, from where on all deletions are.
	ok = ok && c.replayAt.IsZero()
	return h, snap, ok && snap.State().Synced && snap.State().Position == mark.Position && !c.created.IsZero()
}

// due reports whether a collection's file is to be written, when nothing else
// asks for it.
func (c *Collection) due(snap *store.Snapshot, every time.Duration, now time.Time) bool {
	old, at := c.saved.Load(), snap.State().Position
	switch {
	case old == nil:
		return true
	case at == old.position || now.Sub(old.at) < every:
		return false
	case at.Epoch != old.position.Epoch || now.Sub(old.at) > checkpointQuiet*every || now.Sub(old.fresh) > c.resumable()/checkpointAges:
		return true
	}
	return at.Sequence-old.position.Sequence >= max(checkpointRecords, uint64(snap.Len()/checkpointShare))
}

// keep writes files as they become due, until ctx ends.
func (s *Collections) keep(ctx context.Context) error {
	tick := time.NewTicker(max(min(s.cfg.CheckpointEvery/10, time.Second), 10*time.Millisecond))
	defer tick.Stop()
	if n, err := s.files.Expire(time.Now(), s.log.TombstoneTTL()/2); err != nil {
		s.slog.Warn("cannot remove old checkpoints", telemetry.Err(err))
	} else if n > 0 {
		s.slog.Info("old checkpoints removed", slog.Int(telemetry.KeyCount, n))
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		for _, c := range s.names.Load().All {
			if now := time.Now(); now.After(c.saveAfter) && c.due(c.store.Snapshot(), s.cfg.CheckpointEvery, now) {
				s.save(ctx, c, s.cfg.CheckpointRate)
			}
		}
	}
}

// saveAll writes what has changed since, as fast as it goes: nothing follows
// the logs any more.
func (s *Collections) saveAll(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkpointStop)
	defer cancel()
	var g errgroup.Group
	g.SetLimit(2)
	for _, c := range s.names.Load().All {
		if old := c.saved.Load(); old == nil || old.position != c.store.Snapshot().State().Position {
			g.Go(func() error { s.save(ctx, c, 0); return nil })
		}
	}
	_ = g.Wait() // a file that cannot be written is logged and counted
}

// save writes the file of one collection. One that cannot be written is tried
// again later; the collection is served all the same.
func (s *Collections) save(ctx context.Context, c *Collection, rate int) {
	h, snap, ok := c.cut()
	if !ok {
		return
	}
	began := time.Now()
	c.saveAfter = began.Add(s.cfg.CheckpointEvery / 4) // after a failure
	saved, err := s.files.Save(ctx, h, snap, rate)
	if err != nil {
		if ctx.Err() == nil || !errors.Is(err, context.Canceled) {
			s.metrics.files.written.WithLabelValues("failed").Inc()
			c.unsaved.Store(&err)
			if !s.unsaving.Swap(true) { // one line for all collections and attempts
				s.slog.Warn("cannot write checkpoints", slog.String(telemetry.KeyCollection, c.Name), telemetry.Err(err))
			}
		}
		return
	}
	c.unsaved.Store(nil)
	if n, _, _ := s.unsaved(); n == 0 && s.unsaving.Swap(false) {
		s.slog.Info("checkpoints can be written again")
	}
	took := time.Since(began)
	s.metrics.files.written.WithLabelValues("saved").Inc()
	s.metrics.files.took.Observe(took.Seconds())
	c.saved.Store(&savedFile{position: h.Mark.Position, at: time.Now(), fresh: h.Fresh, bytes: saved.Bytes})
	s.slog.Debug("checkpoint written", slog.String(telemetry.KeyCollection, c.Name), slog.Int(telemetry.KeyCount, saved.Objects),
		slog.Int64(telemetry.KeyBytes, saved.Bytes), slog.Duration(telemetry.KeyDuration, took))
}

// checkpointing is what a collection's file needs. The fields above the line
// belong to the goroutine that reads the log and, while the collection's ingest
// lock is held, to others.
type checkpointing struct {
	created time.Time // of the log
	catchUp bool      // restored, and not read to the log's end since

	saveAfter time.Time // of the goroutine that writes files
	saved     atomic.Pointer[savedFile]
	unsaved   atomic.Pointer[error] // why the last one could not be written
	warm      atomic.Bool           // what is served began with the file
}

// noteLog keeps in step with what the reader says of the log.
func (c *Collection) noteLog(b *delta.Batch) {
	if !b.Created.IsZero() {
		c.created = b.Created
	}
	if b.Reset && c.warm.Swap(false) && c.catchUp {
		c.metrics.files.starts.WithLabelValues("refused").Inc()
	}
	if b.Reset || b.Replayed {
		c.catchUp = false
	}
}
