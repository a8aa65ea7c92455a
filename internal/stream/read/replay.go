package read

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/stream/link"
)

func (r *reader) process(ctx, calls context.Context, msgs []jetstream.Msg) error {
	// In a replay too: what was read before may have been deleted, and the tombstone be gone, behind
	// what the client had fetched.
	if away := link.Since(r.contact); away > r.c.Config.TombstoneTTL/2 {
		return tooLong(away)
	}
	b := delta.Batch{Records: make([]delta.Record, 0, len(msgs))}
	pos, hole, open := r.pos, false, r.holeEnd.open
	now := time.Now()
	var heard time.Time
	var newer error
	for _, m := range msgs {
		meta, err := m.Metadata()
		if err != nil {
			return fmt.Errorf("read the log of %s: %w", r.col, err)
		}
		sequence := meta.Sequence.Stream
		if meta.Sequence.Consumer != r.consumerSeq+1 {
			return fmt.Errorf("read the log of %s: delivery %d came after %d", r.col, meta.Sequence.Consumer, r.consumerSeq)
		}
		r.consumerSeq++
		stored := meta.Timestamp.Add(-r.ahead)
		if (!r.replaying || r.resumed) && now.Sub(stored) > r.c.Config.TombstoneTTL/2 {
			return fmt.Errorf("%w: fell behind by more than half the tombstone ttl", link.ErrBootstrap)
		}
		rec, err := r.c.Decode(m.Subject(), m.Headers(), m.Data(), sequence)
		unknown, isUnknown := errors.AsType[*delta.UnknownError](err)
		if isUnknown && !unknown.Skippable() {
			newer = fmt.Errorf("read the log of %s: %w", r.col, r.tail.Newer(sequence, unknown))
			break
		}
		heard = meta.Timestamp
		if sequence != pos.Sequence+1 {
			if hole = true; r.replicas > 1 {
				r.holeEnd.begin()
			}
		}
		if isUnknown {
			b.Passed = append(b.Passed, delta.Passed{Sequence: sequence, Unknown: unknown})
			pos.Sequence = sequence
			continue
		}
		if err != nil {
			r.c.Config.Log.Error("record cannot be read", slog.String("collection", r.col.String()),
				slog.String("sequence", strconv.FormatUint(sequence, 10)), slog.String("error", err.Error()))
			_, _, key, _ := delta.ParseSubject(m.Subject())
			b.Unreadable = append(b.Unreadable, delta.Unreadable{Sequence: sequence, Key: key, Err: err})
			pos.Sequence = sequence
			continue
		}
		rec.StoredAt = stored
		if err := r.newTerm(calls, &rec, pos); err != nil {
			return err
		}
		if rec.Term <= r.term {
			r.old = sequence
		}
		pos = delta.Position{Epoch: r.epoch, Term: r.term, Sequence: sequence}
		if !r.replaying || sequence >= r.target { // a replay is not over before
			r.holeEnd.saw(&rec)
		}
		b.Records = append(b.Records, rec)
	}
	if pos.Sequence == r.pos.Sequence {
		return newer
	}
	r.hole = r.hole || hole
	b.Next = pos.Sequence + 1
	if err := r.settle(calls, &b, pos, open); err != nil {
		return err
	}
	r.pos, r.contact, r.moved, r.stopped = pos, time.Now(), true, false
	if heard.After(r.heard) {
		r.heard = heard
	}
	if err := r.deliver(ctx, b); err != nil {
		return err
	}
	return newer
}

// settle decides about the end of a replay and about the freeze after a hole: what was missing was
// replaced by a record that lies before the end of the log as read after the hole was found, and,
// where the log is replicated, not beyond what [holeEnd] waits for. open says that it waited before
// this batch.
func (r *reader) settle(ctx context.Context, b *delta.Batch, pos delta.Position, open bool) error {
	if r.replaying && pos.Sequence < r.target || !r.replaying && !r.hole && !open {
		return nil
	}
	if r.hole {
		info, err := r.c.Info(ctx, r.col)
		if err != nil {
			return err
		}
		if !info.Created.Equal(r.created) { // the end of another log says nothing about the hole in this one
			return errRecreated
		}
		r.hole, r.target = false, info.State.LastSeq
	}
	switch {
	case r.holeEnd.open:
		if !r.replaying {
			b.End = delta.EndUnknown
		}
	case !r.replaying:
		b.End = r.target
	case pos.Sequence >= r.target:
		b.Replayed = true
		return r.finish()
	}
	return nil
}

// finish ends a replay. One that took longer than a tombstone lives may have read a key whose
// deletion it could not see.
func (r *reader) finish() error {
	if took := link.Since(r.began); !r.resumed && took > r.c.Config.TombstoneTTL {
		return fmt.Errorf("%w: the replay took %v, longer than a tombstone lives", link.ErrBootstrap, took.Round(time.Second))
	}
	r.replaying, r.whole = false, true
	return nil
}

// newTerm notices a change of leader in the log itself. A record of a newer term whose term record
// was not seen in its place, or of a newer epoch, makes the reader look at who leads.
func (r *reader) newTerm(ctx context.Context, rec *delta.Record, pos delta.Position) error {
	switch {
	case rec.Epoch > r.epoch && r.epoch != 0:
		return fmt.Errorf("%w: epoch %d began", link.ErrBootstrap, rec.Epoch)
	case rec.Term <= r.term && rec.Epoch <= r.epoch:
		return nil
	case rec.Kind == delta.KindTerm && rec.Start != 0 && rec.Start <= r.old: // the log lost its end while the connection was away
		return fmt.Errorf("%w: term %d began at %d, %d was read before", link.ErrBootstrap, rec.Term, rec.Start, r.old)
	case rec.Kind == delta.KindTerm:
		r.term, r.epoch = rec.Term, rec.Epoch
		r.tail.Writer, r.tail.Build = rec.Writer, rec.Build
		return nil
	case rec.Kind == delta.KindFence, rec.Kind == delta.KindOrigin:
		return nil // its term record follows
	}
	tail, err := r.c.Tail(ctx, r.col)
	if err != nil {
		return err
	}
	if !tail.Created.Equal(r.created) {
		return errRecreated
	}
	pos.Term = r.term
	if err := check(tail, pos); !pos.IsZero() && err != nil {
		return err
	}
	r.term, r.epoch = tail.Term, tail.Epoch
	return nil
}

func (r *reader) deliver(ctx context.Context, b delta.Batch) error {
	b.Collection, b.Created = r.col, r.created
	if err := r.handle(ctx, b); err != nil {
		return &link.HandlerError{Err: err}
	}
	return nil
}
