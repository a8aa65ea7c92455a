package write

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/stream/link"
)

func (w *Writer) takeOver(ctx context.Context, cfg Config) error {
	var above uint64 // where a log that cannot be gone on with begins again
	for {
		tail, err := w.c.Tail(ctx, w.col)
		if err != nil {
			return err
		}
		if last := max(tail.Term, tail.Fence); last > w.term || last == w.term && tail.Term == w.term {
			return fmt.Errorf("%w: the log holds term %d, mine is %d", link.ErrDeposed, last, w.term)
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
		origin, err := w.c.Control(ctx, w.col, delta.KindOrigin)
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
			return fmt.Errorf("%w: it ends at %d again, and was to begin at %d", link.ErrLogLost, tail.Last, above)
		}
		w.created, w.origin = tail.Created, origin.Sequence
		foreign := cfg.Source != "" && tail.Source != "" && cfg.Source != tail.Source
		if w.fresh = above > 0 || tail.Term == 0 || cfg.NewEpoch || tail.Epoch <= cfg.InvalidEpoch || foreign; w.fresh {
			w.epoch = max(w.epoch+1, cfg.Epoch+1, uint64(time.Now().UnixMilli()))
		}
		if w.source = cfg.Source; w.source == "" && !w.fresh {
			w.source = tail.Source
		}
		if w.origin == 0 {
			if err := w.begin(ctx); err != nil {
				return err
			}
		}
		return w.writeTerm(ctx, start)
	}
}

// fence pushes the log's end beyond every expected-last-sequence that an earlier writer may have
// under way. Without it an append that was pipelined behind the one that lost its place can meet
// its expectation again: with n expected n-1, our record at n-1 lets it in. A run of MaxInFlight+1
// records of ours with nothing between cannot be met by any of them.
func (w *Writer) fence(ctx context.Context) error {
	r := delta.Record{Kind: delta.KindFence, Collection: w.col, Epoch: w.epoch, Term: w.term, Writer: w.holder, PublishedAt: time.Now()}
	for range link.MaxInFlight + 1 {
		if err := w.append(ctx, &r, false); err != nil {
			return err
		}
	}
	return w.flush(ctx, false)
}

// writeTerm says where the term begins: a reader of an earlier one that is beyond it has read what
// the log has lost since.
func (w *Writer) writeTerm(ctx context.Context, start uint64) error {
	w.start = start
	r := delta.Record{
		Kind: delta.KindTerm, Collection: w.col, Epoch: w.epoch, Term: w.term, Start: start,
		Writer: w.holder, Build: w.c.Config.Build, Source: w.source, Needs: delta.Announced(), PublishedAt: time.Now(),
	}
	if err := w.append(ctx, &r, true); err != nil {
		return err
	}
	return w.flush(ctx, true)
}

// NewEpoch begins a new epoch in the same term: the source's history was restarted. A complete list
// must follow.
func (w *Writer) NewEpoch(ctx context.Context) error {
	if err := w.Flush(ctx); err != nil {
		return err
	}
	w.mu.Lock()
	w.epoch = max(w.epoch+1, uint64(time.Now().UnixMilli()))
	w.mu.Unlock()
	return w.writeTerm(ctx, w.next())
}

// resolve finds out by the tail what became of the appends in flight, and sends again what is
// missing.
func (w *Writer) resolve(ctx context.Context) error {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		err := w.tryResolve(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, link.ErrDeposed), errors.Is(err, link.ErrLogLost), errors.Is(err, link.ErrForeign):
			w.mu.Lock()
			w.failed = fmt.Errorf("write the log of %s: %w", w.col, err)
			w.mu.Unlock()
			return w.failed
		}
		select {
		case <-time.After(wait):
		case <-w.c.Events.Wait():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// mostRefusals is how often in a row the server may refuse an append before the writer gives up,
// after some three seconds.
const mostRefusals = 6

// yield waits before an append that the server refused is sent again, or ends the writer.
func (w *Writer) yield(ctx context.Context, refused error, refusals int, resolve bool) error {
	if refusals >= mostRefusals || !resolve {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.failed = fmt.Errorf("write the log of %s: %w", w.col, refused)
		return w.failed
	}
	select {
	case <-time.After(50 * time.Millisecond << refusals):
	case <-ctx.Done():
		return ctx.Err()
	}
	w.mu.Lock()
	w.refused = nil
	w.mu.Unlock()
	return w.resolve(ctx)
}

func (w *Writer) tryResolve(ctx context.Context) error {
	w.mu.Lock()
	w.attempt++ // whatever is still answered to earlier attempts no longer counts: the tail, read after that, says it
	acked, pending := w.acked, slices.Clone(w.inflight)
	w.mu.Unlock()
	tail, err := w.c.Tail(ctx, w.col)
	if errors.Is(err, link.ErrNoLog) {
		return fmt.Errorf("%w: the stream is gone", link.ErrLogLost)
	}
	if err != nil {
		return err
	}
	switch {
	case max(tail.Term, tail.Fence) > w.term:
		return fmt.Errorf("%w: the log holds term %d, mine is %d", link.ErrDeposed, max(tail.Term, tail.Fence), w.term)
	case !tail.Created.Equal(w.created):
		return fmt.Errorf("%w: the stream was made again", link.ErrLogLost)
	case tail.Last < acked:
		return fmt.Errorf("%w: it ends at %d, %d was acknowledged", link.ErrLogLost, tail.Last, acked)
	case tail.Last > acked+uint64(len(pending)):
		return fmt.Errorf("%w: it ends at %d, I wrote up to %d", link.ErrForeign, tail.Last, acked+uint64(len(pending)))
	}
	for seq := acked + 1; seq <= tail.Last; seq++ {
		if err := w.isMine(ctx, seq, pending[seq-acked-1].msg); err != nil {
			return err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.acked < tail.Last {
		w.acked++
		w.share.Give(w.inflight[0].size)
		w.inflight = w.inflight[1:]
	}
	for i := range w.inflight {
		if err := w.send(w.inflight[i].msg, w.acked+uint64(i)+1); err != nil {
			return err
		}
	}
	w.broken = false
	return nil
}

// isMine checks that the record at seq, if it is still there, is the one this writer sent as seq.
func (w *Writer) isMine(ctx context.Context, seq uint64, sent *nats.Msg) error {
	msg, err := w.c.Message(ctx, w.col, struct {
		Seq uint64 `json:"seq"`
	}{seq})
	if err != nil {
		return err
	}
	if msg == nil {
		return nil // replaced by a later append of ours, or an expired tombstone
	}
	if msg.Subject != sent.Subject || msg.Header.Get(delta.HeaderTerm) != strconv.FormatUint(w.term, 10) ||
		msg.Header.Get(delta.HeaderRV) != sent.Header.Get(delta.HeaderRV) {
		return fmt.Errorf("%w: sequence %d is not mine", link.ErrForeign, seq)
	}
	return nil
}
