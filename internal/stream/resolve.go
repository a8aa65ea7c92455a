package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/deltaplane/deltaplane/core/delta"
)

// resolve finds out by the tail what became of the appends in flight, and sends again what is missing.
func (w *Writer) resolve(ctx context.Context) error {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		err := w.tryResolve(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, ErrDeposed), errors.Is(err, ErrLogLost), errors.Is(err, ErrForeign):
			w.mu.Lock()
			w.failed = fmt.Errorf("write the log of %s: %w", w.col, err)
			w.mu.Unlock()
			return w.failed
		}
		select {
		case <-time.After(wait):
		case <-w.c.events.wait():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// mostRefusals is how often in a row the server may refuse an append before the writer gives up, after some three seconds.
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
	if errors.Is(err, ErrNoLog) {
		return fmt.Errorf("%w: the stream is gone", ErrLogLost)
	}
	if err != nil {
		return err
	}
	switch {
	case max(tail.Term, tail.Fence) > w.term:
		return fmt.Errorf("%w: the log holds term %d, mine is %d", ErrDeposed, max(tail.Term, tail.Fence), w.term)
	case !tail.Created.Equal(w.created):
		return fmt.Errorf("%w: the stream was made anew", ErrLogLost)
	case tail.Last < acked:
		return fmt.Errorf("%w: it ends at %d, %d was acknowledged", ErrLogLost, tail.Last, acked)
	case tail.Last > acked+uint64(len(pending)):
		return fmt.Errorf("%w: it ends at %d, I wrote up to %d", ErrForeign, tail.Last, acked+uint64(len(pending)))
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
		w.share.give(w.inflight[0].size)
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
	msg, err := w.c.message(ctx, w.col, struct {
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
		return fmt.Errorf("%w: sequence %d is not mine", ErrForeign, seq)
	}
	return nil
}
