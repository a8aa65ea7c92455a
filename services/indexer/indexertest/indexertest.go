// Package indexertest makes records for tests of the indexer's packages, and a log
// that nobody reads.
package indexertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/stream"
)

// Now is when tests of collections that are filled by hand take place.
var Now = time.Unix(1_700_000_000, 0)

// Pods is the collection that the records are of.
var Pods = delta.Collection{Cluster: "dev", Version: "v1", Resource: "pods"}

// Record is a pod that was published some time before Now.
func Record(seq uint64, age time.Duration) delta.Record {
	return delta.Record{
		Kind: delta.KindDelta, Type: delta.Updated, Key: delta.Key(fmt.Sprintf("n/p%d", seq)), RV: fmt.Sprint(seq), Watermark: fmt.Sprint(seq),
		Epoch: 1, Term: 1, Sequence: seq, PublishedAt: Now.Add(-age), StoredAt: Now.Add(-age), Payload: fmt.Appendf(nil, `{"metadata":{"namespace":"n","name":"p%d"}}`, seq),
	}
}

// Synced ends a list.
func Synced(seq uint64) delta.Record {
	return delta.Record{Kind: delta.KindSynced, RV: fmt.Sprint(seq), Watermark: fmt.Sprint(seq), Epoch: 1, Term: 1, Sequence: seq, PublishedAt: Now.Add(-3 * time.Hour), StoredAt: Now.Add(-3 * time.Hour)}
}

// DeadLog is a log that nobody reads.
type DeadLog struct{ TTL time.Duration }

// Collections fails.
func (DeadLog) Collections(context.Context) ([]delta.Collection, error) { return nil, io.EOF }

// Read fails.
func (DeadLog) Read(context.Context, delta.Collection, stream.ReadConfig, stream.Handler) error {
	return io.EOF
}

// Tail fails.
func (DeadLog) Tail(context.Context, delta.Collection) (stream.Tail, error) {
	return stream.Tail{}, io.EOF
}

// TombstoneTTL is how long tombstones would live.
func (l DeadLog) TombstoneTTL() time.Duration { return l.TTL }

// Away says so.
func (DeadLog) Away() error { return errors.New("a dead log") }

// Bucket fails.
func (DeadLog) Bucket(context.Context, string, time.Duration) (*stream.Bucket, error) {
	return nil, io.EOF
}
