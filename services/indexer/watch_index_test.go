package indexer_test

import (
	"testing"

	"google.golang.org/grpc/codes"

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
// another definition of the name it is told nothing before a gap.
func TestAWatchLearnsThatItsIndexIsRemovedOrDeclaredAnew(t *testing.T) {
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
	watch(t, r, index).expect(t, "gap:index was declared anew", "+a/two", "end")
	again := watch(t, r, field) // the same field
	w.put(t, pod("a/three", options{pad: 1}))
	again.expect(t, "+a/three")
}
