package indexer_test

import (
	"testing"

	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// changes reads a watch until it has said n changes.
func (v *viewer) changes(t *testing.T, n int) []*indexv1.Event {
	t.Helper()
	var all []*indexv1.Event
	for len(all) < n || v.at == nil {
		resp, err := v.stream.Recv()
		if err != nil {
			t.Fatalf("after %v: %v", all, err)
		}
		if resp.GetPosition() != nil {
			v.at = resp.GetPosition()
		}
		all = append(all, resp.GetEvents().GetEvents()...)
	}
	return all
}

func TestAWatchTellsWhatAnObjectWasBeforeTheChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, pod("a/one", options{node: "n1"}), pod("a/two", options{node: "n2"}), pod("a/three", options{}))
	r := w.index(t, nil)
	w.caughtUp(t, r)
	all := watch(t, r, &indexv1.WatchRequest{Previous: true})
	chosen := watch(t, r, &indexv1.WatchRequest{Previous: true, Index: "node", IndexValue: "n1", View: indexv1.View_VIEW_KEYS})
	plain := watch(t, r, &indexv1.WatchRequest{})
	for _, e := range all.changes(t, 3) {
		if e.GetPrevious() != nil {
			t.Errorf("in the initial state: %v", e)
		}
	}
	chosen.changes(t, 1)
	plain.changes(t, 3)
	from := all.at
	w.put(t, pod("a/one", options{node: "n2"}), pod("a/two", options{node: "n1"}), gone("a/three"))
	same := func(what string, got, want *indexv1.Object, payload bool) {
		t.Helper()
		if got.GetKey() != want.GetKey() || got.GetResourceVersion() != want.GetResourceVersion() || (len(got.GetPayload()) > 0) != payload {
			t.Errorf("%s: %v, want %v with a payload: %t", what, got, want, payload)
		}
	}
	one, two := &indexv1.Object{Key: "a/one", ResourceVersion: "1"}, &indexv1.Object{Key: "a/two", ResourceVersion: "2"}
	for what, v := range map[string]*viewer{"as it happens": all, "resumed": watch(t, r, &indexv1.WatchRequest{Previous: true, Resume: from})} {
		got := v.changes(t, 3)
		same(what+", an update", got[0].GetPrevious(), one, true)
		same(what+", another", got[1].GetPrevious(), two, true)
		if got[2].GetType() != deltav1.DeltaType_DELTA_TYPE_DELETED || got[2].GetPrevious() != nil {
			t.Errorf("%s: a deletion has the object itself: %v", what, got[2])
		}
	}
	got := chosen.changes(t, 2)
	if got[0].GetDeleteReason() != deltav1.DeleteReason_DELETE_REASON_FILTERED {
		t.Errorf("%v, want a departure", got[0])
	}
	same("what has left the selection", got[0].GetPrevious(), &indexv1.Object{Key: "a/one"}, false)
	if got[1].GetType() != deltav1.DeltaType_DELTA_TYPE_ADDED || got[1].GetPrevious() != nil {
		t.Errorf("what has entered the selection was not in it: %v", got[1])
	}
	for _, e := range plain.changes(t, 3) {
		if e.GetPrevious() != nil {
			t.Errorf("nobody asked: %v", e)
		}
	}
}
