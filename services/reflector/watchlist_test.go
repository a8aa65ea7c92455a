package reflector_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/kube"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
	"github.com/deltaplane/deltaplane/services/reflector"
)

// streaming is [quick] with a streaming start.
func streaming() reflector.Config {
	cfg := quick()
	cfg.LeaseTTL = 30 * time.Second // nobody else is there; a short one is lost on a busy machine, and every term starts over
	cfg.WatchList = reflector.WatchListAlways
	return cfg
}

// initialEnd is the bookmark that ends a streaming start.
func initialEnd(rv int) string { return marked(rv, "true") }

func marked(rv int, value string) string {
	return event("BOOKMARK", fmt.Sprintf(
		`{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"%d","annotations":{"k8s.io/initial-events-end":%q}}}`, rv, value))
}

// streams is the versions that streaming starts asked for.
func (a *api) streams() []string {
	var out []string
	for _, c := range a.of(streamed) {
		out = append(out, c.rv())
	}
	return out
}

func TestAStreamingStartIsTheWatchItself(t *testing.T) {
	t.Parallel() // TestReflectorListAndWatch: 1 watch {RV "", NotOlderThan, initial}, 0 lists
	a := newAPI(t)
	a.onStream = func(_ int, _ url.Values, w *wire) {
		w.send(event("ADDED", object("foo", 1)), event("ADDED", object("bar", 2)), initialEnd(2))
		w.send(event("MODIFIED", object("foo", 3)), event("ADDED", object("baz", 4)), event("DELETED", object("bar", 5)), bookmark(9))
		w.hold()
	}
	m := mirrored(t, a, streaming())
	m.until(t, "the watch's events", func() bool { return m.revision().RV == "9" })
	if diff := cmp.Diff(map[delta.Key]string{"default/foo": "3", "default/baz": "4"}, m.live()); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
	if s, l, w := a.of(streamed), a.of(listed), a.of(watched); len(s) != 1 || len(l) != 0 || len(w) != 0 {
		t.Fatalf("%d streams, %d lists, %d watches; want one stream and nothing else", len(s), len(l), len(w))
	}
	q := a.of(streamed)[0].query
	timeout, _ := strconv.Atoi(q.Get("timeoutSeconds"))
	q.Del("timeoutSeconds")
	want := url.Values{"watch": {"true"}, "sendInitialEvents": {"true"}, "allowWatchBookmarks": {"true"}, "resourceVersionMatch": {"NotOlderThan"}}
	if diff := cmp.Diff(want, q); diff != "" || timeout < 300 || timeout >= 600 {
		t.Errorf("timeout %d; asked (-want +got):\n%s", timeout, diff)
	}
	if n := len(m.kinds(delta.KindSynced)); n != 1 {
		t.Errorf("%d synced records, want 1", n)
	}
}

func TestOnlyTheAnnotatedBookmarkEndsTheInitialStateAndChangesBeforeItCount(t *testing.T) {
	t.Parallel() // TestWatchList: Modified/Deleted inside the initial stream; annotation "false" is no end
	a := newAPI(t)
	end := make(chan struct{})
	a.onStream = func(_ int, _ url.Values, w *wire) {
		w.send(event("ADDED", object("a", 1)), event("ADDED", object("b", 2)), event("ADDED", object("c", 3)))
		w.send(event("MODIFIED", object("a", 4)), event("DELETED", object("b", 5)), event("DELETED", object("never", 6)))
		select {
		case <-end:
		case <-w.done:
		}
		w.send(initialEnd(6))
		w.hold()
	}
	m := mirrored(t, a, streaming())
	m.until(t, "the deletion", func() bool { r, ok := m.get("default/b"); return ok && r.Tombstone() })
	if m.readable() || m.revision().RV != "" {
		t.Errorf("readable at %v before the end of the initial state", m.revision())
	}
	close(end)
	m.until(t, "the state", func() bool { return m.revision().RV == "6" })
	if diff := cmp.Diff(map[delta.Key]string{"default/a": "4", "default/c": "3"}, m.live()); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
	if r, _ := m.get("default/b"); r.DeleteReason != delta.Observed || r.RV != "5" {
		t.Errorf("deletion inside the stream is %+v", r)
	}
	if _, ok := m.get("default/never"); ok {
		t.Error("a deletion of what nobody was told was published")
	}
}

func TestAnUnannotatedBookmarkMeansThatTheServerDoesNotStream(t *testing.T) {
	t.Parallel()
	for _, mark := range []string{bookmark(9), marked(9, "false")} {
		a := newAPI(t)
		a.onStream = func(_ int, _ url.Values, w *wire) {
			w.send(event("ADDED", object("a", 1)), mark)
			w.hold()
		}
		a.onList = func(int, url.Values) (int, string) { return 200, list("10", "", item("a", 1), item("b", 2)) }
		m := mirrored(t, a, streaming())
		m.until(t, "the list", func() bool { return m.revision().RV == "10" && len(m.live()) == 2 })
		// The most recent state: what was streamed is in the log, and "0" might go back behind it.
		if diff := cmp.Diff([]string{""}, a.sequence()); diff != "" {
			t.Errorf("lists (-want +got):\n%s", diff)
		}
	}
}

func TestAStreamThatEndsEarlyMovesNothingAndIsRequestedAgain(t *testing.T) {
	t.Parallel() // TestWatchList: no bookmark -> no sync, asked again
	a := newAPI(t)
	again := make(chan struct{})
	a.onStream = func(n int, q url.Values, w *wire) {
		switch n {
		case 1:
			w.send(event("ADDED", object("a", 1)), event("ADDED", object("b", 2)), initialEnd(10), errorEvent(410, "Expired"))
		case 2: // ends before it told of b
			w.send(event("ADDED", object("a", 11)))
		case 3:
			select {
			case <-again:
			case <-w.done:
			}
			w.send(event("ADDED", object("a", 11)), initialEnd(20))
			w.hold()
		}
	}
	m := mirrored(t, a, streaming())
	m.until(t, "what the second stream told", func() bool { return m.live()["default/a"] == "11" })
	if live := m.live(); m.revision().RV != "10" || live["default/b"] != "2" {
		t.Errorf("at %v: %v; want W and what was not told as they were", m.revision(), live)
	}
	if n := len(m.kinds(delta.KindSynced)); n != 1 {
		t.Errorf("%d synced records, want none of the stream that ended early", n)
	}
	close(again)
	m.until(t, "the third stream", func() bool { return m.revision().RV == "20" })
	if r, _ := m.get("default/b"); !r.Tombstone() || r.DeleteReason != delta.Inferred || r.RV != "20" {
		t.Errorf("missing pod is %+v, want an inferred tombstone with the stream's version", r)
	}
	if diff := cmp.Diff([]string{"", "10", "10"}, a.streams()); diff != "" || len(a.of(listed)) != 0 {
		t.Errorf("%d lists, streams (-want +got):\n%s", len(a.of(listed)), diff)
	}
	if n := len(m.kinds(delta.KindDelta)); n > 4 { // those replaced before they were read are not seen
		t.Errorf("%d deltas, want each difference at most once: a, b, a, b gone", n)
	}
}

func TestAServerWhoseStreamsAlwaysEndEarlyIsListed(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onStream = func(n int, _ url.Values, w *wire) {
		w.send(event("ADDED", object("a", 1)))
		if n == 2 {
			panic(http.ErrAbortHandler) // the connection breaks
		}
	}
	a.onList = func(int, url.Values) (int, string) { return 200, list("10", "", item("a", 1)) }
	m := mirrored(t, a, streaming())
	m.until(t, "the list", func() bool { return m.revision().RV == "10" })
	if s, l := a.streams(), a.sequence(); len(s) != 2 || len(l) != 1 || l[0] != "" {
		t.Errorf("streams %v, lists %v; want a list after the second stream, of the most recent state: the log is not empty", s, l)
	}
}

func TestRefusalsAndTooManyRequestsWaitAndRequestTheStreamAgain(t *testing.T) {
	t.Parallel() // TestWatchList: 429 x 2 -> 3 requests
	a := newAPI(t)
	a.onStream = func(n int, _ url.Values, w *wire) {
		switch n {
		case 1:
			w.refuse(429, status(429, "TooManyRequests", "slow down"))
		case 2:
			w.send(event("ADDED", object("a", 1)), errorEvent(429, "TooManyRequests"))
		default:
			w.send(event("ADDED", object("a", 1)), initialEnd(10))
			w.hold()
		}
	}
	m := mirrored(t, a, streaming())
	m.until(t, "the third stream", func() bool { return m.revision().RV == "10" })
	if s, l := a.streams(), a.sequence(); len(s) != 3 || len(l) != 0 {
		t.Errorf("streams %v, lists %v; want three streams and no list", s, l)
	}
}

func TestExpiredAndTooLargeRequestTheMostRecentStateAtOnce(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onStream = func(n int, _ url.Values, w *wire) {
		switch n {
		case 1:
			w.send(event("ADDED", object("a", 1)), initialEnd(10), errorEvent(410, "Expired"))
		case 2:
			w.refuse(410, status(410, "Expired", "too old"))
		case 3:
			w.send(event("ADDED", object("a", 1)), initialEnd(20), errorEvent(410, "Expired"))
		case 4: // in the stream, as the server says it after it began to wait
			w.send(event("ERROR", status(504, "Timeout", "Too large resource version: 20, current: 19")))
		default:
			w.send(event("ADDED", object("a", 1)), initialEnd(30))
			w.hold()
		}
	}
	cfg := streaming()
	cfg.Backoff = reflector.Backoff{Base: 20 * time.Millisecond, Cap: 20 * time.Millisecond, Jitter: -1}
	m := mirrored(t, a, cfg)
	m.until(t, "the fifth stream", func() bool { return m.revision().RV == "30" })
	if diff := cmp.Diff([]string{"", "10", "", "20", ""}, a.streams()); diff != "" || len(a.of(listed)) != 0 {
		t.Errorf("%d lists, streams (-want +got):\n%s", len(a.of(listed)), diff)
	}
}

func TestAnyOtherErrorListsOnceAndTheNextRoundRequestsAStream(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onStream = func(n int, _ url.Values, w *wire) {
		switch n {
		case 1:
			w.refuse(422, status(422, "Invalid", "sendInitialEvents is forbidden"))
		case 2:
			w.refuse(500, status(500, "InternalError", "broken"))
		case 3:
			w.send(event("ADDED", object("a", 1)), `{"type":"ADDED","object":{"metadata":{"name":"b"`)
		default:
			w.send(event("ADDED", object("a", 1)), initialEnd(40))
			w.hold()
		}
	}
	a.onList = func(n int, _ url.Values) (int, string) { return 200, list(strconv.Itoa(10*n), "", item("a", 1)) }
	a.onWatch = func(n int, _ url.Values, w *wire) { w.send(errorEvent(410, "Expired")) }
	m := mirrored(t, a, streaming())
	m.until(t, "the stream", func() bool { return m.revision().RV == "40" })
	if diff := cmp.Diff([]string{"0", "10"}, a.sequence()[:2]); diff != "" {
		t.Errorf("lists (-want +got):\n%s", diff)
	}
	if s := a.streams(); !slices.Equal(s[:3], []string{"", "10", "20"}) {
		t.Errorf("streams %v", s)
	}
}

func TestAServerWithoutStreamingListsIsListedAfterAWhile(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onStream = func(_ int, q url.Values, w *wire) { // as a server that ignores parameters it does not know
		if q.Get("resourceVersion") == "" {
			w.send(event("ADDED", object("a", 1)))
		}
		w.send()
		w.hold()
	}
	a.onList = func(n int, _ url.Values) (int, string) {
		return 200, list(strconv.Itoa(10*n), "", item("a", 1), item("b", 2))
	}
	a.onWatch = func(n int, _ url.Values, w *wire) {
		if n == 1 {
			w.send(errorEvent(410, "Expired"))
			return
		}
		w.send()
		w.hold()
	}
	cfg := streaming()
	cfg.WatchListTimeout = 100 * time.Millisecond
	m := mirrored(t, a, cfg)
	m.until(t, "the second list", func() bool { return m.revision().RV == "20" })
	if s, l := a.streams(), a.sequence(); len(s) != 1 || len(l) != 2 {
		t.Errorf("streams %v, lists %v; want one attempt, and lists from then on", s, l)
	}
}

func TestTheChoiceBetweenStreamAndList(t *testing.T) {
	t.Parallel() // TestNewReflectorWithDisablementWatchList
	answer := func(a *api) {
		a.onList = func(int, url.Values) (int, string) { return 200, list("10", "", item("a", 1)) }
		a.onStream = func(_ int, _ url.Values, w *wire) {
			w.send(event("ADDED", object("a", 1)), initialEnd(10))
			w.hold()
		}
	}
	for _, row := range []struct {
		choice         reflector.WatchList
		streams, lists int
	}{{"", 0, 1}, {reflector.WatchListAuto, 0, 1}, {reflector.WatchListAlways, 1, 0}, {reflector.WatchListOnly, 1, 0}, {reflector.WatchListNever, 0, 1}} {
		a := newAPI(t)
		answer(a)
		cfg := streaming()
		cfg.WatchList = row.choice
		m := mirrored(t, a, cfg)
		m.until(t, "the state", func() bool { return m.revision().RV == "10" })
		if s, l := len(a.of(streamed)), len(a.of(listed)); s != row.streams || l != row.lists {
			t.Errorf("%q: %d streams, %d lists", row.choice, s, l)
		}
	}
	a := newAPI(t) // refuses streams
	cfg := streaming()
	cfg.WatchList = reflector.WatchListOnly
	svc, _ := start(t, cfg, a.URL, embeddedtest.NATS(t).URL())
	r := reflection(t, dial(t, svc), "pods", "the refusal", func(r *reflectorv1.Reflection) bool {
		return r.GetState() == reflectorv1.ReflectionState_REFLECTION_STATE_BACKOFF && r.GetReason() == "REFUSED"
	})
	if len(a.of(listed)) != 0 || !strings.Contains(r.GetLastError(), "422") {
		t.Errorf("%d lists, state %v; want a watcher that may not list to wait", len(a.of(listed)), r)
	}
	if err := (reflector.Config{WatchList: "perhaps"}).Validate(); err == nil || !strings.Contains(err.Error(), "perhaps") {
		t.Errorf("Validate() = %v", err)
	}
}

func TestAListThatRunsOutOfTimeIsFollowedByAStream(t *testing.T) {
	t.Parallel()
	for _, code := range []int{504, 0} {
		a := newAPI(t)
		a.onPage = func(_ int, w *wire) bool {
			if code != 0 {
				w.refuse(code, status(code, "Timeout", "the server was unable to return a response in the time allotted"))
				return true
			}
			w.send(listHead + item("a", 1) + ",")
			w.hold()
			return true
		}
		a.onStream = func(_ int, _ url.Values, w *wire) {
			w.send(event("ADDED", object("a", 1)), event("ADDED", object("b", 2)), initialEnd(10))
			w.hold()
		}
		kc, err := kube.Load(kube.Config{URL: a.URL, Timeout: 500 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		nats := embeddedtest.NATS(t).URL()
		startOn(t, quick(), kc, nats)
		m := follow(t, nats, pods)
		m.until(t, "the stream", func() bool { return m.revision().RV == "10" && len(m.live()) == 2 })
		if s, l := len(a.of(streamed)), len(a.of(listed)); s != 1 || l != 1 {
			t.Errorf("%d streams, %d lists; want one each", s, l)
		}
	}
}

func TestAStreamBelowTheWatermarkBeginsANewEpoch(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	restored := make(chan struct{})
	a.onStream = func(n int, q url.Values, w *wire) {
		switch {
		case n == 1:
			w.send(event("ADDED", object("kept", 5)), event("ADDED", object("ghost", 900)), initialEnd(1000))
			select {
			case <-restored:
			case <-w.done:
			}
			w.send(errorEvent(410, "Expired"))
		case q.Get("resourceVersion") != "":
			w.refuse(504, status(504, "Timeout", "Too large resource version: 1000, current: 300"))
		default:
			w.send(event("ADDED", object("kept", 5)), event("ADDED", object("new", 200)), initialEnd(300))
			w.hold()
		}
	}
	m := mirrored(t, a, streaming())
	m.until(t, "the state before", func() bool { return m.revision().RV == "1000" && len(m.live()) == 2 })
	close(restored)
	m.until(t, "the new epoch's state", func() bool {
		live := m.live()
		return m.revision().RV == "300" && len(live) == 2 && live["default/new"] == "200" && live["default/kept"] == "5"
	})
	terms := m.kinds(delta.KindTerm)
	if first, last := terms[0], terms[len(terms)-1]; last.Epoch <= first.Epoch {
		t.Errorf("epochs %d then %d, want a new one", first.Epoch, last.Epoch)
	}
	if diff := cmp.Diff([]string{"", "1000", "", ""}, a.streams()); diff != "" {
		t.Errorf("streams (-want +got):\n%s", diff)
	}
}

func TestASlowLogBoundsWhatAStreamMayHold(t *testing.T) {
	t.Parallel()
	const count, size = 800, 40_000 // more than sockets hold
	a := newAPI(t)
	nats := embeddedtest.NATS(t).URL()
	v := newValve(t, nats)
	pad := strings.Repeat("x", size)
	var sent atomic.Int64
	a.onStream = func(_ int, _ url.Values, w *wire) {
		v.shut()
		for i := range count {
			w.send(event("ADDED", fmt.Sprintf(`{"kind":"Pod","metadata":{"name":"p%d","namespace":"default","uid":"u","resourceVersion":"7"},"x":%q}`, i, pad)))
			sent.Add(1)
		}
		w.send(initialEnd(20))
		w.hold()
	}
	cfg := streaming()
	cfg.LeaseTTL = 5 * time.Minute // the log is slow, not gone
	cfg.StageBytes = 1 << 20
	cfg.WatchListTimeout = 3 * time.Second // it is we who do not read
	svc, _ := start(t, cfg, a.URL, "nats://"+v.addr)
	c := dial(t, svc)
	a.nth(t, streamed, 1)
	ctx, cancel := context.WithTimeout(t.Context(), cfg.WatchListTimeout+time.Second)
	defer cancel()
	for ctx.Err() == nil { // what waits does not grow with the collection
		resp, err := c.ListReflections(t.Context(), &reflectorv1.ListReflectionsRequest{Collection: "pods"})
		if err != nil {
			t.Fatal(err)
		}
		if n := resp.GetReflections()[0].GetList().GetObjects(); n > count/2 {
			t.Fatalf("%d objects of %d taken in while the log stood still", n, count)
		}
		time.Sleep(20 * time.Millisecond)
	}
	if n := sent.Load(); n == count {
		t.Errorf("all %d objects were read while the log stood still, want what waits bounded by bytes", n)
	}
	v.open()
	m := follow(t, nats, pods)
	m.until(t, "all pods", func() bool { return m.revision().RV == "20" && len(m.live()) == count })
	if s, l := len(a.of(streamed)), len(a.of(listed)); s != 1 || l != 0 {
		t.Errorf("%d streams, %d lists; want one stream", s, l)
	}
}
