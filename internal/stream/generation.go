package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// mark is the generation kept beside the consumer's position: of which log, and when it was last current.
type mark struct {
	Created int64  `json:"created"` // of the stream, unix nanoseconds
	Epoch   uint64 `json:"epoch"`
	Acked   int64  `json:"acked"` // unix milliseconds
}

// reconcile compares the log with the generation kept beside the position, and reports a gap before anything else.
func (k *consumer) reconcile(ctx context.Context, bucket *Bucket, tail Tail, unused bool) error {
	k.epoch = tail.Epoch
	e, err := bucket.Get(ctx, k.key())
	var gap Gap
	k.state = mark{}
	switch {
	case errors.Is(err, ErrNoKey):
		gap = GapNew
	case err != nil:
		return err
	default:
		if err := json.Unmarshal(e.Value, &k.state); err != nil {
			gap = GapNew
		}
	}
	switch {
	case gap != "":
	case k.state.Created != tail.Created.UnixNano():
		gap = GapLost
	case k.state.Epoch != tail.Epoch:
		gap = GapEpoch
	case time.Since(time.UnixMilli(k.state.Acked)) > k.c.cfg.TombstoneTTL:
		gap = GapLag
	case unused && k.state.Acked > 0 && tail.Messages > 0:
		gap = GapNew // the consumer was deleted and made again
	}
	if gap != "" {
		if err := k.handle(ctx, Work{Collection: k.col, Gap: gap, Epoch: tail.Epoch}); err != nil {
			return fmt.Errorf("consumer %s of %s: gap %s: %w", k.cfg.Name, k.col, gap, err)
		}
	}
	k.state = mark{Created: tail.Created.UnixNano(), Epoch: tail.Epoch}
	return k.save(ctx, bucket)
}

func (k *consumer) key() string { return k.cfg.Name + "/" + k.col.String() }

func (k *consumer) save(ctx context.Context, bucket *Bucket) error {
	k.state.Acked = time.Now().UnixMilli()
	value, err := json.Marshal(k.state)
	if err != nil {
		return err
	}
	if _, err := bucket.Put(ctx, k.key(), value); err != nil {
		return err
	}
	k.saved = time.Now()
	return nil
}

// verify looks whether the log is still the same, and notes that this consumer is current when nothing waits.
func (k *consumer) verify(ctx context.Context, bucket *Bucket, cons jetstream.Consumer) error {
	tail, err := k.c.Tail(ctx, k.col)
	if err != nil {
		return err
	}
	if tail.Epoch != k.state.Epoch || tail.Created.UnixNano() != k.state.Created {
		return fmt.Errorf("%w: the log is another one", ErrBootstrap)
	}
	info, err := cons.Info(ctx)
	if err != nil {
		return err
	}
	if info.NumPending == 0 && info.NumAckPending == 0 && time.Since(k.saved) > k.c.cfg.TombstoneTTL/8 {
		return k.save(ctx, bucket)
	}
	return nil
}
