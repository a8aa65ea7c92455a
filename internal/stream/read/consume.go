package read

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/stream/kv"
	"github.com/deltaplane/deltaplane/internal/stream/link"
)

// consumerBucket holds what each durable consumer last acknowledged.
const consumerBucket = "deltaplane-consumers"

// Buckets are those that [Consume] writes.
var Buckets = []string{consumerBucket}

// Gap says why the keys named so far may not be all that matter: the consumer's owner must enqueue
// every key.
type Gap string

// The reasons for a gap. Empty means none.
const (
	// GapNew: the durable consumer did not exist before.
	GapNew Gap = "new_consumer"
	// GapEpoch: the log's epoch is not the one this consumer last acknowledged.
	GapEpoch Gap = "new_epoch"
	// GapLag: this consumer is more than three quarters of the tombstone TTL behind, so that deletions
	// may have left the log before it saw them.
	GapLag Gap = "lag"
	// GapLost: the log was made again, so the consumer was too.
	GapLost Gap = "log_lost"
)

// Work is one batch for a shared durable consumer.
type Work struct {
	Collection delta.Collection
	// Records of kind delta, in the order the server handed them out; a record comes again when its
	// batch was not acknowledged. One that cannot be decoded has its key, version 0, and Overflow set.
	Records []delta.Record
	// Gap is set on a batch without records that comes before anything else, and again until the
	// handler returned nil for it.
	Gap Gap
	// Epoch is the log's epoch when the batch was read.
	Epoch uint64
}

// ConsumeConfig names a shared durable consumer.
type ConsumeConfig struct {
	// Name of the consumer, shared by its replicas: letters, digits, "-" and "_".
	Name string
	// Collections to consume; one that has no log yet is waited for.
	Collections []delta.Collection
	// HeadersOnly leaves the payloads out.
	HeadersOnly bool
	// MaxBatch bounds the records of one batch, and 16 times MaxBatch those that all replicas together
	// have not acknowledged; default 256.
	MaxBatch int
	// PullBytes bounds what the server sends a replica ahead of records with payloads; default 16 MiB,
	// and never less than two records of the largest size. Without payloads MaxBatch does. Of small
	// records with payloads one replica may so have all that may be unacknowledged: what it does not
	// get to within AckWait comes again, to the next request. Those whose handlers are slow choose a
	// smaller MaxBatch.
	PullBytes int
	// Gather is how long the records of a collection wait for more, up to MaxBatch, so that they make
	// one batch; it is part of AckWait. At most 1 s; zero hands them on as they come.
	Gather map[delta.Collection]time.Duration
	// AckWait is how long a batch may take before its records are handed to another replica; default
	// 30 s.
	AckWait time.Duration
}

// mostGather is far below AckWait.
const mostGather = time.Second

func (c ConsumeConfig) validate() error {
	var errs []error
	if c.Name == "" || strings.ContainsFunc(c.Name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_'
	}) {
		errs = append(errs, fmt.Errorf("consumer name %q: want letters, digits, - and _", c.Name))
	}
	if len(c.Collections) == 0 {
		errs = append(errs, errors.New("no collections"))
	}
	for _, col := range c.Collections {
		errs = append(errs, col.Validate())
		if d := c.Gather[col]; d < 0 || d > mostGather {
			errs = append(errs, fmt.Errorf("gather %v of %s is not within 0 and %v", d, col, mostGather))
		}
	}
	return errors.Join(errs...)
}

// Consume hands every record of the collections to one of the replicas that share cfg.Name, at
// least once, and acknowledges a batch after the handler returned nil; on an error the batch comes
// again after a back-off. Handlers of different collections run concurrently. It returns nil when
// ctx ends.
func Consume(ctx context.Context, c *link.Conn, cfg ConsumeConfig, handler func(context.Context, Work) error) error {
	cfg.MaxBatch = cmp.Or(cfg.MaxBatch, 256)
	cfg.AckWait = cmp.Or(cfg.AckWait, 30*time.Second)
	cfg.PullBytes = cmp.Or(cfg.PullBytes, defaultPullBytes)
	if err := cfg.validate(); err != nil {
		return fmt.Errorf("consume: %w", err)
	}
	var g errgroup.Group
	for _, col := range cfg.Collections {
		g.Go(func() error {
			k := &consumer{c: c, col: col, cfg: cfg, handle: handler}
			k.run(ctx)
			return nil
		})
	}
	return g.Wait()
}

// consumer is one durable consumer of one collection.
type consumer struct {
	c      *link.Conn
	col    delta.Collection
	cfg    ConsumeConfig
	handle func(context.Context, Work) error

	state   mark
	saved   time.Time
	epoch   uint64
	stalled bool                        // it was said
	unknown map[delta.UnknownError]bool // they were named
}

// unread names a record that cannot be read: what a later build writes once, since all of its
// records may be so.
func (k *consumer) unread(ctx context.Context, err error) {
	if u, ok := errors.AsType[*delta.UnknownError](err); ok {
		if k.unknown[*u] {
			return
		}
		if k.unknown == nil {
			k.unknown = map[delta.UnknownError]bool{}
		}
		k.unknown[*u] = true
	}
	k.c.Config.Log.LogAttrs(ctx, slog.LevelError, "record cannot be read", slog.String("collection", k.col.String()), slog.String("error", err.Error()))
}

// mostPending is how many records all replicas together may have unacknowledged; then the server
// hands out no more.
func (k *consumer) mostPending() int { return 16 * k.cfg.MaxBatch }

// stall warns when the server hands out nothing more, because replicas sit on what they got.
func (k *consumer) stall(ctx context.Context, pending int) {
	was := k.stalled
	if k.stalled = pending >= k.mostPending(); k.stalled && !was {
		k.c.Config.Log.LogAttrs(ctx, slog.LevelWarn, "consumer stands still: as many records as may be wait to be acknowledged",
			slog.String("consumer", k.cfg.Name), slog.String("collection", k.col.String()), slog.Int("count", pending))
	}
}

func (k *consumer) run(ctx context.Context) {
	backoff := minBackoff
	for {
		began := time.Now()
		err := k.session(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > maxBackoff {
			backoff = minBackoff
		}
		if errors.Is(err, link.ErrNoLog) {
			backoff = min(backoff, time.Second)
		} else {
			// A handler that has to wait for its index at the start is no news; one that still waits after a
			// while is.
			level := slog.LevelInfo
			if backoff >= 2*time.Second {
				level = slog.LevelWarn
			}
			k.c.Config.Log.LogAttrs(ctx, level, "consuming the log was interrupted", slog.String("consumer", k.cfg.Name),
				slog.String("collection", k.col.String()), slog.String("error", err.Error()))
		}
		select {
		case <-time.After(backoff + rand.N(backoff)):
			backoff = min(2*backoff, maxBackoff)
		case <-k.c.Events.Wait():
			backoff = minBackoff
		case <-ctx.Done():
			return
		}
	}
}

func (k *consumer) session(ctx context.Context) error {
	tail, err := k.c.Tail(ctx, k.col)
	if err != nil {
		return err
	}
	if tail.Term == 0 { // its epoch would be another one a moment later, and every key be enqueued twice
		return fmt.Errorf("%w that a leader has begun: %s", link.ErrNoLog, k.col)
	}
	bucket, err := kv.Open(ctx, k.c, consumerBucket, 0)
	if err != nil {
		return err
	}
	cons, err := k.c.JetStream.CreateOrUpdateConsumer(ctx, k.col.StreamName(), jetstream.ConsumerConfig{
		Durable:        k.cfg.Name,
		FilterSubjects: k.col.Subjects()[:1],
		DeliverPolicy:  jetstream.DeliverAllPolicy,
		AckPolicy:      jetstream.AckExplicitPolicy,
		AckWait:        k.cfg.AckWait,
		MaxDeliver:     -1,
		MaxAckPending:  k.mostPending(),
		HeadersOnly:    k.cfg.HeadersOnly,
	})
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("%w: %s", link.ErrNoLog, k.col)
	}
	if err != nil {
		return fmt.Errorf("consumer %s of %s: %w", k.cfg.Name, k.col, err)
	}
	if err := k.reconcile(ctx, bucket, tail, cons.CachedInfo().Delivered.Consumer == 0); err != nil {
		return err
	}
	return k.pull(ctx, bucket, cons, tail.Largest)
}

func (k *consumer) pull(ctx context.Context, bucket *kv.Bucket, cons jetstream.Consumer, largest int) error {
	reconnected := k.c.Events.Wait()
	bytes := 0
	if !k.cfg.HeadersOnly {
		bytes = pullBytes(k.cfg.PullBytes, max(k.c.Config.MaxPayload, largest))
	}
	// What is not handled goes to the other replicas, which would else wait for the ack deadline.
	in, err := deliver(cons, k.cfg.MaxBatch, bytes, func(m jetstream.Msg) { _ = m.Nak() })
	if err != nil {
		return fmt.Errorf("consumer %s of %s: %w", k.cfg.Name, k.col, err)
	}
	defer in.close()
	var batch []jetstream.Msg
	check := time.NewTicker(min(silence, k.c.Config.TombstoneTTL/4))
	defer check.Stop()
	for {
		select {
		case <-in.ready:
			if wait := k.cfg.Gather[k.col]; wait > 0 {
				in.gather(ctx, wait)
			}
			if k.state.late(k.c.Config.TombstoneTTL) {
				return errLate
			}
			if batch = in.take(batch[:0], k.cfg.MaxBatch); len(batch) == 0 {
				continue
			}
			if err := k.batch(ctx, batch); err != nil {
				return err
			}
			clear(batch)
			if err := k.saveNowAndThen(ctx, bucket); err != nil {
				return err
			}
		case <-check.C:
			if err := k.verify(ctx, bucket, cons); err != nil {
				return err
			}
		case err := <-in.fault:
			if errors.Is(err, jetstream.ErrNoHeartbeat) {
				continue // the library requests again, and verify looks whether the consumer is there
			}
			return fmt.Errorf("consumer %s of %s: %w", k.cfg.Name, k.col, err)
		case <-reconnected:
			return fmt.Errorf("consumer %s of %s: reconnected", k.cfg.Name, k.col)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (k *consumer) batch(ctx context.Context, batch []jetstream.Msg) error {
	w := Work{Collection: k.col, Epoch: k.epoch, Records: make([]delta.Record, 0, len(batch))}
	done := k.state
	for _, m := range batch {
		meta, err := m.Metadata()
		if err != nil {
			return err
		}
		rec, err := k.c.Decode(m.Subject(), m.Headers(), m.Data(), meta.Sequence.Stream)
		if err != nil {
			k.unread(ctx, err)
			_, _, key, err := delta.ParseSubject(m.Subject())
			if err != nil {
				continue // not a key of ours
			}
			// Something happened to the key, and whom it concerns is not known.
			rec = delta.Record{
				Kind: delta.KindDelta, Type: delta.Updated, Collection: k.col, Key: key, Epoch: k.epoch, RV: "0", Overflow: true,
				Sequence: meta.Sequence.Stream,
			}
		}
		done.handled(meta.Sequence.Stream, meta.Timestamp)
		if rec.Epoch > k.epoch && k.epoch == k.state.Epoch && k.epoch != 0 {
			return fmt.Errorf("%w: epoch %d began", link.ErrBootstrap, rec.Epoch) // nothing acknowledged: it all comes again
		}
		w.Records = append(w.Records, rec)
	}
	if len(w.Records) == 0 {
		return ackAll(batch)
	}
	if err := k.handle(ctx, w); err != nil {
		nak(batch, time.Second)
		if ctx.Err() == nil {
			k.c.Config.Log.Warn("batch was not handled and comes again", slog.String("consumer", k.cfg.Name),
				slog.String("collection", k.col.String()), slog.String("error", err.Error()))
		}
		return nil
	}
	k.state = done
	return ackAll(batch)
}

func ackAll(batch []jetstream.Msg) error {
	for _, m := range batch {
		if err := m.Ack(); err != nil {
			return err
		}
	}
	return nil
}

func nak(batch []jetstream.Msg, delay time.Duration) {
	for _, m := range batch {
		_ = m.NakWithDelay(delay) // a lost nak only waits for the ack deadline
	}
}
