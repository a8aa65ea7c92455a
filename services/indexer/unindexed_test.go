package indexer_test

import (
	"fmt"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/core/delta"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// wantUnindexed checks that an answer names one index and the objects it has no values for.
func wantUnindexed(t testing.TB, what string, got []*indexv1.UnindexedObjects, index string, keys ...string) {
	t.Helper()
	if len(got) != 1 || got[0].GetIndex() != index || got[0].GetCount() != int64(len(keys)) || got[0].GetCollection() != podsName ||
		!slices.Equal(got[0].GetKeys(), keys[:min(len(keys), 10)]) {
		t.Errorf("%s: unindexed = %v, want %q of %s", what, got, keys, index)
	}
}

// An object on which an index fails hides no others, and the answer names what is missing.
func TestObjectsThatAnIndexCannotTakeAreNamedAndTheOthersAnswered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	var bad []string
	var records []delta.Record
	for i := range 12 {
		bad = append(bad, fmt.Sprintf("b/bad-%02d", i))
		records = append(records, misshapen(bad[i], fmt.Sprintf("bad-%02d", i), `{"nodeName":["n1"]}`, `{}`))
	}
	w.put(t, records...)
	r := w.index(t, nil)
	w.caughtUp(t, r)
	ctx := t.Context()
	for _, strict := range []bool{false, true} {
		answers := map[string]func() ([]*indexv1.UnindexedObjects, bool, error){
			"ByIndex": func() ([]*indexv1.UnindexedObjects, bool, error) {
				resp, err := r.ByIndex(ctx, &indexv1.ByIndexRequest{Collection: podsName, Index: "node", Values: []string{"n1"}, Strict: strict})
				return resp.GetUnindexed(), slices.Equal(keysOf(resp.GetObjects()), []string{"a/one", "b/one"}), err
			},
			"ByIndex over clusters": func() ([]*indexv1.UnindexedObjects, bool, error) {
				resp, err := r.ByIndex(ctx, &indexv1.ByIndexRequest{Collection: "pods", Clusters: []string{"*"}, Index: "node", Values: []string{"n1"}, Strict: strict})
				return resp.GetUnindexed(), len(resp.GetObjects()) == 2, err
			},
			"Index": func() ([]*indexv1.UnindexedObjects, bool, error) {
				resp, err := r.Index(ctx, &indexv1.IndexRequest{Collection: podsName, Index: "node", Object: []byte(`{"metadata":{"name":"x"},"spec":{"nodeName":"n1"}}`), Strict: strict})
				return resp.GetUnindexed(), len(resp.GetObjects()) == 2, err
			},
			"IndexKeys": func() ([]*indexv1.UnindexedObjects, bool, error) {
				resp, err := r.IndexKeys(ctx, &indexv1.IndexKeysRequest{Collection: podsName, Index: "node", Value: "n1", Strict: strict})
				return resp.GetUnindexed(), len(resp.GetKeys()) == 2, err
			},
			"ListIndexFuncValues": func() ([]*indexv1.UnindexedObjects, bool, error) {
				resp, err := r.ListIndexFuncValues(ctx, &indexv1.ListIndexFuncValuesRequest{Collection: podsName, Index: "node", Strict: strict})
				return resp.GetUnindexed(), len(resp.GetValues()) == 2, err
			},
			"Count": func() ([]*indexv1.UnindexedObjects, bool, error) {
				resp, err := r.Count(ctx, &indexv1.CountRequest{Collection: podsName, Index: "node", Value: "n1", Strict: strict})
				return resp.GetUnindexed(), resp.GetCount() == 2, err
			},
			"Count by field": func() ([]*indexv1.UnindexedObjects, bool, error) {
				resp, err := r.Count(ctx, &indexv1.CountRequest{Collection: podsName, FieldSelector: "spec.nodeName=n1", Strict: strict})
				return resp.GetUnindexed(), resp.GetCount() == 14, err
			},
			"Count by a field asked for twice": func() ([]*indexv1.UnindexedObjects, bool, error) {
				resp, err := r.Count(ctx, &indexv1.CountRequest{Collection: podsName, FieldSelector: "spec.nodeName=n1,spec.nodeName!=n2", Strict: strict})
				return resp.GetUnindexed(), resp.GetCount() == 14, err
			},
			"Count by the index and by its field": func() ([]*indexv1.UnindexedObjects, bool, error) {
				resp, err := r.Count(ctx, &indexv1.CountRequest{Collection: podsName, Index: "node", Value: "n1", FieldSelector: "spec.nodeName=n1", Strict: strict})
				return resp.GetUnindexed(), resp.GetCount() == 2, err
			},
		}
		for what, ask := range answers {
			got, whole, err := ask()
			if strict {
				wantStatus(t, what, err, codes.FailedPrecondition, "INDEX_FAILED", "")
				continue
			}
			if err != nil || !whole {
				t.Errorf("%s: not the objects that the index has, %v", what, err)
			}
			wantUnindexed(t, what, got, "node", bad...)
		}
	}
	if x := r.indexer(t, podsName, "node"); x.GetState() != ready || x.GetErrors() != 12 || !slices.Equal(x.GetUnindexedKeys(), bad[:10]) {
		t.Errorf("ListIndexers says %v", x)
	}
	if n := r.counter(t, "deltaplane_indexer_index_unindexed_objects"); n != 12 {
		t.Errorf("the metric is %v", n)
	}
	if resp, err := r.ByIndex(ctx, &indexv1.ByIndexRequest{Collection: podsName, Index: "label", Values: []string{"app=web"}, Strict: true}); err != nil || resp.GetUnindexed() != nil {
		t.Errorf("another index: %v, %v", resp.GetUnindexed(), err)
	}
}

// What the index cannot take leaves the watch, marked, and comes back. A strict watch ends.
func TestAWatchOfAnIndexThatCannotTakeAnObjectGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	r := w.index(t, nil)
	w.caughtUp(t, r)
	ask := func(strict bool) *viewer {
		v := watch(t, r, &indexv1.WatchRequest{Index: "node", IndexValue: "n1", Strict: strict})
		v.expect(t, "+a/one", "+b/one", "end")
		return v
	}
	open, strict := ask(false), ask(true)
	byField := watch(t, r, &indexv1.WatchRequest{FieldSelector: "spec.nodeName=n1", Strict: true})
	byField.expect(t, "+a/one", "+b/one", "end")
	w.put(t, misshapen("b/one", "one", `{"nodeName":["n1"]}`, `{}`))
	for {
		resp, err := open.stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if events := resp.GetEvents().GetEvents(); len(events) > 0 {
			if e := events[0]; e.GetObject().GetKey() != "b/one" || e.GetDeleteReason() != deltav1.DeleteReason_DELETE_REASON_FILTERED || !e.GetUnindexed() {
				t.Errorf("what the index cannot take is told as %v", e)
			}
			break
		}
	}
	wantStatus(t, "a strict watch", strict.ends(), codes.FailedPrecondition, "INDEX_FAILED", "")
	wantStatus(t, "a strict watch by the field", byField.ends(), codes.FailedPrecondition, "INDEX_FAILED", "")
	late := watch(t, r, &indexv1.WatchRequest{Index: "node", IndexValue: "n1"})
	for {
		resp, err := late.stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if resp.GetInitialStateEnd() != nil {
			wantUnindexed(t, "the end of the initial state", resp.GetUnindexed(), "node", "b/one")
			break
		}
		if len(resp.GetEvents().GetEvents()) != 1 {
			t.Errorf("the initial state is %v, want a/one", resp.GetEvents())
		}
	}
	w.put(t, pod("b/one", options{node: "n1"}))
	open.expect(t, "+b/one")
	w.put(t, pod("a/one", options{node: "n2"}))
	for {
		resp, err := open.stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if events := resp.GetEvents().GetEvents(); len(events) > 0 {
			if events[0].GetUnindexed() {
				t.Errorf("an object of another value is told as unindexed: %v", events[0])
			}
			return
		}
	}
}
