package follow

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"log/slog"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/indexer/checkpoint"
	"github.com/deltaplane/deltaplane/services/indexer/define"
	"github.com/deltaplane/deltaplane/services/indexer/extract"
	"github.com/deltaplane/deltaplane/services/indexer/payload"
)

// factsVersion stands for how facts are read from objects. It is raised when
// that changes, so that facts kept in files are read again.
const factsVersion = "1"

const (
	// checkpointStop is how long a stop waits for the files it leaves.
	checkpointStop = 20 * time.Second
	// A file is written again when so many records, or one in so many of the
	// objects, have come since.
	checkpointRecords, checkpointShare = 1000, 20
	// A file of a collection that has hardly changed is left for so many times
	// the least time, but renewed so many times in the time in which a log can be
	// resumed from it.
	checkpointQuiet, checkpointAges = 10, 4
	// clockSlack is how far a clock may be put back in the ordinary way.
	clockSlack = time.Minute
)

// resumable is how long ago a position may have been current for a log to be
// resumed from it.
func (c *Collection) resumable() time.Duration { return c.ttl / 2 }

// restore fills the collection from its file, if that can be used, before the
// log is read. What is restored is not served: not before the log has accepted
// the position, and has been read to its end.
func (s *Collections) restore(ctx context.Context, c *Collection) {
	if s.files == nil {
		return
	}
	began := time.Now()
	image, size, err := s.files.Load(c.Name, checkpoint.Options{MaxBytes: s.room(), Open: func(b []byte) (store.Codec, error) {
		d, err := payload.Open(b)
		if err == nil {
			c.keeper.Adopt(d)
		}
		return d, err
	}})
	if err == nil {
		err = c.adopt(ctx, image, size)
	}
	outcome := warmOutcome(err)
	s.metrics.files.starts.WithLabelValues(outcome).Inc()
	switch {
	case outcome == "none":
	case err != nil:
		level := slog.LevelInfo
		if outcome == "damaged" {
			level = slog.LevelWarn
		}
		s.slog.LogAttrs(ctx, level, "checkpoint not used, the log is replayed",
			slog.String(telemetry.KeyCollection, c.Name), slog.String(telemetry.KeyReason, outcome), telemetry.Err(err))
	default:
		s.slog.Info("checkpoint read", slog.String(telemetry.KeyCollection, c.Name), slog.Int(telemetry.KeyCount, len(image.Objects)),
			slog.Int64(telemetry.KeyBytes, size), slog.Duration(telemetry.KeyDuration, time.Since(began)))
	}
}

// room is how long a file may be to fit into the memory budget without
// pressure: a replay makes room, a file that is read whole cannot.
func (s *Collections) room() int64 {
	if s.cfg.MemoryBudget == 0 {
		return math.MaxInt64
	}
	return max(int64(pressure*float64(s.cfg.MemoryBudget))-int64(s.memory()), 1)
}

var (
	errCheckpointOld   = errors.New("the log cannot be resumed from so long ago")
	errCheckpointEmpty = errors.New("the file names no position")
)

// warmOutcome names what became of a file.
func warmOutcome(err error) string {
	switch {
	case err == nil:
		return "used"
	case errors.Is(err, fs.ErrNotExist):
		return "none"
	case errors.Is(err, checkpoint.ErrDamaged):
		return "damaged"
	case errors.Is(err, checkpoint.ErrFormat):
		return "format"
	case errors.Is(err, checkpoint.ErrPlain), errors.Is(err, checkpoint.ErrEncrypted):
		return "encryption"
	case errors.Is(err, checkpoint.ErrForeign):
		return "foreign"
	case errors.Is(err, checkpoint.ErrTooLarge):
		return "budget"
	case errors.Is(err, errCheckpointOld):
		return "old"
	default:
		return "failed"
	}
}

// adopt makes an image the collection's content.
func (c *Collection) adopt(ctx context.Context, image *checkpoint.Image, size int64) error {
	now := c.now()
	if image.Mark.Position.IsZero() || image.Mark.Position.Epoch == 0 {
		return errCheckpointEmpty
	}
	switch away := now.Sub(image.Fresh); {
	case away > c.resumable():
		return fmt.Errorf("%w: %v, more than half the tombstone ttl", errCheckpointOld, away.Round(time.Second))
	case away < -clockSlack: // the clock was put back: nobody knows how long ago
		return fmt.Errorf("%w: the file is %v ahead of the clock", errCheckpointOld, -away.Round(time.Second))
	}
	plan, release := c.Indexes.Hold() // it must not be replaced behind what is read by it
	defer release()
	if factsOf(plan) != image.Facts {
		c.extract.Follow(plan)
		if err := renew(ctx, c.extract, image.Objects); err != nil {
			return err
		}
	}
	follower := delta.Restore(image.Mark)
	if err := c.store.Load(store.Dump{
		Objects: slices.Values(image.Objects), Tombstones: slices.Values(image.Tombstones), Horizon: image.Horizon,
		State: store.State{Revision: follower.Revision(), Upper: follower.Upper(), Position: follower.Position(), Fresh: image.Fresh},
	}, now); err != nil {
		return err
	}
	c.keeper.AdoptBlocks(image.Blocks)
	c.doubted = slices.ContainsFunc(image.Objects, (*store.Object).Faulty) // what the record of such an object was is not known
	c.follower, c.fresh, c.created, c.catchUp = follower, image.Fresh, image.Created, true
	var terms []termStart
	for _, t := range image.Terms {
		terms = append(terms, termStart{t.Term, t.First})
	}
	c.terms.Store(&terms)
	if follower.Frozen() { // what is held is not yet what the log had anywhere
		c.stale.Store(&[]span{{follower.Position().Sequence, open}})
	}
	c.warm.Store(true)
	c.saved.Store(&savedFile{position: image.Mark.Position, at: now, fresh: image.Fresh, bytes: size})
	return nil
}

// renew reads the declared fields of objects again.
func renew(ctx context.Context, x *extract.Extractor, objects []*store.Object) error {
	for i, o := range objects {
		if err := ctx.Err(); err != nil {
			return err
		}
		if o.Faulty() {
			continue
		}
		served, err := o.Payload()
		var fields *store.Fields
		if err == nil {
			fields, err = x.Fields(ctx, served)
		}
		if err != nil {
			fields = x.Plan().Failed(fmt.Errorf("%w: %w", define.ErrNotRead, err))
		}
		objects[i] = o.WithFields(fields)
	}
	return nil
}

// factsOf stands for all that a plan reads from an object.
func factsOf(plan *extract.Plan) string {
	names := slices.Sorted(slices.Values(plan.Fields()))
	h := fnv.New128a()
	_, _ = h.Write([]byte(strings.Join(names, "\x00")))
	return fmt.Sprintf("%s %d %x", factsVersion, len(names), h.Sum(nil))
}
