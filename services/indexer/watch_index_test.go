package indexer_test

import (
	"strconv"
	"testing"

	"google.golang.org/grpc/codes"

	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// ends reads until the watch ends, and returns why.
func (v *viewer) ends() error {
	for {
		if err := v.recv(); err != nil {
			return err
		}
	}
}

// A watch that goes by a declared index or field ends when that is removed; by
// another definition of the name it receives nothing before a gap.
func TestAWatchLearnsThatItsIndexIsRemovedOrDeclaredAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, pod("a/one", options{labels: "app=x,team=y", pad: 1}), pod("a/two", options{labels: "app=y,team=x"}))
	r := w.index(t, nil)
	w.caughtUp(t, r)
	r.add(t, "pods", byLabel("by", "app"), byField("pad", "spec.pad"))
	index := &indexv1.WatchRequest{Index: "by", IndexValue: "x"}
	field := &indexv1.WatchRequest{FieldSelector: "spec.pad=x"}
	open := map[*indexv1.WatchRequest]*viewer{}
	for _, req := range []*indexv1.WatchRequest{index, field} {
		open[req] = watch(t, r, req)
		open[req].expect(t, "+a/one", "end")
		req.Resume = open[req].at
	}
	if _, err := r.RemoveIndexers(t.Context(), &indexv1.RemoveIndexersRequest{Collection: "pods", Names: []string{"by", "pad"}}); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, "a watch whose index was removed", open[index].ends(), codes.NotFound, "INDEX_NOT_FOUND", "")
	wantStatus(t, "a watch whose field was removed", open[field].ends(), codes.NotFound, "INDEX_NOT_FOUND", "")
	wantStatus(t, "a watch of no index", watch(t, r, index).ends(), codes.NotFound, "INDEX_NOT_FOUND", "")
	wantStatus(t, "a watch of no field", watch(t, r, field).ends(), codes.InvalidArgument, "INVALID_ARGUMENT", "field_selector")
	r.add(t, "pods", byLabel("by", "team"), byField("pad", "spec.pad"))
	watch(t, r, index).expect(t, "gap:index was declared again", "+a/two", "end")
	again := watch(t, r, field) // the same field
	w.put(t, pod("a/three", options{pad: 1}))
	again.expect(t, "+a/three")
}

// What leaves the selection is told as such, with its key and the version it
// left by; what comes back is new to the reader.
func TestWhatLeavesAWatchIsDeletedAsFilteredAndAddedWhenItComesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := options{labels: "app=web", node: "n1", phase: "Running"}
	w.start(t, pod("a/one", in), pod("a/two", options{labels: "app=db", node: "n2", phase: "Pending"}))
	r := w.index(t, nil)
	w.caughtUp(t, r)
	r.add(t, "pods", byField("by-phase", "status.phase"), byCEL("by-both", "object.spec.nodeName + '/' + object.status.phase"))
	watches := map[string]*viewer{}
	for name, req := range map[string]*indexv1.WatchRequest{
		"label selector":      {LabelSelector: "app in (web)"},
		"field selector":      {FieldSelector: "spec.nodeName=n1"},
		"built-in index":      {Index: "node", IndexValue: "n1"},
		"declared field":      {Index: "by-phase", IndexValue: "Running"},
		"declared expression": {Index: "by-both", IndexValue: "n1/Running"},
	} {
		watches[name] = watch(t, r, req)
		watches[name].expect(t, "+a/one", "end")
	}
	next := func(name string) *indexv1.Event {
		for {
			resp, err := watches[name].stream.Recv()
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if events := resp.GetEvents().GetEvents(); len(events) > 0 {
				if len(events) > 1 {
					t.Fatalf("%s: %v, want one event", name, events)
				}
				return events[0]
			}
		}
	}
	for range 2 {
		w.put(t, pod("a/one", options{labels: "app=db", node: "n2", phase: "Pending"}))
		for name := range watches {
			got := next(name)
			if o := got.GetObject(); got.GetType() != deltav1.DeltaType_DELTA_TYPE_DELETED || got.GetDeleteReason() != deltav1.DeleteReason_DELETE_REASON_FILTERED ||
				o.GetKey() != "a/one" || o.GetUid() != "uid-a/one" || o.GetResourceVersion() != strconv.Itoa(w.rv) {
				t.Errorf("%s: what left is told as %v, want a/one deleted as filtered at %d", name, got, w.rv)
			}
		}
		w.put(t, pod("a/one", in))
		for name := range watches {
			got := next(name)
			if o := got.GetObject(); got.GetType() != deltav1.DeltaType_DELTA_TYPE_ADDED || got.GetDeleteReason() != 0 ||
				o.GetKey() != "a/one" || o.GetResourceVersion() != strconv.Itoa(w.rv) || len(o.GetPayload()) == 0 {
				t.Errorf("%s: what came back is told as %v, want a/one added at %d", name, got, w.rv)
			}
		}
	}
	w.put(t, gone("a/one")) // permanently: another reason
	for _, v := range watches {
		v.expect(t, "-a/one:observed")
	}
}
