package read

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/stream/link"
)

// errIncomplete: the log does not begin with its origin; its leader finds that out and begins it
// again.
var errIncomplete = fmt.Errorf("%w that begins at its origin", link.ErrNoLog)

var errReconnected = errors.New("stream: connected again")

// session reads with one consumer until something is wrong.
func (r *reader) session(ctx context.Context) error {
	r.moved = false
	reconnected := r.c.Events.Wait()
	// What was asked of the connection before will not be answered any more.
	calls, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-reconnected:
			cancel()
		case <-calls.Done():
		}
	}()
	tail, err := r.c.Tail(calls, r.col)
	if err != nil {
		return err
	}
	r.tail = tail
	if err := r.identify(tail); err != nil {
		return err
	}
	switch {
	case r.pos.IsZero():
		if err := tail.Readable(); err != nil && r.whole { // old content is worth more than the beginning of new
			return fmt.Errorf("read the log of %s: %w", r.col, err)
		}
		if err := r.complete(calls, tail); err != nil {
			return err
		}
		r.replaying, r.resumed, r.target, r.hole, r.began, r.old = true, false, tail.Last, false, time.Now(), 0
		r.holeEnd.close()
		if err := r.deliver(ctx, delta.Batch{Reset: true}); err != nil {
			return err
		}
	case r.catchUp:
		r.replaying, r.resumed, r.target, r.hole = true, true, tail.Last, false
		if err := r.caughtUp(ctx); err != nil {
			return err
		}
	}
	r.catchUp = false
	r.replicas = tail.Replicas
	r.holeEnd.inherit(tail.Last)
	cons, err := r.open(calls)
	if err != nil {
		return err
	}
	name := cons.CachedInfo().Name
	defer func() {
		r.left = append(r.left, name)
		r.clean(ctx)
	}()
	r.largest = max(r.largest, tail.Largest)
	if r.pull = 0; !r.cfg.HeadersOnly {
		r.pull = pullBytes(r.cfg.PullBytes, r.largest)
	}
	in, err := deliver(cons, pullMessages, r.pull, nil)
	if err != nil {
		return fmt.Errorf("read the log of %s: %w", r.col, link.Named(err))
	}
	defer in.close()
	return r.follow(ctx, calls, cons, in)
}

// caughtUp ends a replay that has nothing to bring: the position is the log's end, as it was when
// it was accepted.
func (r *reader) caughtUp(ctx context.Context) error {
	if r.pos.Sequence != r.target {
		return nil
	}
	if err := r.finish(); err != nil {
		return err
	}
	r.pos = delta.Position{Epoch: r.epoch, Term: r.term, Sequence: r.target}
	return r.deliver(ctx, delta.Batch{Replayed: true, Next: r.target + 1})
}

// identify compares the log with the place this reader stands at.
func (r *reader) identify(tail link.Tail) error {
	if !r.pos.IsZero() {
		if err := check(tail, r.pos); err != nil {
			return err
		}
		if !r.created.IsZero() && !tail.Created.Equal(r.created) {
			return errRecreated
		}
		away := link.Since(r.contact)
		if !r.heard.IsZero() && !r.replaying {
			away = max(away, tail.Now.Sub(r.heard))
		}
		if away > r.c.Config.TombstoneTTL/2 {
			return tooLong(away)
		}
	}
	r.epoch, r.term, r.created = tail.Epoch, tail.Term, tail.Created
	if r.ahead = tail.Ahead(); !r.stopped || r.pos.IsZero() {
		r.contact, r.heard = time.Now(), tail.Now
	}
	return nil
}

func tooLong(away time.Duration) error {
	return fmt.Errorf("%w: %v away, more than half the tombstone ttl", link.ErrBootstrap, away.Round(time.Second))
}

// complete refuses to replay a log from which records were taken: what is left would pass for all
// there is.
func (r *reader) complete(ctx context.Context, tail link.Tail) error {
	if tail.Last == 0 {
		return nil
	}
	origin, err := r.c.Control(ctx, r.col, delta.KindOrigin)
	if err == nil && origin.Sequence == 0 {
		err = fmt.Errorf("%w: %s", errIncomplete, r.col)
	}
	return err
}

func (r *reader) open(ctx context.Context) (jetstream.Consumer, error) {
	r.clean(ctx)
	r.consumerSeq, r.calm, r.stuck = 0, false, false
	cfg := jetstream.ConsumerConfig{
		Name:              readerPrefix + nuid.Next(),
		DeliverPolicy:     jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:       r.pos.Sequence + 1,
		AckPolicy:         jetstream.AckNonePolicy,
		HeadersOnly:       r.cfg.HeadersOnly,
		MemoryStorage:     true,
		Replicas:          1,
		InactiveThreshold: readerInactive,
	}
	cons, err := r.c.JetStream.CreateConsumer(ctx, r.col.StreamName(), cfg)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, fmt.Errorf("%w: %s", link.ErrNoLog, r.col)
	}
	if err != nil {
		r.left = append(r.left, cfg.Name) // it may have been made
		return nil, fmt.Errorf("read the log of %s: %w", r.col, link.Named(err))
	}
	return cons, nil
}

// clean deletes the consumers that are not read any more, also when the reader is being stopped;
// the server would only do so after a while. What cannot be deleted now is when the next consumer
// is made.
func (r *reader) clean(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), consumerOpTimeout)
	defer cancel()
	for len(r.left) > 0 && r.c.NATS.IsConnected() {
		err := r.c.JetStream.DeleteConsumer(ctx, r.col.StreamName(), r.left[0])
		if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) && !errors.Is(err, jetstream.ErrStreamNotFound) {
			break
		}
		r.left = r.left[1:]
	}
	r.left = r.left[max(len(r.left)-mostLeft, 0):]
}

// follow reads until something is wrong; calls is the context of what is asked of the connection,
// and ends with it.
func (r *reader) follow(ctx, calls context.Context, cons jetstream.Consumer, in *deliveries) error {
	quiet := time.NewTimer(0) // at once: an empty log is replayed without a message
	defer quiet.Stop()
	var missed, silent time.Time // when the library last missed an answer, and since when it has missed all
	var batch []jetstream.Msg
	for {
		select {
		case <-in.ready:
		case <-quiet.C:
			if err := r.idle(ctx, calls, cons); err != nil {
				return err
			}
			quiet.Reset(r.quietTimeout())
			continue
		case err := <-in.fault:
			if errors.Is(err, jetstream.ErrNoHeartbeat) {
				if time.Since(missed) > pullSilence {
					silent = time.Now()
				}
				missed = time.Now()
				err = r.unheard(calls, cons, in, missed.Sub(silent))
			} else {
				err = fmt.Errorf("%w: %w", errConsumerLost, err)
			}
			if err != nil {
				return fmt.Errorf("read the log of %s: %w", r.col, err)
			}
			continue
		case <-calls.Done():
			return fmt.Errorf("read the log of %s: %w", r.col, cmp.Or(ctx.Err(), errReconnected))
		}
		batch = in.take(batch[:0], r.cfg.MaxBatch)
		if len(batch) == 0 {
			continue
		}
		if err := r.process(ctx, calls, batch); err != nil {
			return err
		}
		clear(batch) // the last messages would be held until others come
		missed, r.calm, r.stuck = time.Time{}, false, false
		quiet.Reset(r.quietTimeout())
	}
}

// unheard runs when the server answered no request for a while. Silence alone proves nothing: this
// process or the server may be waiting for a processor. So the server is asked: its answer comes
// behind all that it had sent before. The library has requested records again; if that brings
// nothing either, though the server answers, the consumer is lost.
func (r *reader) unheard(ctx context.Context, cons jetstream.Consumer, in *deliveries, silent time.Duration) error {
	r.c.Config.Log.LogAttrs(ctx, slog.LevelDebug, "the server answers no request for records", slog.String("collection", r.col.String()))
	soon, cancel := context.WithTimeout(ctx, 2*pullExpiry)
	defer cancel()
	_, err := cons.Info(soon)
	switch {
	case errors.Is(err, jetstream.ErrConsumerNotFound), errors.Is(err, jetstream.ErrStreamNotFound):
		return fmt.Errorf("%w: the server has none", errConsumerLost)
	case err != nil && r.replicas > 1: // each server has consumers of its own, and this one's may be down
		if _, away := r.c.Info(ctx, r.col); away == nil {
			return fmt.Errorf("%w: its server does not answer, that of the log does: %w", errConsumerLost, err)
		}
	case err == nil && !in.waiting() && silent >= pullSilence:
		return fmt.Errorf("%w: no message for %v", errConsumerLost, silent.Round(time.Second))
	}
	return nil // a lone server that does not answer is the connection's to give up
}

func (r *reader) quietTimeout() time.Duration {
	switch {
	case r.replaying:
		return 200 * time.Millisecond
	case r.holeEnd.open:
		return 100 * time.Millisecond
	}
	return min(silence, r.c.Config.TombstoneTTL/4)
}

// idle runs when nothing has come for a while: the end of a replay may lie behind records that
// expired, and the log may be gone.
func (r *reader) idle(ctx, calls context.Context, cons jetstream.Consumer) error {
	tail, err := r.c.Tail(calls, r.col)
	if err != nil {
		return err
	}
	if r.holeEnd.open && tail.Last < r.pos.Sequence && link.Since(r.contact) < silence {
		return nil // the leader is behind the server that feeds this reader, or lost what that one had
	}
	if !r.replaying {
		if err := r.identify(tail); err != nil || !r.holeEnd.open && tail.Last <= r.pos.Sequence {
			return err
		}
	}
	if !tail.Created.Equal(r.created) {
		return errRecreated
	}
	switch all, err := r.exhausted(calls, cons, tail); {
	case err != nil:
		return fmt.Errorf("read the log of %s: %w", r.col, link.Named(err))
	case !all, !r.replaying && !r.holeEnd.open:
		return nil
	}
	r.holeEnd.close()
	if !r.replaying {
		return r.deliver(ctx, delta.Batch{End: r.pos.Sequence, Next: r.pos.Sequence + 1})
	}
	r.contact, r.heard = time.Now(), tail.Now
	r.pos = delta.Position{Epoch: r.epoch, Term: r.term, Sequence: max(r.pos.Sequence, tail.Last)}
	if tail.Last == 0 {
		r.pos = delta.Position{}
	}
	if err := r.finish(); err != nil {
		return err
	}
	return r.deliver(ctx, delta.Batch{Replayed: true, Next: tail.Last + 1})
}
