package read

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltaplane/deltaplane/internal/stream/kv"
	"github.com/deltaplane/deltaplane/internal/stream/link"
)

// errLate ends a session whose next one finds out, by what the other replicas saved, whether there
// is a gap.
var errLate = errors.New("stream: nothing handled for longer than the tombstone ttl")

// mark is the generation kept beside the consumer's position: of which log, and until when nothing
// of it has been missed.
type mark struct {
	Created int64  `json:"created"` // of the stream, unix nanoseconds
	Epoch   uint64 `json:"epoch"`
	// Acked is the time, in unix milliseconds, up to which every record has been handled or was made
	// up for by a gap.
	Acked int64 `json:"acked"`
	// From is the end of the log at the last gap: what is not above it is the state and says nothing
	// about the lag.
	From uint64 `json:"from"`
}

// late reports that a deletion may have left the log before it was handled, or might before the
// next look: the server may say that nothing waits a moment after it took a record, and as long as
// that moment is what the last quarter of the TTL is for.
func (m *mark) late(ttl time.Duration) bool {
	return time.Since(time.UnixMilli(m.Acked)) > ttl-ttl/4
}

// handled notes that a record published at a time has been handled.
func (m *mark) handled(sequence uint64, at time.Time) {
	if sequence > m.From {
		m.Acked = max(m.Acked, min(at.UnixMilli(), time.Now().UnixMilli()))
	}
}

// reconcile compares the log with the generation kept beside the position, and reports a gap before
// anything else.
func (k *consumer) reconcile(ctx context.Context, bucket *kv.Bucket, tail link.Tail, unused bool) error {
	k.epoch = tail.Epoch
	began := time.Now()
	e, err := bucket.Get(ctx, k.key())
	var gap Gap
	k.state = mark{}
	switch {
	case errors.Is(err, kv.ErrNoKey):
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
	case k.state.late(k.c.Config.TombstoneTTL):
		gap = GapLag
	case unused && k.state.Acked > 0 && tail.Messages > 0:
		gap = GapNew // the consumer was deleted and made again
	}
	if gap != "" {
		if err := k.handle(ctx, Work{Collection: k.col, Gap: gap, Epoch: tail.Epoch}); err != nil {
			return fmt.Errorf("consumer %s of %s: gap %s: %w", k.cfg.Name, k.col, gap, err)
		}
		k.state = mark{Created: tail.Created.UnixNano(), Epoch: tail.Epoch, Acked: began.UnixMilli(), From: tail.Last}
	}
	return k.save(ctx, bucket)
}

func (k *consumer) key() string { return k.cfg.Name + "/" + k.col.String() }

func (k *consumer) save(ctx context.Context, bucket *kv.Bucket) error {
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

func (k *consumer) saveNowAndThen(ctx context.Context, bucket *kv.Bucket) error {
	if time.Since(k.saved) <= k.c.Config.TombstoneTTL/8 {
		return nil
	}
	return k.save(ctx, bucket)
}

// verify looks whether the log is still the same, and notes that this consumer is current when
// nothing waits.
func (k *consumer) verify(ctx context.Context, bucket *kv.Bucket, cons jetstream.Consumer) error {
	tail, err := k.c.Tail(ctx, k.col)
	if err != nil {
		return err
	}
	if tail.Epoch != k.state.Epoch || tail.Created.UnixNano() != k.state.Created {
		return fmt.Errorf("%w: the log is another one", link.ErrBootstrap)
	}
	if k.state.late(k.c.Config.TombstoneTTL) {
		return errLate
	}
	began := time.Now()
	info, err := cons.Info(ctx)
	if err != nil {
		return err
	}
	if k.state.late(k.c.Config.TombstoneTTL) {
		return errLate // what was not handled may have left the log before that answer, and waits no more
	}
	k.stall(ctx, info.NumAckPending)
	if info.NumPending == 0 && info.NumAckPending == 0 {
		k.state.Acked = began.UnixMilli()
	}
	return k.saveNowAndThen(ctx, bucket)
}
