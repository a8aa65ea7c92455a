package define

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
type testIndexes struct{ *Indexes }

func newTestIndexes(t *testing.T) testIndexes {
	t.Helper()
	id := delta.Collection{Cluster: "dev", Version: "v1", Resource: "pods"}
	return testIndexes{New(Config{
		ID: id, Store: store.New(store.Options{TombstoneTTL: time.Hour, Indexers: BuiltIn(id)}), Slog: slog.New(slog.DiscardHandler),
		Now: func() time.Time { return begun }, Declarations: NewDeclarations(noBuckets{}, slog.New(slog.DiscardHandler), func(string) {}),
		Fields: map[string][]string{"pods": {NodeField, "status.phase"}}, Evicted: make(chan struct{}),
		Room: fakeRoom{spare: func() error { return nil }, fits: func(int) bool { return true }}, LookEvery: time.Second,
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
