package follow

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/attempt"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/indexer/extract"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
)

// follow reads one log until ctx ends. One that fails is begun again where it
// was; the others go on. One that does not fit into memory is replaced.
func (s *Collections) follow(ctx context.Context, c *Collection) error {
	retry := attempt.Wait{First: 200 * time.Millisecond, Most: 10 * time.Second}
	s.restore(ctx, c)
	for ctx.Err() == nil {
		began := time.Now()
		from := stream.ReadConfig{From: c.follower.Position(), FromTime: c.fresh, Created: c.created, CatchUp: c.catchUp}
		if c.replaying { // only a replay from the start can be known to be complete
			from = stream.ReadConfig{}
		}
		in := feed{s: s, c: c}
		err := s.log.Read(ctx, c.ID, from, in.batch)
		in.wait()
		if ctx.Err() != nil {
			return nil
		}
		if f, ok := errors.AsType[*fault.Error](err); ok && errors.Is(err, fault.ErrMemoryBudget) {
			c = s.evict(c, f)
			s.awaitRoom(ctx, c)
			continue
		}
		// However long a replay takes: a log that cannot be proven is not replayed without a pause.
		if time.Since(began) > retry.Most && !errors.Is(err, errRefuted) {
			retry.Reset()
		}
		if err == nil {
			err = errors.New("log reader ended")
		}
		c.fail(err)
		pause := retry.Next()
		s.slog.Warn("cannot follow log", slog.String(telemetry.KeyCollection, c.Name), telemetry.Err(err), slog.Duration(telemetry.KeyAfter, pause))
		attempt.Sleep(ctx, pause)
	}
	return nil
}

// build builds the indexes of a collection, and of those that take its place,
// until ctx ends.
func (s *Collections) build(ctx context.Context, c *Collection) error {
	for ctx.Err() == nil {
		c.Indexes.Build(ctx)
		for _, next := range s.names.Load().All {
			if next.ID == c.ID {
				c = next
			}
		}
	}
	return nil
}

// intake is a batch whose payloads were checked and copied.
type intake struct {
	delta.Batch
	faults []error // what is wrong with each record's payload
}

// take checks the payloads of a batch and copies them out of the log's messages.
// It is for any goroutine.
func (c *Collection) take(b delta.Batch) intake {
	in := intake{b, make([]error, len(b.Records))}
	for i := range b.Records {
		r := &b.Records[i]
		switch {
		case r.Kind == delta.KindDelta && r.Type != delta.Bookmark && r.Type != delta.Deleted:
			in.faults[i] = extract.Check(r)
			r.Payload = c.keeper.Put(r.Payload)
		// What is lent is not kept; only readers of changes want deleted objects.
		case r.Type == delta.Deleted && r.DeleteReason == delta.Observed && len(r.Payload) > 0 && c.replayed.Load():
			in.faults[i] = extract.Check(r)
			r.Payload = c.keeper.PutGone(r.Payload)
		default:
			r.Payload = nil
		}
	}
	return in
}

// feed is one reading of a log into a collection. It belongs to the goroutine
// that reads. In a replay a batch is decoded, checked and copied while the one
// before it is applied, by another goroutine: the two are about half of the work
// each, and no more than two batches are in memory. Otherwise a batch is applied
// before the handler returns.
type feed struct {
	s      *Collections
	c      *Collection
	replay bool
	size   int           // of the batch before
	busy   chan struct{} // closed when that has been applied; nil without one
}

// batch is the handler of the log reader.
func (in *feed) batch(ctx context.Context, b delta.Batch) error {
	in.replay = in.replay || b.Reset
	if err := in.s.admit(ctx, in, &b); err != nil {
		return err
	}
	taken := in.c.take(b)
	in.wait()
	if in.replay = in.replay && !b.Replayed; !in.replay {
		in.c.apply(ctx, taken)
		if in.c.refuted {
			return errRefuted
		}
		return nil
	}
	busy := make(chan struct{})
	in.busy = busy
	go func() {
		defer close(busy)
		in.c.apply(ctx, taken)
	}()
	return nil
}

// wait returns when everything has been applied that was handed over.
func (in *feed) wait() {
	if in.busy != nil {
		<-in.busy
		in.busy = nil
	}
}
