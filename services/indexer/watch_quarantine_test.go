package indexer_test

import (
	"context"
	"iter"
	"testing"

	"github.com/deltaplane/deltaplane/client"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

func TestAWatchMarksKeysThatCannotBeReadInEveryView(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	broken := pod("a/two", options{node: "n1"})
	broken.Payload = []byte(`{"metadata":`)
	w.start(t, pod("a/one", options{node: "n1"}), broken)
	r := w.index(t, nil)
	w.caughtUp(t, r)
	for name, o := range map[string]client.WatchOptions{
		"full":     {},
		"keys":     {View: client.ViewKeys},
		"metadata": {View: client.ViewMetadata},
		"mask":     {Fields: []string{"metadata.name"}},
	} {
		ctx, stop := context.WithCancel(t.Context())
		next, end := iter.Pull2(client.NewIndex(connect(t, r.addr)).Watch(ctx, "pods", o))
		want := func(when, key string, quarantined bool) {
			t.Helper()
			for {
				e, err, ok := next()
				if err != nil || !ok {
					t.Fatalf("%s, %s: %v", name, when, err)
				}
				if e.Object.Key == "" { // a marker
					continue
				}
				if e.Object.Key != key || e.Object.Quarantined != quarantined || quarantined && len(e.Object.Payload) > 0 {
					t.Fatalf("%s, %s: %+v, want %s quarantined %v", name, when, e.Object, key, quarantined)
				}
				return
			}
		}
		want("initial state", "a/one", false)
		want("initial state", "a/two", true)
		bad := pod("a/one", options{node: "n1"})
		bad.Payload = []byte("x")
		w.put(t, bad)
		want("broken live", "a/one", true)
		w.put(t, pod("a/one", options{node: "n1"}))
		want("repaired", "a/one", false)
		end()
		stop()
	}
}

func TestListCollectionsCountsOpenWatches(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	r := w.index(t, nil)
	w.caughtUp(t, r)
	open := func() int64 {
		t.Helper()
		resp, err := r.ListCollections(t.Context(), &indexv1.ListCollectionsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetCollections()[0].GetWatchers()
	}
	var views []*viewer
	for n := range int64(3) {
		if got := open(); got != n {
			t.Errorf("%d watches are counted, %d are open", got, n)
		}
		v := watch(t, r, &indexv1.WatchRequest{SkipInitialState: true})
		v.expect(t, "bookmark")
		views = append(views, v)
	}
	for _, v := range views {
		v.cancel()
	}
	eventually(t, func() string {
		if open() != 0 {
			return "watches are counted that have ended"
		}
		return ""
	})
}
