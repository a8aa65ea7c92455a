package read

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/stream/link"
)

const (
	// silence is how long a reader hears nothing before it checks that its place in the log still
	// exists; the leader writes a liveness record every 2 s.
	silence = 7 * time.Second
	// readerPrefix begins the names of the ephemeral consumers; they disappear by themselves when
	// nobody pulls.
	readerPrefix     = "dp_read_"
	readerInactive   = 30 * time.Second
	mostLeft         = 1024 // consumers that are to be removed later; the server drops them by itself too
	minBackoff       = 100 * time.Millisecond
	maxBackoff       = 5 * time.Second
	defaultMaxBatch  = 1024
	pullMessages     = 1024 // of a reader of headers
	defaultPullBytes = 16 << 20
	// pullSilence is how long a server that answers may answer no request for records before the
	// consumer is taken for lost.
	pullSilence       = 12 * time.Second
	consumerOpTimeout = 2 * time.Second
)

// Handler takes a batch of a collection's log. Batches come in order, one at a time, never empty of
// both records and flags. The records and their payloads may be kept but not changed. An error ends
// the read and is returned by it.
type Handler func(ctx context.Context, b delta.Batch) error

// errConsumerLost: the server has no such consumer any more, or gives it up.
var errConsumerLost = errors.New("stream: consumer lost")

// errNarrow: the next record is larger than what is requested at a time.
var errNarrow = errors.New("stream: record is larger than a request")

// Config says where and how to read. The zero value replays the log from its start and follows
// it.
type Config struct {
	// From is the position to resume behind; zero replays from the start.
	From delta.Position
	// FromTime is when From was current. A position older than half the tombstone TTL is not resumed.
	// The zero time means "just now".
	FromTime time.Time
	// Created is the [delta.Batch]'s Created of the log that From is a position of; a log made at
	// another time is not resumed. The zero time is any log.
	Created time.Time
	// CatchUp reports the end of the log, as it was when From was accepted, by a batch with Replayed
	// set, as for a replay. The reader must claim nothing before it: holes in between are not reported
	// one by one.
	CatchUp bool
	// HeadersOnly leaves the payloads out.
	HeadersOnly bool
	// MaxBatch bounds the records of one batch; default 1024.
	MaxBatch int
	// PullBytes bounds what the server sends ahead; default 16 MiB, and never less than two records of
	// the largest size.
	PullBytes int
}

// Log follows the log of col until ctx ends (then it returns nil) or the handler fails (then it
// returns that error). It waits for a log that does not exist yet and reconnects with back-off for
// ever. When the place it reads from is lost (a new epoch, a newer term that began at or below its
// position, a log made again, an absence longer than half the tombstone TTL) it starts again from
// the beginning with a batch that has Reset set; the first batch of a read without From has Reset
// too. The end of every replay is reported by a batch with Replayed set.
//
// A record that needs a later build is never passed over: the read stands still before it, says so
// by batches with Newer set, and tries again with back-off. While the log's leader announces such
// records, what the handler holds is not begun again.
func Log(ctx context.Context, c *link.Conn, col delta.Collection, cfg Config, h Handler) error {
	if err := col.Validate(); err != nil {
		return err
	}
	cfg.MaxBatch = cmp.Or(cfg.MaxBatch, defaultMaxBatch)
	cfg.PullBytes = cmp.Or(cfg.PullBytes, defaultPullBytes)
	r := &reader{c: c, col: col, cfg: cfg, handle: h, pos: cfg.From, contact: cmp.Or(cfg.FromTime, time.Now()), created: cfg.Created}
	r.catchUp = cfg.CatchUp && !cfg.From.IsZero()
	r.largest = c.Config.MaxPayload
	r.term, r.epoch, r.old = cfg.From.Term, cfg.From.Epoch, cfg.From.Sequence
	r.whole = !cfg.From.IsZero() && !cfg.CatchUp
	wait, told := retry{}, false
	for {
		began := time.Now()
		err := r.session(ctx)
		var failed *link.HandlerError
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &failed):
			return failed.Err
		}
		if unknown, ok := errors.AsType[*delta.UnknownError](err); ok {
			newer, ok := errors.AsType[*delta.NewerError](err)
			if !ok { // who leads cannot be read
				newer = &delta.NewerError{Unknown: unknown}
			}
			r.stopped = true
			if err := h(ctx, delta.Batch{Collection: col, Created: r.created, Newer: newer}); err != nil {
				return err
			}
		}
		if time.Since(began) > maxBackoff || errors.Is(err, errReconnected) && r.moved {
			wait = retry{} // it worked until then
		}
		backoff := wait.next(errors.Is(err, link.ErrBootstrap))
		switch {
		case errors.Is(err, link.ErrBootstrap):
			c.Config.Log.Info("reading the log from its start again", slog.String("collection", col.String()),
				slog.String("reason", err.Error()), slog.Duration("after", backoff))
			r.pos = delta.Position{}
		case errors.Is(err, link.ErrNoLog):
			backoff = min(backoff, time.Second) // it will be made any moment
		default:
			level := slog.LevelWarn
			if told && !r.moved || errors.Is(err, errReconnected) || errors.Is(err, context.Canceled) {
				level = slog.LevelDebug // said before, or told of the connection
			}
			c.Config.Log.Log(ctx, level, "reading the log was interrupted", slog.String("collection", col.String()), slog.String("error", err.Error()))
			told = true
		}
		select {
		case <-time.After(jitter(backoff)):
		case <-c.Events.Wait():
			wait = retry{}
		case <-ctx.Done():
			return nil
		}
	}
}

// retry is the wait between attempts. The first refusal of a position is no failure: reading
// begins again without back-off.
type retry struct {
	failures int
	refused  bool
}

func (p *retry) next(refused bool) time.Duration {
	if refused && !p.refused {
		p.refused = true
		return 0
	}
	p.failures++
	return min(minBackoff<<min(p.failures-1, 10), maxBackoff)
}

// replaySpread is in which time readers begin again that lost their positions at once, as all of a
// log's do with a new epoch.
const replaySpread = 500 * time.Millisecond

// jitter is a wait of at least backoff; without one it only keeps readers apart.
func jitter(backoff time.Duration) time.Duration {
	if backoff == 0 {
		return rand.N(replaySpread)
	}
	return backoff + rand.N(backoff)
}

// Check tells whether a position can be resumed: nil, or an error wrapping [link.ErrBootstrap] or
// [link.ErrNoLog].
func Check(ctx context.Context, c *link.Conn, col delta.Collection, from delta.Position) error {
	tail, err := c.Tail(ctx, col)
	if err != nil {
		return err
	}
	return check(tail, from)
}

func check(tail link.Tail, from delta.Position) error {
	switch {
	case from.Sequence > tail.Last:
		return fmt.Errorf("%w: the log ends at %d, the position is %d", link.ErrBootstrap, tail.Last, from.Sequence)
	case from.Epoch != tail.Epoch:
		return fmt.Errorf("%w: the log is in epoch %d, the position in %d", link.ErrBootstrap, tail.Epoch, from.Epoch)
	case from.Term != 0 && tail.Term > from.Term && tail.Start <= from.Sequence:
		return fmt.Errorf("%w: term %d began at %d, the position is %d of term %d",
			link.ErrBootstrap, tail.Term, tail.Start, from.Sequence, from.Term)
	case from.Term > tail.Term:
		return fmt.Errorf("%w: the log is in term %d, the position in %d", link.ErrBootstrap, tail.Term, from.Term)
	}
	return nil
}

var errRecreated = fmt.Errorf("%w: the log was made again", link.ErrBootstrap)

// reader is one Read. Its fields belong to the goroutine that runs it.
type reader struct {
	c      *link.Conn
	col    delta.Collection
	cfg    Config
	handle Handler

	pos         delta.Position // applied
	epoch, term uint64         // of the log, as last checked
	old         uint64         // the last sequence read of that term or an earlier one
	created     time.Time      // of the stream
	contact     time.Time      // when pos was last known to be current, by this process's clock
	heard       time.Time      // the same by the log's clock; zero when it was not asked yet
	ahead       time.Duration  // how far the log's clock is ahead of this process's
	left        []string       // consumers that could not be removed yet
	catchUp     bool           // pos is to be accepted, and caught up from
	resumed     bool           // the replay began behind a position
	replaying   bool
	began       time.Time // when the replay began
	target      uint64    // the end the replay must reach
	hole        bool      // a hole was seen since target was read
	replicas    int       // of the log
	holeEnd     holeEnd   // of a replicated log
	consumerSeq uint64
	calm        bool      // the feeding server had nothing to send and a request for it, and nothing came since
	largest     int       // bytes of a record, as far as is known
	pull        int       // bytes that are requested at a time; 0 for a number of messages
	stuck       bool      // the server had a record and did not send it
	fits        uint64    // the sequence of a record that was found to fit into a request
	moved       bool      // this session has read something
	whole       bool      // a replay was brought to its end, so that the handler holds something
	stopped     bool      // before a record of a later build: contact is not renewed until more has been read
	tail        link.Tail // as read when the session began, and by term records since
}
