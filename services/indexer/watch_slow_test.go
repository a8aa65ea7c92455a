package indexer_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer"
)

// A position outlives the replica that named it, also when the next one begins
// with a checkpoint and has not seen how it came to that.
func TestAWatchIsResumedByAReplicaThatBeganWithACheckpoint(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	dir := t.TempDir()
	first := w.index(t, keeping(dir))
	w.caughtUp(t, first)
	v := watch(t, first, &indexv1.WatchRequest{LabelSelector: "app=web"})
	v.expect(t, "+a/one", "+a/two", "end")
	w.put(t, pod("a/one", options{labels: "app=db"})) // the reader is not told, the file has it
	w.caughtUp(t, first)
	first.stop()
	w.put(t, pod("b/one", options{labels: "app=web"}), gone("a/two"), pod("b/two", options{labels: "app=db"}))
	second := w.index(t, keeping(dir))
	w.caughtUp(t, second)
	if !second.warm(t) {
		t.Fatal("the restart was not warm")
	}
	has := map[string]bool{"a/one": true, "a/two": true}
	again := watch(t, second, &indexv1.WatchRequest{LabelSelector: "app=web", Resume: v.at})
	for again.rev.GetResourceVersion() != fmt.Sprint(w.rv) {
		if err := again.recv(); err != nil {
			t.Fatal(err)
		}
	}
	for _, said := range again.said {
		switch said[0] {
		case '+', '~':
			has[said[1:]] = true
		case '-':
			delete(has, said[1:6])
		case 'g', 'e':
			t.Errorf("the history is in the file, and the watch says %q", said)
		}
	}
	if len(has) != 1 || !has["b/one"] {
		t.Errorf("the reader has %v, want b/one alone", has)
	}
	w.put(t, gone("b/one"))
	again.said = nil
	again.expect(t, "-b/one:observed")
}

func TestAWatchBeginsWithTheDifferencesToWhatIsKnown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	r := w.index(t, nil)
	w.caughtUp(t, r)
	resp, err := r.List(t.Context(), &indexv1.ListRequest{Collection: "pods"})
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]string{"x/never": "1"}
	for _, o := range resp.GetObjects() {
		known[o.GetKey()] = o.GetResourceVersion()
	}
	w.put(t, pod("a/one", options{labels: "app=web"}), pod("a/two", options{labels: "app=db"}), gone("b/one"), pod("c/new", options{labels: "app=web"}))
	w.caughtUp(t, r)
	req := &indexv1.WatchRequest{Known: known, KnownEpoch: w.w.Epoch()}
	watch(t, r, req).expect(t, "+a/one", "+a/two", "+c/new", "-b/one:inferred", "-x/never:inferred", "end")
	req.LabelSelector = "app=web"
	watch(t, r, req).expect(t, "+a/one", "+c/new", "-a/two:filtered", "-b/one:inferred", "-b/two:filtered", "-x/never:inferred", "end")
	req.LabelSelector, req.KnownEpoch = "", w.w.Epoch()+1 // versions mean something else there
	watch(t, r, req).expect(t, "+a/one", "+a/two", "+b/two", "+c/new", "-b/one:inferred", "-x/never:inferred", "end")
}

// flood changes an object of a fleet until readers that do not read have missed changes, of which r
// must keep 16; another reader gets each. It returns how many there were.
func (w *world) flood(t *testing.T, r *replica) (written int) {
	t.Helper()
	quick := watch(t, r, &indexv1.WatchRequest{Namespace: "a"})
	defer quick.cancel()
	quick.expect(t, "+a/one", "+a/two", "end")
	const enough = 60 // more than flow control lets pass unread, several times what is kept
	var since time.Time
	for written < enough || time.Since(since) < 100*time.Millisecond { // what is not to be kept may stay for half of that
		w.put(t, pod("a/one", options{pad: 100_000}))
		quick.expect(t, "~a/one")
		if written++; written == enough {
			since = time.Now()
		}
	}
	return written
}

// A reader that does not read delays nobody; when it reads on it is served as it
// asked, and has what is there.
func TestReadersThatDoNotReadAreServedAsTheyAskedAndDelayNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	r := w.index(t, func(c *indexer.Config) { c.RingChanges = 16 })
	w.caughtUp(t, r)
	slow := map[indexv1.WhenSlow]*viewer{}
	for _, how := range []indexv1.WhenSlow{indexv1.WhenSlow_WHEN_SLOW_COALESCE, indexv1.WhenSlow_WHEN_SLOW_BOOTSTRAP} {
		slow[how] = watch(t, r, &indexv1.WatchRequest{WhenSlow: how})
		slow[how].expect(t, "+a/one", "+a/two", "+b/one", "+b/two", "end")
	}
	never := watch(t, r, &indexv1.WatchRequest{})
	_ = never // reads nothing until the test ends
	written := w.flood(t, r)
	w.put(t, gone("a/two"), gone("b/one"))
	w.caughtUp(t, r)
	for how, v := range slow {
		gaps, has := 0, map[string]bool{"a/one": true, "a/two": true, "b/one": true, "b/two": true}
		for v.rev.GetResourceVersion() != fmt.Sprint(w.rv) || slices.Contains(v.said, "gap:reader fell behind") && !slices.Contains(v.said, "end") {
			if err := v.recv(); err != nil {
				t.Fatal(err)
			}
		}
		for _, said := range v.said {
			switch said[0] {
			case '+', '~':
				has[said[1:]] = true
			case '-':
				delete(has, said[1:6])
			case 'g':
				gaps++
				clear(has)
			}
		}
		if len(has) != 2 || !has["a/one"] || !has["b/two"] || (gaps > 0) != (how == indexv1.WhenSlow_WHEN_SLOW_BOOTSTRAP) {
			t.Errorf("%v: the reader has %v after %d gaps", how, has, gaps)
		}
		if len(v.said) > written {
			t.Errorf("%v: the reader was told all of %d events", how, len(v.said))
		}
	}
}

// The places for large initial states are few, and who does not get one in time
// is instructed to come back.
func TestAnInitialStateThatGetsNoPlaceInTimeIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var records []delta.Record
	for i := range 1200 {
		records = append(records, pod(fmt.Sprintf("n/p%04d", i), options{pad: 8000}))
	}
	w.start(t, records...)
	r := w.index(t, func(c *indexer.Config) {
		c.MaxInitialStates, c.DefaultWait, c.MaxWait = 1, 200*time.Millisecond, 200*time.Millisecond
	})
	w.caughtUp(t, r)
	stalled := watch(t, r, &indexv1.WatchRequest{}) // takes the place and reads no more
	if err := stalled.recv(); err != nil {
		t.Fatal(err)
	}
	err := watch(t, r, &indexv1.WatchRequest{}).recv()
	wantStatus(t, "a second state", err, codes.ResourceExhausted, "TOO_MANY_WATCHERS", "")
	if d := rpc.RetryDelay(err); d < 2*time.Second || d > 8*time.Second {
		t.Errorf("it is to come back after %v", d)
	}
	watch(t, r, &indexv1.WatchRequest{Namespace: "none"}).expect(t, "end") // a small one needs no place
	stalled.cancel()
	eventually(t, func() string {
		if err := watch(t, r, &indexv1.WatchRequest{View: indexv1.View_VIEW_KEYS}).recv(); err != nil {
			return err.Error()
		}
		return ""
	})
}
