package indexer_test

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/definition"
)

// dear may cost as much as one expression is counted for.
func dear(i int) *indexv1.IndexerDefinition {
	return byCEL(fmt.Sprint("dear-", i), fmt.Sprintf("has(object.a) ? object.a.map(x, object.a.map(y, x + y + '%d').join(',')) : []", i))
}

// Expressions that were stored when there was no bound together are refused by
// name where they pass it, the same on every replica, until others are removed.
func TestStoredExpressionsBeyondTheCommonLimitAreRefusedByName(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	bucket, err := w.conn.Bucket(t.Context(), definitions, 0)
	if err != nil {
		t.Fatal(err)
	}
	var set definition.Set
	declare := func(p *indexv1.IndexerDefinition) {
		t.Helper()
		d, err := definition.FromProto("i", p)
		if err != nil {
			t.Fatal(err)
		}
		set = append(set, definition.Declared{Definition: d, Cluster: definition.EveryCluster})
	}
	for i := range 12 {
		declare(dear(11 - i)) // so that the first by name are the last to be declared
	}
	declare(byCEL("cheap", "object.metadata.name"))
	declare(byField("by-phase", "status.phase"))
	again := dear(11) // is evaluated once, with the first
	again.Name = "again"
	declare(again)
	value, err := set.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bucket.Update(t.Context(), "pods.v1", value, 0); err != nil {
		t.Fatal(err)
	}
	replicas := []*replica{w.index(t, nil), w.index(t, nil)}
	for _, r := range replicas {
		w.caughtUp(t, r)
		for _, name := range []string{"dear-11", "dear-2", "by-phase", "again"} {
			r.awaitIndexer(t, name, ready)
		}
		for name, cost := range map[string]string{"dear-1": "5000", "dear-0": "5000", "cheap": ""} {
			x := r.indexer(t, podsName, name)
			want := fmt.Sprintf("it may cost %s for one object, and the expressions that dev/pods.v1 had before it may cost 50000, at most 50000 together", cost)
			if cost == "" {
				want = "had before it may cost 50000"
			}
			if x.GetState() != indexv1.IndexerState_INDEXER_STATE_FAILED || !strings.Contains(x.GetLastError(), want) {
				t.Errorf("%s = %v, want it to fail with %q", name, x, want)
			}
			_, err := r.IndexKeys(t.Context(), &indexv1.IndexKeysRequest{Collection: podsName, Index: name, Value: "v"})
			wantStatus(t, name, err, codes.FailedPrecondition, "INDEX_FAILED", "")
		}
	}
	a, b := replicas[0], replicas[1]
	a.add(t, podsName, byField("x", "spec.x")) // costs nothing
	_, err = a.AddIndexers(t.Context(), &indexv1.AddIndexersRequest{Collection: podsName, Indexers: []*indexv1.IndexerDefinition{dear(12)}})
	wantStatus(t, "one more expression", err, codes.ResourceExhausted, "TOO_MANY_INDEXES", "")
	if _, err := a.RemoveIndexers(t.Context(), &indexv1.RemoveIndexersRequest{Collection: "*/pods.v1", Names: []string{"dear-5"}}); err != nil {
		t.Fatal(err)
	}
	for _, r := range []*replica{a, b} {
		r.awaitIndexer(t, "dear-1", ready)
		r.awaitIndexer(t, "dear-0", indexv1.IndexerState_INDEXER_STATE_FAILED)
	}
}
