package follow

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/deltaplane/deltaplane/internal/attempt"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/internal/telemetry"
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
		if time.Since(began) > retry.Most {
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
