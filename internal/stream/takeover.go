package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
)

func (w *Writer) takeOver(ctx context.Context, cfg WriterConfig) error {
	var above uint64 // where a log that cannot be gone on with begins again
	for {
		tail, err := w.c.Tail(ctx, w.col)
		if err != nil {
			return err
		}
		if last := max(tail.Term, tail.Fence); last > w.term || last == w.term && tail.Term == w.term {
			return fmt.Errorf("%w: the log holds term %d, mine is %d", ErrDeposed, last, w.term)
		}
		// What an older form would replace, its writer cannot read.
		if err := tail.Readable(); err != nil {
			return err
		}
		w.reset(tail.Last)
		if tail.Last == 0 && above == 0 { // nobody has written it yet: a fence would be cleared away with it
			if above, err = w.lift(ctx, tail, cfg.Acked); err != nil {
				return err
			}
			continue
		}
		w.epoch = max(w.epoch, tail.Epoch, 1)
		start := w.next()
		if err := w.fence(ctx); errors.Is(err, errTaken) {
			continue // somebody wrote between; look again who it is
		} else if err != nil {
			return err
		}
		origin, err := w.c.control(ctx, w.col, delta.KindOrigin)
		if err != nil {
			return err
		}
		switch lost := origin.Sequence == 0 || tail.Last < cfg.Acked; {
		case lost && above == 0:
			if above, err = w.lift(ctx, tail, cfg.Acked); err != nil {
				return err
			}
			continue
		case start < above:
			return fmt.Errorf("%w: it ends at %d again, and was to begin at %d", ErrLogLost, tail.Last, above)
		}
		w.created, w.origin = tail.Created, origin.Sequence
		if w.fresh = above > 0 || tail.Term == 0 || cfg.NewEpoch || tail.Epoch <= cfg.Spoiled; w.fresh {
			w.epoch = max(w.epoch+1, cfg.Epoch+1, uint64(time.Now().UnixMilli()))
		}
		if w.origin == 0 {
			if err := w.begin(ctx); err != nil {
				return err
			}
		}
		return w.writeTerm(ctx, start)
	}
}

// fence pushes the log's end beyond every expected-last-sequence that an earlier writer may have under way. Without it an append that was
// pipelined behind the one that lost its place can meet its expectation again: with n expected n-1, our record at n-1 lets
// it in. A run of MaxInFlight+1 records of ours with nothing between cannot be met by any of them.
func (w *Writer) fence(ctx context.Context) error {
	r := delta.Record{Kind: delta.KindFence, Collection: w.col, Epoch: w.epoch, Term: w.term, Writer: w.holder, PublishedAt: time.Now()}
	for range MaxInFlight + 1 {
		if err := w.append(ctx, &r, false); err != nil {
			return err
		}
	}
	return w.flush(ctx, false)
}

// writeTerm says where the term begins: a reader of an earlier one that is beyond it has read what the log has lost since.
func (w *Writer) writeTerm(ctx context.Context, start uint64) error {
	r := delta.Record{
		Kind: delta.KindTerm, Collection: w.col, Epoch: w.epoch, Term: w.term, Start: start,
		Writer: w.holder, Build: w.c.cfg.Build, Needs: delta.Announced(), PublishedAt: time.Now(),
	}
	if err := w.append(ctx, &r, true); err != nil {
		return err
	}
	return w.flush(ctx, true)
}

// NewEpoch begins a new epoch in the same term: the source's history was restarted. A complete list must follow.
func (w *Writer) NewEpoch(ctx context.Context) error {
	if err := w.Flush(ctx); err != nil {
		return err
	}
	w.mu.Lock()
	w.epoch = max(w.epoch+1, uint64(time.Now().UnixMilli()))
	w.mu.Unlock()
	return w.writeTerm(ctx, w.next())
}
