package indexer

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/services/indexer/extract"
)

// noBuckets is a log without buckets.
type noBuckets struct{}

func (noBuckets) Bucket(context.Context, string, time.Duration) (*stream.Bucket, error) {
	return nil, io.EOF
}

// begun is the time of collections that are filled by hand.
var begun = time.Unix(1_700_000_000, 0)

// testIndexes are the indexes of pods that are put by hand.
type testIndexes struct{ *indexes }

func newTestIndexes(t *testing.T) testIndexes {
	t.Helper()
	id := delta.Collection{Cluster: "dev", Version: "v1", Resource: "pods"}
	return testIndexes{newIndexes(indexesConfig{
		id: id, store: store.New(store.Options{TombstoneTTL: time.Hour, Indexers: builtIn(id)}), slog: slog.New(slog.DiscardHandler),
		now: func() time.Time { return begun }, declarations: newDeclarations(noBuckets{}, slog.New(slog.DiscardHandler), func(string) {}),
		fields: map[string][]string{"pods": {nodeField, "status.phase"}}, evicted: make(chan struct{}),
		room: fakeRoom{spare: func() error { return nil }, fits: func(int) bool { return true }}, lookEvery: time.Second,
	})}
}

// fill puts n pods, and claims to be synced.
func (c testIndexes) fill(t *testing.T, n int) {
	t.Helper()
	x, b := extract.New(c.Plan()), store.Batch{State: &store.State{Synced: true}}
	for seq := 1; seq <= n; seq++ {
		r := delta.Record{
			Kind: delta.KindDelta, Type: delta.Updated, Key: delta.Key(fmt.Sprintf("n/p%d", seq)), RV: fmt.Sprint(seq), Epoch: 1, Term: 1, Sequence: uint64(seq),
			Payload: fmt.Appendf(nil, `{"metadata":{"namespace":"n","name":"p%d"}}`, seq),
		}
		b.Ops = append(b.Ops, store.Op{Put: x.Object(t.Context(), &r)})
	}
	c.store.Apply(b, begun)
}
