package indexer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer"
)

// viewer reads a watch and writes down what it says, one word per event:
// "+a/one" added, "~a/one" updated, "-a/one" deleted (with the reason), "end",
// "bookmark", "gap:why".
type viewer struct {
	stream indexv1.IndexService_WatchClient
	cancel context.CancelFunc
	said   []string
	at     *deltav1.Position
	rev    *deltav1.Revision
}

func watch(t testing.TB, r *replica, req *indexv1.WatchRequest) *viewer {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	req.Collection = "pods"
	stream, err := r.Watch(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	return &viewer{stream: stream, cancel: cancel}
}

func (v *viewer) recv() error {
	resp, err := v.stream.Recv()
	if err != nil {
		return err
	}
	switch k := resp.GetKind().(type) {
	case *indexv1.WatchResponse_Events:
		for _, e := range k.Events.GetEvents() {
			switch e.GetType() {
			case deltav1.DeltaType_DELTA_TYPE_ADDED:
				v.said = append(v.said, "+"+e.GetObject().GetKey())
			case deltav1.DeltaType_DELTA_TYPE_UPDATED:
				v.said = append(v.said, "~"+e.GetObject().GetKey())
			case deltav1.DeltaType_DELTA_TYPE_DELETED:
				reason := strings.ToLower(strings.TrimPrefix(e.GetDeleteReason().String(), "DELETE_REASON_"))
				v.said = append(v.said, "-"+e.GetObject().GetKey()+":"+reason)
			default:
				v.said = append(v.said, fmt.Sprint("?", e))
			}
		}
	case *indexv1.WatchResponse_InitialStateEnd:
		v.said = append(v.said, "end")
	case *indexv1.WatchResponse_Bookmark:
		v.said = append(v.said, "bookmark")
	case *indexv1.WatchResponse_Gap:
		v.said = append(v.said, "gap:"+k.Gap.GetReason())
	}
	if resp.GetPosition() != nil {
		v.at, v.rev = resp.GetPosition(), resp.GetRevision()
	}
	return nil
}

// expect reads until as much has been said, and compares; bookmarks are
// skipped unless asked for.
func (v *viewer) expect(t testing.TB, want ...string) {
	t.Helper()
	for len(v.said) < len(want) {
		if err := v.recv(); err != nil {
			t.Fatalf("after %q: %v", v.said, err)
		}
		if !slices.Contains(want, "bookmark") {
			v.said = slices.DeleteFunc(v.said, func(s string) bool { return s == "bookmark" })
		}
	}
	if !slices.Equal(v.said, want) {
		t.Fatalf("watch said %q, want %q", v.said, want)
	}
	v.said = nil
}

func TestAWatchGivesTheStateTheMarkerAndWhatFollows(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	r := w.index(t, nil)
	w.caughtUp(t, r)
	v := watch(t, r, &indexv1.WatchRequest{})
	v.expect(t, "+a/one", "+a/two", "+b/one", "+b/two", "end")
	if v.rev.GetResourceVersion() != "5" || v.at.GetEpoch() != w.w.Epoch() || v.at.GetSequence() == 0 || v.at.GetTerm() != 1 {
		t.Errorf("end marker at %v, revision %v", v.at, v.rev)
	}
	w.put(t, pod("a/one", options{}), pod("c/new", options{}), gone("b/one"), pod("b/two", options{uid: "other"}))
	v.expect(t, "~a/one", "+c/new", "-b/one:observed", "-b/two:observed", "+b/two")
	if v.rev.GetResourceVersion() != "9" {
		t.Errorf("revision %v, want 9", v.rev)
	}
	live := watch(t, r, &indexv1.WatchRequest{SkipInitialState: true, View: indexv1.View_VIEW_KEYS})
	live.expect(t, "bookmark")
	w.put(t, pod("c/new", options{}))
	live.expect(t, "~c/new")
}

func TestAWatchBySelectorOrIndexTellsWhatLeavesIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	r := w.index(t, nil)
	w.caughtUp(t, r)
	byLabel := watch(t, r, &indexv1.WatchRequest{LabelSelector: "app=web"})
	byNode := watch(t, r, &indexv1.WatchRequest{Index: "node", IndexValue: "n1"})
	byNamespace := watch(t, r, &indexv1.WatchRequest{Namespace: "b"})
	byLabel.expect(t, "+a/one", "+a/two", "end")
	byNode.expect(t, "+a/one", "+b/one", "end")
	byNamespace.expect(t, "+b/one", "+b/two", "end")
	w.put(t,
		pod("a/one", options{labels: "app=db", node: "n1"}),  // leaves web, stays on n1
		pod("b/two", options{labels: "app=web", node: "n1"}), // comes to both
		pod("b/one", options{labels: "app=db", node: "n2"}),  // leaves n1
		gone("a/two"),
	)
	byLabel.expect(t, "-a/one:filtered", "+b/two", "-a/two:observed")
	byNode.expect(t, "~a/one", "+b/two", "-b/one:filtered")
	byNamespace.expect(t, "~b/two", "~b/one")
}

func TestAWatchIsResumedOnAnyReplica(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	one := w.index(t, nil)
	w.caughtUp(t, one)
	v := watch(t, one, &indexv1.WatchRequest{LabelSelector: "app=web"})
	v.expect(t, "+a/one", "+a/two", "end")
	v.cancel()
	w.put(t, pod("a/one", options{labels: "app=web"}), pod("a/two", options{labels: "app=db"}), gone("b/one"), pod("c/new", options{labels: "app=web"}))
	w.caughtUp(t, one)
	same := watch(t, one, &indexv1.WatchRequest{LabelSelector: "app=web", Resume: v.at})
	same.expect(t, "~a/one", "-a/two:filtered", "+c/new")

	two := w.index(t, nil) // knows the log only by its snapshot: it cannot know what matched before
	w.caughtUp(t, two)
	other := watch(t, two, &indexv1.WatchRequest{LabelSelector: "app=web", Resume: v.at})
	other.expect(t, "~a/one", "-a/two:filtered", "-b/one:observed", "~c/new", "bookmark")
	if other.rev.GetResourceVersion() != "9" {
		t.Errorf("revision %v after resuming, want 9", other.rev)
	}
	w.put(t, pod("c/new", options{labels: "app=web"}))
	other.expect(t, "~c/new")
	again := watch(t, one, &indexv1.WatchRequest{LabelSelector: "app=web", Resume: other.at})
	w.put(t, gone("c/new"))
	again.expect(t, "-c/new:observed")
}

func TestWhatCannotBeResumedIsAGapAndTheStateAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	r := w.index(t, nil)
	w.caughtUp(t, r)
	v := watch(t, r, &indexv1.WatchRequest{Namespace: "b"})
	v.expect(t, "+b/one", "+b/two", "end")
	at := v.at
	for _, row := range []struct {
		resume *deltav1.Position
		reason string
	}{
		{&deltav1.Position{Epoch: at.GetEpoch() - 1, Sequence: at.GetSequence() + 1000}, "epoch changed"},
		{&deltav1.Position{Epoch: at.GetEpoch()}, "history no longer kept"},
	} {
		g := watch(t, r, &indexv1.WatchRequest{Namespace: "b", Resume: row.resume})
		g.expect(t, "gap:"+row.reason, "+b/one", "+b/two", "end")
	}
	// A new leader whose term began at or below a position that an older one wrote.
	w.w = w.lead(t, pods, false)
	w.put(t, pod("b/three", options{}))
	w.caughtUp(t, r)
	g := watch(t, r, &indexv1.WatchRequest{Namespace: "b", Resume: &deltav1.Position{Epoch: at.GetEpoch(), Sequence: w.w.Acked(), Term: 1}})
	g.expect(t, "gap:log was cut back", "+b/one", "+b/three", "+b/two", "end")
	ok := watch(t, r, &indexv1.WatchRequest{Namespace: "b", Resume: at})
	ok.expect(t, "+b/three")

	short := &indexv1.Consistency{Timeout: durationpb.New(20 * time.Millisecond)}
	ahead := watch(t, r, &indexv1.WatchRequest{Resume: &deltav1.Position{Epoch: at.GetEpoch(), Sequence: 1 << 60}, Consistency: short})
	wantStatus(t, "a position this replica has not reached", ahead.recv(), codes.DeadlineExceeded, "REVISION_NOT_REACHED", "")
}

func TestAYoungLogCanBeResumedAnywhereByAFreshReplica(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	r := w.index(t, nil)
	w.caughtUp(t, r)
	v := watch(t, r, &indexv1.WatchRequest{Resume: &deltav1.Position{Epoch: w.w.Epoch(), Sequence: w.w.Acked() - 2, Term: 1}})
	v.expect(t, "~b/two", "bookmark")
}

func TestAnEpochChangeIsToldToOpenWatchesAsChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	r := w.index(t, nil)
	w.caughtUp(t, r)
	v := watch(t, r, &indexv1.WatchRequest{})
	v.expect(t, "+a/one", "+a/two", "+b/one", "+b/two", "end")
	before := v.at
	if err := w.conn.Remove(t.Context(), pods); err != nil {
		t.Fatal(err)
	}
	w.w = w.lead(t, pods, true)
	w.put(t, pod("a/one", options{}), pod("b/one", options{}))
	w.sync(t)
	v.expect(t, "~a/one", "~b/one", "-a/two:inferred", "-b/two:inferred")
	if v.at.GetEpoch() != w.w.Epoch() {
		t.Errorf("position %v, want epoch %d", v.at, w.w.Epoch())
	}
	w.put(t, pod("a/one", options{}))
	v.expect(t, "~a/one")
	late := watch(t, r, &indexv1.WatchRequest{Resume: before})
	late.expect(t, "gap:epoch changed", "+a/one", "+b/one", "end")
}

func TestAWatcherThatIsTooSlowIsEndedWithACountWhereAskedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	r := w.index(t, func(c *indexer.Config) { c.RingChanges = 16 })
	w.caughtUp(t, r)
	v := watch(t, r, &indexv1.WatchRequest{WhenSlow: indexv1.WhenSlow_WHEN_SLOW_DISCONNECT})
	v.expect(t, "+a/one", "+a/two", "+b/one", "+b/two", "end")
	w.flood(t, r)
	var err error
	for err == nil {
		err = v.recv()
	}
	wantStatus(t, "a reader that did not read", err, codes.ResourceExhausted, "WATCHER_TOO_SLOW", "")
	if info := rpc.Info(err); info.GetMetadata()["missed"] == "" || info.GetMetadata()["missed"] == "0" {
		t.Errorf("metadata = %v, want the number missed", info.GetMetadata())
	}
	again := watch(t, r, &indexv1.WatchRequest{Resume: v.at, View: indexv1.View_VIEW_KEYS}) // and goes on where it was
	again.expect(t, "~a/one", "bookmark")
}

func TestBookmarksMoveAQuietWatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	r := w.index(t, nil)
	w.caughtUp(t, r)
	v := watch(t, r, &indexv1.WatchRequest{Namespace: "none", BookmarkInterval: durationpb.New(time.Second)})
	v.expect(t, "end")
	w.put(t, pod("a/one", options{}))
	for v.rev.GetResourceVersion() != "6" {
		if err := v.recv(); err != nil {
			t.Fatal(err)
		}
	}
	if v.said[len(v.said)-1] != "bookmark" {
		t.Errorf("watch said %q, want bookmarks only", v.said)
	}
}

func TestWatchRefusals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.index(t, func(c *indexer.Config) { c.MaxWatchers = 1 })
	w.w = w.lead(t, pods, false)
	eventually(t, func() string {
		if err := watch(t, r, &indexv1.WatchRequest{}).recv(); rpc.Reason(err) != "COLLECTION_NOT_SYNCED" {
			return fmt.Sprint("before the sync: ", err)
		}
		return ""
	})
	w.put(t, fleet()...)
	w.sync(t)
	w.caughtUp(t, r)
	for name, row := range map[string]struct {
		req    *indexv1.WatchRequest
		code   codes.Code
		reason string
		field  string
	}{
		"selector":              {&indexv1.WatchRequest{LabelSelector: "=="}, codes.InvalidArgument, "INVALID_ARGUMENT", "label_selector"},
		"unknown index":         {&indexv1.WatchRequest{Index: "no", IndexValue: "x"}, codes.NotFound, "INDEX_NOT_FOUND", ""},
		"index without value":   {&indexv1.WatchRequest{Index: "node"}, codes.InvalidArgument, "INVALID_ARGUMENT", "index_value"},
		"value without index":   {&indexv1.WatchRequest{IndexValue: "node"}, codes.InvalidArgument, "INVALID_ARGUMENT", "index"},
		"known_epoch alone":     {&indexv1.WatchRequest{KnownEpoch: 3}, codes.InvalidArgument, "INVALID_ARGUMENT", "known_epoch"},
		"resume and skip":       {&indexv1.WatchRequest{Resume: &deltav1.Position{}, SkipInitialState: true}, codes.InvalidArgument, "INVALID_ARGUMENT", "skip_initial_state"},
		"negative bookmark":     {&indexv1.WatchRequest{BookmarkInterval: durationpb.New(-1)}, codes.InvalidArgument, "INVALID_ARGUMENT", "bookmark_interval"},
		"view":                  {&indexv1.WatchRequest{View: 77}, codes.InvalidArgument, "INVALID_ARGUMENT", "view"},
		"revision not a number": {&indexv1.WatchRequest{Consistency: &indexv1.Consistency{AtLeast: &deltav1.Revision{ResourceVersion: "x"}}}, codes.InvalidArgument, "INVALID_ARGUMENT", "consistency.at_least.resource_version"},
	} {
		err := watch(t, r, row.req).recv()
		wantStatus(t, name, err, row.code, row.reason, row.field)
	}
	eventually(t, func() string { // the places of the refused are free again
		v := watch(t, r, &indexv1.WatchRequest{})
		if err := v.recv(); err != nil {
			return err.Error()
		}
		err := watch(t, r, &indexv1.WatchRequest{}).recv()
		wantStatus(t, "one watch too many", err, codes.ResourceExhausted, "TOO_MANY_WATCHERS", "")
		return ""
	})
}

func TestAStoppingServerSendsItsWatchesElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	r := w.index(t, nil)
	w.caughtUp(t, r)
	v := watch(t, r, &indexv1.WatchRequest{})
	v.expect(t, "+a/one", "+a/two", "+b/one", "+b/two", "end")
	began := time.Now()
	r.stop()
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("stopping took %v with a watch open", took)
	}
	if err := v.recv(); rpc.Code(err) != codes.Unavailable || errors.Is(err, context.Canceled) {
		t.Errorf("the watch ended with %v, want UNAVAILABLE", err)
	}
}

func TestManyWatchersRebuildTheSameState(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	r := w.index(t, nil)
	w.caughtUp(t, r)
	const watchers = 20
	states := make(chan map[string]string, watchers)
	last := 0
	for range watchers {
		stream, err := r.Watch(t.Context(), &indexv1.WatchRequest{Collection: "pods"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		go func() {
			state := map[string]string{}
			for {
				resp, err := stream.Recv()
				if err != nil {
					states <- nil
					return
				}
				for _, e := range resp.GetEvents().GetEvents() {
					if e.GetType() == deltav1.DeltaType_DELTA_TYPE_DELETED {
						delete(state, e.GetObject().GetKey())
						continue
					}
					state[e.GetObject().GetKey()] = e.GetObject().GetResourceVersion()
				}
				if state["z/last"] != "" {
					states <- state
					return
				}
			}
		}()
	}
	for i := range 200 {
		key := fmt.Sprintf("m/p%d", i%50)
		if i%7 == 3 {
			w.put(t, gone(key))
		} else {
			w.put(t, pod(key, options{}))
		}
	}
	w.put(t, pod("z/last", options{}))
	last = w.rv
	w.caughtUp(t, r)
	resp, err := r.List(t.Context(), &indexv1.ListRequest{Collection: "pods", Namespace: "m"})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"z/last": fmt.Sprint(last)}
	for _, o := range resp.GetObjects() {
		want[o.GetKey()] = o.GetResourceVersion()
	}
	for range watchers {
		got := <-states
		for key, rv := range want {
			if got[key] != rv {
				t.Errorf("a watcher has %s at %q, want %s", key, got[key], rv)
			}
		}
		if len(got) != len(want) {
			t.Errorf("a watcher has %d keys, want %d", len(got), len(want))
		}
	}
}
