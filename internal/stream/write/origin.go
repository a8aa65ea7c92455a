package write

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/stream/link"
)

// liftAhead is more than a leader can have written since it last told the lease how far it was.
const liftAhead = 1 << 24

// lift empties a log that has lost its origin or its end, or never had any, and moves its end
// beyond every sequence that a log of this name has had, to which it returns the first: the
// server's time in microseconds, as no log takes a million records a second, or what follows what
// the lease knows of, should the clock have been set back. An earlier leader that was stopped
// expects a sequence of the log as it was. Were the numbers used again, the log could be resting at
// just that one when it goes on, and an old version would become its key's only record.
func (w *Writer) lift(ctx context.Context, tail link.Tail, acked uint64) (uint64, error) {
	if tail.Messages > 0 && tail.Term != 0 || tail.Last > 0 && tail.Messages == 0 {
		w.c.Config.Log.Warn("the log has lost records and starts again", slog.String("collection", w.col.String()))
	}
	above := max(uint64(max(tail.Now.UnixMicro(), 0)), max(acked, w.Acked())+liftAhead)
	s, err := w.c.JetStream.Stream(ctx, w.name)
	if err == nil {
		err = s.Purge(ctx, jetstream.WithPurgeSequence(above))
	}
	if err != nil {
		return 0, fmt.Errorf("clear the log of %s: %w", w.col, link.Named(err))
	}
	return above, nil
}

// begin writes the origin, the record that stays a log's first for as long as nobody takes records
// away from its start.
func (w *Writer) begin(ctx context.Context) error {
	w.origin = w.next()
	r := delta.Record{Kind: delta.KindOrigin, Collection: w.col, Epoch: w.epoch, Term: w.term, Writer: w.holder, PublishedAt: time.Now()}
	return w.append(ctx, &r, true)
}

// Check looks whether the log still holds what was written to it: records that were trimmed, purged
// or deleted by somebody else make it fail with [link.ErrLogLost], and limits that would do so with
// [link.ErrForeign]; both end the writer. The log must hold at least the given number of keys; as
// tombstones are not told from keys, it may take until they have expired before fewer keys are
// noticed. Who leads next compares the counts that records carry. An answer that does not come is
// an error that ends nothing.
func (w *Writer) Check(ctx context.Context, keys int) error {
	w.mu.Lock()
	failed, acked := w.failed, w.acked
	w.mu.Unlock()
	if failed != nil {
		return failed
	}
	info, err := w.look(ctx)
	if err == nil {
		err = link.Ours(info.Config, w.c.StreamConfig(w.col))
	}
	switch {
	case errors.Is(err, link.ErrNoLog):
		err = fmt.Errorf("%w: the stream is gone", link.ErrLogLost)
	case err != nil:
	case !info.Created.Equal(w.created):
		err = fmt.Errorf("%w: the stream was made again", link.ErrLogLost)
	case info.State.LastSeq < acked:
		err = fmt.Errorf("%w: it ends at %d, %d was acknowledged", link.ErrLogLost, info.State.LastSeq, acked)
	case info.State.FirstSeq > w.origin:
		err = fmt.Errorf("%w: it begins at %d, not at %d: records were removed", link.ErrLogLost, info.State.FirstSeq, w.origin)
	case info.State.Msgs < uint64(keys+len(info.State.Subjects)):
		err = fmt.Errorf("%w: it holds %d records, %d of them without a key, and there are %d keys",
			link.ErrLogLost, info.State.Msgs, len(info.State.Subjects), keys)
	}
	if errors.Is(err, link.ErrLogLost) || errors.Is(err, link.ErrForeign) {
		err = fmt.Errorf("write the log of %s: %w", w.col, err)
		w.mu.Lock()
		w.failed = err
		w.mu.Unlock()
	}
	return err
}

// look asks for the state of the log and for its control subjects.
func (w *Writer) look(ctx context.Context) (*jetstream.StreamInfo, error) {
	if w.handle == nil {
		s, err := w.c.JetStream.Stream(ctx, w.name)
		if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			return nil, fmt.Errorf("look at the log of %s: %w", w.col, link.Named(err))
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %s", link.ErrNoLog, w.col)
		}
		w.handle = s
	}
	info, err := w.handle.Info(ctx, jetstream.WithSubjectFilter(w.col.Subjects()[1]))
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, fmt.Errorf("%w: %s", link.ErrNoLog, w.col)
	}
	if err != nil {
		return nil, fmt.Errorf("look at the log of %s: %w", w.col, link.Named(err))
	}
	return info, nil
}
