package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/deltaplane/deltaplane/core/delta"
)

const (
	// silence is how long a reader hears nothing before it checks that its place in the log still exists; the leader writes
	// a liveness record every 2 s.
	silence = 7 * time.Second
	// readerPrefix begins the names of the ephemeral consumers; they disappear by themselves when nobody pulls.
	readerPrefix      = "dp_read_"
	readerInactive    = 30 * time.Second
	minBackoff        = 100 * time.Millisecond
	maxBackoff        = 5 * time.Second
	defaultMaxBatch   = 1024
	defaultPullBytes  = 16 << 20
	consumerOpTimeout = 5 * time.Second
)

// Handler takes a batch of a collection's log. Batches come in order, one at a time, never empty of both records and
// flags. The records and their payloads may be kept but not changed. An error ends the read and is returned by it.
type Handler func(ctx context.Context, b delta.Batch) error

// ReadConfig says where and how to read. The zero value replays the log from its start and follows it.
type ReadConfig struct {
	// From is the position to resume behind; zero replays from the start.
	From delta.Position
	// FromTime is when From was current. A position older than half the tombstone TTL is not resumed (design 6.4). The zero time
	// means "just now".
	FromTime time.Time
	// Created is the [delta.Batch]'s Created of the log that From is a position of; a log made at another time is not resumed. The zero
	// time is any log.
	Created time.Time
	// CatchUp reports the end of the log, as it was when From was accepted, by a batch with Replayed set, as for a replay. The reader must
	// claim nothing before it: holes in between are not reported one by one.
	CatchUp bool
	// HeadersOnly leaves the payloads out.
	HeadersOnly bool
	// MaxBatch bounds the records of one batch; default 1024.
	MaxBatch int
	// PullBytes bounds what the server sends ahead; default 16 MiB, and never less than two records of the largest size.
	PullBytes int
}

// Read follows the log of col until ctx ends (then it returns nil) or the handler fails (then it returns that error). It waits for a log
// that does not exist yet and reconnects with back-off for ever. When the place it reads from is lost (a new epoch, a newer term that
// began at or below its position, a log made anew, an absence longer than half the tombstone TTL) it starts again from the
// beginning with a batch that has Reset set; the first batch of a read without From has Reset too. The end of every
// replay is reported by a batch with Replayed set.
func (c *Conn) Read(ctx context.Context, col delta.Collection, cfg ReadConfig, h Handler) error {
	if err := col.Validate(); err != nil {
		return err
	}
	cfg.MaxBatch = cmp.Or(cfg.MaxBatch, defaultMaxBatch)
	cfg.PullBytes = max(cmp.Or(cfg.PullBytes, defaultPullBytes), 2*c.cfg.MaxPayload)
	r := &reader{c: c, col: col, cfg: cfg, handle: h, pos: cfg.From, contact: cmp.Or(cfg.FromTime, time.Now()), created: cfg.Created}
	r.catchUp = cfg.CatchUp && !cfg.From.IsZero()
	r.term, r.epoch = cfg.From.Term, cfg.From.Epoch
	backoff := minBackoff
	for {
		began := time.Now()
		err := r.session(ctx)
		var failed *handlerError
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &failed):
			return failed.err
		case errors.Is(err, ErrBootstrap):
			c.cfg.Log.Info("reading the log from its start again",
				slog.String("collection", col.String()), slog.String("reason", err.Error()))
			r.pos = delta.Position{}
			continue
		case errors.Is(err, ErrNoLog):
			backoff = min(backoff, time.Second) // it will be made any moment
		default:
			c.cfg.Log.Warn("reading the log was interrupted",
				slog.String("collection", col.String()), slog.String("error", err.Error()))
		}
		if time.Since(began) > maxBackoff {
			backoff = minBackoff
		}
		select {
		case <-time.After(backoff + rand.N(backoff)):
			backoff = min(2*backoff, maxBackoff)
		case <-c.events.wait():
			backoff = minBackoff
		case <-ctx.Done():
			return nil
		}
	}
}

// Check tells whether a position can be resumed: nil, or an error wrapping [ErrBootstrap] or [ErrNoLog].
func (c *Conn) Check(ctx context.Context, col delta.Collection, from delta.Position) error {
	tail, err := c.Tail(ctx, col)
	if err != nil {
		return err
	}
	return check(tail, from)
}

func check(tail Tail, from delta.Position) error {
	switch {
	case from.Sequence > tail.Last:
		return fmt.Errorf("%w: the log ends at %d, the position is %d", ErrBootstrap, tail.Last, from.Sequence)
	case from.Epoch != tail.Epoch:
		return fmt.Errorf("%w: the log is in epoch %d, the position in %d", ErrBootstrap, tail.Epoch, from.Epoch)
	case from.Term != 0 && tail.Term > from.Term && tail.Start <= from.Sequence:
		return fmt.Errorf("%w: term %d began at %d, the position is %d of term %d",
			ErrBootstrap, tail.Term, tail.Start, from.Sequence, from.Term)
	case from.Term > tail.Term:
		return fmt.Errorf("%w: the log is in term %d, the position in %d", ErrBootstrap, tail.Term, from.Term)
	}
	return nil
}

var errMadeAnew = fmt.Errorf("%w: the log was made anew", ErrBootstrap)

// handlerError carries a handler's error out of a session, so that it is not taken for one of the log's.
type handlerError struct{ err error }

func (e *handlerError) Error() string { return e.err.Error() }

// reader is one Read. Its fields belong to the goroutine that runs it.
type reader struct {
	c      *Conn
	col    delta.Collection
	cfg    ReadConfig
	handle Handler

	pos         delta.Position // applied
	epoch, term uint64         // of the log, as last checked
	created     time.Time      // of the stream
	contact     time.Time      // when pos was last known to be current
	catchUp     bool           // pos is to be accepted, and caught up from
	resumed     bool           // the replay began behind a position
	replaying   bool
	target      uint64 // the end the replay must reach
	hole        bool   // a hole was seen since target was read
	consumerSeq uint64
}

// session reads with one consumer until something is wrong.
func (r *reader) session(ctx context.Context) error {
	tail, err := r.c.Tail(ctx, r.col)
	if err != nil {
		return err
	}
	if err := r.identify(tail); err != nil {
		return err
	}
	switch {
	case r.pos.IsZero():
		r.replaying, r.resumed, r.target, r.hole = true, false, tail.Last, false
		if err := r.deliver(ctx, delta.Batch{Reset: true}); err != nil {
			return err
		}
	case r.catchUp:
		r.replaying, r.resumed, r.target, r.hole = true, true, tail.Last, false
	}
	r.catchUp = false
	cons, err := r.open(ctx)
	if err != nil {
		return err
	}
	name := cons.CachedInfo().Name
	defer r.remove(ctx, name)
	msgs := make(chan jetstream.Msg, r.cfg.MaxBatch)
	fault := make(chan error, 1)
	done := make(chan struct{})
	cc, err := cons.Consume(func(m jetstream.Msg) {
		select {
		case msgs <- m:
		case <-done:
		}
	}, jetstream.PullMaxBytes(r.cfg.PullBytes), jetstream.PullExpiry(30*time.Second), jetstream.PullHeartbeat(5*time.Second),
		jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
			select {
			case fault <- err:
			default:
			}
		}))
	if err != nil {
		close(done)
		return fmt.Errorf("read the log of %s: %w", r.col, err)
	}
	defer func() {
		close(done)
		cc.Stop()
		<-cc.Closed()
	}()
	return r.follow(ctx, cons, msgs, fault)
}

// identify compares the log with the place this reader stands at.
func (r *reader) identify(tail Tail) error {
	away := time.Since(r.contact)
	if !r.pos.IsZero() {
		if err := check(tail, r.pos); err != nil {
			return err
		}
		if !r.created.IsZero() && !tail.Created.Equal(r.created) {
			return errMadeAnew
		}
		if away > r.c.cfg.TombstoneTTL/2 {
			return fmt.Errorf("%w: %v away, more than half the tombstone ttl", ErrBootstrap, away.Round(time.Second))
		}
	}
	r.epoch, r.term, r.created, r.contact = tail.Epoch, tail.Term, tail.Created, time.Now()
	return nil
}

func (r *reader) open(ctx context.Context) (jetstream.Consumer, error) {
	r.consumerSeq = 0
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
	cons, err := r.c.js.CreateConsumer(ctx, r.col.StreamName(), cfg)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, fmt.Errorf("%w: %s", ErrNoLog, r.col)
	}
	if err != nil {
		return nil, fmt.Errorf("read the log of %s: %w", r.col, err)
	}
	return cons, nil
}

// remove deletes the consumer at once, also when the reader is being stopped; the server would only do so after a while.
func (r *reader) remove(ctx context.Context, name string) {
	if !r.c.nc.IsConnected() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), consumerOpTimeout)
	defer cancel()
	_ = r.c.js.DeleteConsumer(ctx, r.col.StreamName(), name)
}

func (r *reader) follow(ctx context.Context, cons jetstream.Consumer, msgs <-chan jetstream.Msg, fault <-chan error) error {
	reconnected := r.c.events.wait()
	quiet := time.NewTimer(0) // at once: an empty log is replayed without a message
	defer quiet.Stop()
	batch := make([]jetstream.Msg, 0, r.cfg.MaxBatch)
	for {
		select {
		case m := <-msgs:
			batch = append(batch[:0], m)
			for more := true; more && len(batch) < r.cfg.MaxBatch; {
				select {
				case m := <-msgs:
					batch = append(batch, m)
				default:
					more = false
				}
			}
			if err := r.process(ctx, batch); err != nil {
				return err
			}
			clear(batch) // the last messages would be held until others come
			quiet.Reset(r.patience())
		case <-quiet.C:
			if err := r.idle(ctx, cons); err != nil {
				return err
			}
			quiet.Reset(r.patience())
		case err := <-fault:
			return fmt.Errorf("read the log of %s: %w", r.col, err)
		case <-reconnected:
			return fmt.Errorf("read the log of %s: reconnected", r.col)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (r *reader) patience() time.Duration {
	if r.replaying {
		return 200 * time.Millisecond
	}
	return min(silence, r.c.cfg.TombstoneTTL/4)
}

// idle runs when nothing has come for a while: the end of a replay may lie behind records that expired, and the log may be gone.
func (r *reader) idle(ctx context.Context, cons jetstream.Consumer) error {
	if !r.replaying {
		tail, err := r.c.Tail(ctx, r.col)
		if err != nil {
			return err
		}
		return r.identify(tail)
	}
	tail, err := r.c.Tail(ctx, r.col)
	if err != nil {
		return err
	}
	if !tail.Created.Equal(r.created) {
		return errMadeAnew
	}
	info, err := cons.Info(ctx)
	if err != nil {
		return fmt.Errorf("read the log of %s: %w", r.col, err)
	}
	if info.NumPending > 0 || info.Delivered.Consumer != r.consumerSeq {
		return nil // on its way
	}
	r.contact = time.Now()
	r.pos = delta.Position{Epoch: r.epoch, Term: r.term, Sequence: max(r.pos.Sequence, tail.Last)}
	if tail.Last == 0 {
		r.pos = delta.Position{}
	}
	r.replaying = false
	return r.deliver(ctx, delta.Batch{Replayed: true, Next: tail.Last + 1})
}
