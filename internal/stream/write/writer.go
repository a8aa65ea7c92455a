package write

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/stream/link"
)

const (
	// ackWait is how long a writer waits without any progress before it reads the tail.
	ackWait = 3 * time.Second
)

// Config says on whose behalf to write.
type Config struct {
	// Term is the lease's; a log that holds this or a higher term refuses with [link.ErrDeposed].
	Term uint64
	// Holder names the leading process.
	Holder string
	// Acked is the highest sequence any leader is known to have had acknowledged; a log that ends
	// below it has lost records.
	Acked uint64
	// Epoch is the highest epoch known to have been written; a new one is higher even if the log and
	// the clock were lost.
	Epoch uint64
	// NewEpoch begins a new epoch in any case.
	NewEpoch bool
	// InvalidEpoch is an epoch that must not be written on: a log that holds it, or an older one,
	// begins a new epoch. One that somebody began meanwhile is gone on with.
	InvalidEpoch uint64
	// Source tells the cluster that is mirrored from every other; empty when it is not known. A log of
	// another one begins a new epoch.
	Source string
}

// Writer appends to one log for one term. Its methods are for one goroutine, except Acked, Epoch
// and Term.
//
//	open --append--> open --ack missing or refused--> resolving --tail is mine--> open
//	                                                     |--higher term--> deposed (for good)
//	                                                     '--tail below acknowledged--> lost (for good)
type Writer struct {
	c      *link.Conn
	col    delta.Collection
	name   string
	holder string
	term   uint64
	fresh  bool
	source string
	start  uint64 // where the term begins
	inbox  string
	sub    *nats.Subscription
	// created is when the stream was made, origin the sequence of its origin record.
	created time.Time
	origin  uint64
	handle  jetstream.Stream // for Check
	share   *link.Share      // of the bytes in flight on the connection

	mu       sync.Mutex
	epoch    uint64
	acked    uint64
	inflight []inflight // inflight[0] has sequence acked+1; guarded by mu like everything below
	attempt  int
	broken   bool
	failed   error
	refused  error         // what the server said of the last append, when that was not about its place
	refusals int           // in a row
	moved    chan struct{} // cap 1; an ack or a failure arrived, or there may be room for more
}

type inflight struct {
	msg  *nats.Msg
	size int
}

// New takes the log over for a term: it makes the log when there is none, fences it against
// every append an earlier leader may still have under way, appends the term record and awaits its
// acknowledgement. A new epoch begins when the log is new, ends below cfg.Acked, or cfg asks for
// it; [Writer.Fresh] tells.
func New(ctx context.Context, c *link.Conn, col delta.Collection, cfg Config) (*Writer, error) {
	if err := col.Validate(); err != nil {
		return nil, err
	}
	if cfg.Term == 0 {
		return nil, errors.New("stream: term 0 cannot write")
	}
	if err := c.Ensure(ctx, col); err != nil {
		return nil, err
	}
	w := &Writer{
		c: c, col: col, name: col.StreamName(), holder: cfg.Holder, term: cfg.Term,
		inbox: c.NATS.NewInbox(), moved: make(chan struct{}, 1),
	}
	w.share = c.Share(w.wake)
	sub, err := c.NATS.Subscribe(w.inbox+".*.*", w.onAck)
	if err != nil {
		return nil, fmt.Errorf("write the log of %s: %w", col, err)
	}
	w.sub = sub
	if err := w.takeOver(ctx, cfg); err != nil {
		w.Close()
		return nil, fmt.Errorf("take over the log of %s: %w", col, err)
	}
	return w, nil
}

// Close gives up the writer without waiting for acknowledgements.
func (w *Writer) Close() {
	_ = w.sub.Unsubscribe()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.attempt++ // what is still answered does not count
	w.inflight = nil
	w.share.Leave()
	if w.failed == nil {
		w.failed = errClosed
	}
}

// wake lets await look again.
func (w *Writer) wake() {
	select {
	case w.moved <- struct{}{}:
	default:
	}
}

// Epoch is the epoch being written.
func (w *Writer) Epoch() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.epoch
}

// Term is the writer's term.
func (w *Writer) Term() uint64 { return w.term }

// Created is when the log was made; a recreated log is another log.
func (w *Writer) Created() time.Time { return w.created }

// Fresh reports whether the writer began a new epoch: nothing known from before may be trusted and
// a complete list must follow.
func (w *Writer) Fresh() bool { return w.fresh }

// Source is which cluster the log is of; empty when it is not known.
func (w *Writer) Source() string { return w.source }

// Name has the log say which cluster it is of.
func (w *Writer) Name(ctx context.Context, source string) error {
	if err := w.Flush(ctx); err != nil {
		return err
	}
	w.source = source
	return w.writeTerm(ctx, w.start)
}

// Acked is the sequence of the last acknowledged append.
func (w *Writer) Acked() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.acked
}

// Append sends records in order, setting their epoch, term and publication time, and returns when
// the last is on its way; it waits while MaxInFlight appends are unacknowledged, or the connection
// has as much in flight as it carries without delay to others. A lost acknowledgement is resolved
// by reading the tail. Errors: [link.ErrDeposed], [link.ErrLogLost], [link.ErrForeign], and
// [link.ErrLogFull] after some tries, end the writer; [link.ErrTooLarge] names the key and sends
// neither that record nor those after it; the context's. While NATS is away it waits.
func (w *Writer) Append(ctx context.Context, records []delta.Record) error {
	epoch, now := w.Epoch(), time.Now()
	for i := range records {
		r := &records[i]
		r.Collection, r.Epoch, r.Term, r.PublishedAt = w.col, epoch, w.term, now
		if len(r.Payload) > w.c.MaxPayload() {
			return fmt.Errorf("%w: %q of %s has %d bytes, the limit is %d", link.ErrTooLarge, string(r.Key), w.col, len(r.Payload), w.c.MaxPayload())
		}
		if err := w.append(ctx, r, true); err != nil {
			return err
		}
	}
	return nil
}

// Flush waits until everything appended has been acknowledged. Errors are those of Append.
func (w *Writer) Flush(ctx context.Context) error { return w.flush(ctx, true) }

func (w *Writer) append(ctx context.Context, r *delta.Record, resolve bool) error {
	msg := w.c.Encode(r)
	if r.Tombstone() {
		msg.Header[jetstream.MsgTTLHeader] = []string{strconv.Itoa(int(w.c.Config.TombstoneTTL/time.Second)) + "s"}
	}
	size := r.Size()
	err := w.await(ctx, resolve, func() bool {
		return len(w.inflight) == 0 || len(w.inflight) < link.MaxInFlight && w.share.Room(size)
	})
	if err != nil {
		return err
	}
	w.mu.Lock()
	seq := w.acked + uint64(len(w.inflight)) + 1
	w.inflight = append(w.inflight, inflight{msg: msg, size: size})
	if w.share.Take(size) {
		go w.c.Probe(context.WithoutCancel(ctx)) // for other writers too
	}
	err = w.send(msg, seq)
	if err != nil {
		w.broken = true // the next await resolves it, whatever it was
	}
	w.mu.Unlock()
	return nil
}

// send publishes one message as sequence seq. The caller holds mu.
func (w *Writer) send(msg *nats.Msg, seq uint64) error {
	msg.Header[jetstream.ExpectedLastSeqHeader] = []string{strconv.FormatUint(seq-1, 10)}
	msg.Header[jetstream.ExpectedStreamHeader] = []string{w.name}
	msg.Reply = w.inbox + "." + strconv.Itoa(w.attempt) + "." + strconv.FormatUint(seq, 10)
	return w.c.NATS.PublishMsg(msg)
}

func (w *Writer) flush(ctx context.Context, resolve bool) error {
	return w.await(ctx, resolve, func() bool { return len(w.inflight) == 0 })
}

func (w *Writer) next() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.acked + uint64(len(w.inflight)) + 1
}

func (w *Writer) reset(last uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.acked, w.inflight, w.broken = last, nil, false
	w.share.Leave()
	w.attempt++
}

// errClosed: the writer's owner gave it up.
var errClosed = errors.New("stream: writer is closed")

// errTaken: a sequence was taken by somebody else while resolving was not wanted.
var errTaken = errors.New("stream: sequence taken")

// await returns when ready holds, resolving failures on the way.
func (w *Writer) await(ctx context.Context, resolve bool, ready func() bool) error {
	w.mu.Lock()
	at := w.failed == nil && !w.broken && ready()
	w.mu.Unlock()
	if at {
		return nil // nearly always: no timer is needed
	}
	timer := time.NewTimer(ackWait)
	defer timer.Stop()
	seen := uint64(0)
	for {
		w.mu.Lock()
		failed, broken, ok, acked := w.failed, w.broken, ready(), w.acked
		refused, refusals := w.refused, w.refusals
		w.mu.Unlock()
		if acked != seen { // room that others made is no answer to what this writer has sent
			seen = acked
			timer.Reset(ackWait)
		}
		switch {
		case failed != nil:
			return failed
		case broken && refused != nil:
			if err := w.yield(ctx, refused, refusals, resolve); err != nil {
				return err
			}
			timer.Reset(ackWait)
			continue
		case broken && !resolve:
			return errTaken
		case broken:
			if err := w.resolve(ctx); err != nil {
				return err
			}
			timer.Reset(ackWait)
			continue
		case ok:
			return nil
		}
		select {
		case <-w.moved:
		case <-timer.C:
			w.mu.Lock()
			w.broken = w.broken || w.acked == acked && len(w.inflight) > 0
			w.mu.Unlock()
			timer.Reset(ackWait)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (w *Writer) onAck(m *nats.Msg) {
	rest, ok := strings.CutPrefix(m.Subject, w.inbox+".")
	attemptText, seqText, ok2 := strings.Cut(rest, ".")
	attempt, err1 := strconv.Atoi(attemptText)
	seq, err2 := strconv.ParseUint(seqText, 10, 64)
	if !ok || !ok2 || err1 != nil || err2 != nil {
		return
	}
	var ack struct {
		Error  *jetstream.APIError `json:"error"`
		Stream string              `json:"stream"`
		Seq    uint64              `json:"seq"`
	}
	good := json.Unmarshal(m.Data, &ack) == nil && ack.Error == nil && ack.Seq == seq && ack.Stream == w.name
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case attempt != w.attempt: // resolved already, or being sent again
	case good && seq == w.acked+1 && len(w.inflight) > 0:
		w.acked = seq
		w.refusals = 0
		w.share.Give(w.inflight[0].size)
		w.inflight[0] = inflight{}
		w.inflight = w.inflight[1:]
	case good && seq <= w.acked:
	default:
		// Acks come in the order of the appends; a refusal, or an ack beyond the next one, means that one
		// before it failed.
		if !w.broken {
			w.refused = nil
			if ack.Error != nil && ack.Error.ErrorCode != jetstream.JSErrCodeStreamWrongLastSequence &&
				ack.Error.ErrorCode != jetstream.JSErrCodeStreamWrongLastSequenceConstant {
				w.refused = link.Named(ack.Error)
				w.refusals++
			}
		}
		w.broken = true
	}
	w.wake()
}
