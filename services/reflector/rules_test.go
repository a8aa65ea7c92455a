package reflector_test

import (
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/kube"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
	"github.com/deltaplane/deltaplane/services/reflector"
)

// relisting makes the nth watch end with an error that asks for a list, for the first so many
// watches.
func relisting(watches int) func(int, url.Values, *wire) {
	return func(n int, _ url.Values, w *wire) {
		if n <= watches {
			w.send(errorEvent(410, "Expired"))
			return
		}
		w.send()
		w.hold()
	}
}

func TestAListAfterReconnectIsNotOlderAndHasNoPages(t *testing.T) {
	t.Parallel() // TestReflectorResyncWithResourceVersion: "0","10"; TestReflectorNotPaginatingNotConsistentReads: RV 10, limit 0
	a := newAPI(t)
	a.onList = func(n int, _ url.Values) (int, string) {
		return 200, list(strconv.Itoa(9+n), "", items(4*n, 5)...)
	}
	a.onWatch = relisting(1)
	m := mirrored(t, a, quick())
	m.until(t, "8 pods at 11", func() bool { return m.revision().RV == "11" && len(m.live()) == 8 })
	if diff := cmp.Diff([]string{"0", "10"}, a.sequence()); diff != "" {
		t.Errorf("list versions (-want +got):\n%s", diff)
	}
	want := url.Values{"resourceVersion": {"10"}, "resourceVersionMatch": {"NotOlderThan"}}
	if diff := cmp.Diff(want, a.of(listed)[1].query); diff != "" {
		t.Errorf("the second list asked (-want +got):\n%s", diff)
	}
}

func TestPagesAtZeroAreRememberedForTheTerm(t *testing.T) {
	t.Parallel() // TestReflectorPaginatingNonConsistentReadsIfWatchCacheDisabled
	a := newAPI(t)
	a.onList = func(n int, q url.Values) (int, string) {
		if q.Get("continue") == "" && n <= 2 {
			return 200, list("10", "C1", item("a", 1))
		}
		return 200, list(strconv.Itoa(10+n), "", item("b", 2))
	}
	a.onWatch = relisting(3)
	m := mirrored(t, a, quick())
	m.until(t, "three lists more", func() bool { return m.revision().RV == "15" })
	for i, c := range a.of(listed) {
		if c.query.Get("limit") != "500" {
			t.Errorf("list %d asked %v, want pages each time", i+1, c.query)
		}
	}
}

func TestPagesThatExpireAtOnceAreAnExpiredList(t *testing.T) {
	t.Parallel() // an error on page 1 is the caller's: "0","10",""
	a := newAPI(t)
	a.onList = func(n int, q url.Values) (int, string) {
		switch {
		case q.Get("resourceVersion") == "10":
			return 410, status(410, "Expired", "too old")
		case q.Get("continue") == "" && n == 1:
			return 200, list("10", "C1", item("a", 1))
		case q.Get("continue") == "":
			return 200, list("20", "C2", item("a", 1))
		}
		return 200, list("20", "", item("b", 2))
	}
	a.onWatch = relisting(1)
	cfg := quick()
	cfg.PageSize = 1
	m := mirrored(t, a, cfg)
	m.until(t, "both pods at 20", func() bool { return m.revision().RV == "20" && len(m.live()) == 2 })
	if diff := cmp.Diff([]string{"0", "+C1", "10", "", "+C2"}, a.sequence()); diff != "" {
		t.Errorf("lists (-want +got):\n%s", diff)
	}
}

func TestAStopDoesNotWaitForTheServer(t *testing.T) {
	t.Parallel() // TestReflectorHandleWatchStopped...: whatever is open is given up at once
	hang := func(w *wire) { w.send(); w.hold() }
	for what, script := range map[string]func(*api){
		"a list that hangs": func(a *api) { a.onPage = func(_ int, w *wire) bool { hang(w); return true } },
		"a list that stops in the middle": func(a *api) {
			a.onPage = func(_ int, w *wire) bool { w.send(listHead + item("a", 1) + ","); w.hold(); return true }
		},
		"a stream that does not end": func(a *api) { a.onStream = func(_ int, _ url.Values, w *wire) { hang(w) } },
		"a watch that does not open": func(a *api) { a.onWatch = func(_ int, _ url.Values, w *wire) { w.hold() } },
		"an open watch":              func(a *api) {},
		"a retry far ahead":          func(a *api) { a.onList = func(int, url.Values) (int, string) { return 500, "broken" } },
	} {
		a := newAPI(t)
		a.onList = func(int, url.Values) (int, string) { return 200, list("10", "", item("a", 1)) }
		var left atomic.Int32
		script(a)
		onPage, onStream, onWatch := a.onPage, a.onStream, a.onWatch
		if onPage != nil {
			a.onPage = func(n int, w *wire) bool { defer left.Add(1); return onPage(n, w) }
		}
		if onStream != nil {
			a.onStream = func(n int, q url.Values, w *wire) { defer left.Add(1); onStream(n, q, w) }
		}
		a.onWatch = func(n int, q url.Values, w *wire) { defer left.Add(1); onWatch(n, q, w) }
		cfg := quick()
		cfg.Backoff = reflector.Backoff{Base: time.Hour, Cap: time.Hour}
		if onStream != nil {
			cfg.WatchList = reflector.WatchListOnly
		}
		svc, stop := start(t, cfg, a.URL, embeddedtest.NATS(t).URL())
		c := dial(t, svc)
		switch {
		case onStream != nil:
			a.nth(t, streamed, 1)
		case what == "an open watch", what == "a watch that does not open":
			a.nth(t, watched, 1)
		case what == "a retry far ahead":
			reflection(t, c, "pods", what, func(r *reflectorv1.Reflection) bool { return r.GetNextRetryAt() != nil })
		default:
			a.nth(t, listed, 1)
		}
		stopped := make(chan struct{})
		go func() { defer close(stopped); stop() }()
		select {
		case <-stopped:
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: the stop waits for it", what)
		}
		if what == "a retry far ahead" {
			continue
		}
		for deadline := time.Now().Add(20 * time.Second); left.Load() == 0; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: its request is still open", what)
			}
		}
	}
}

// door is a transport that refuses connections while it is shut.
type door struct {
	shut atomic.Bool
	next http.RoundTripper
}

func (d *door) RoundTrip(r *http.Request) (*http.Response, error) {
	if d.shut.Load() {
		return nil, syscall.ECONNREFUSED
	}
	return d.next.RoundTrip(r)
}

func TestARefusedConnectionIsRetriedWithoutAList(t *testing.T) {
	t.Parallel() // TestReflectorListAndWatchInitConnBackoff
	a := newAPI(t)
	a.onList = func(int, url.Values) (int, string) { return 200, list("10", "", item("a", 1)) }
	open := make(chan struct{})
	a.onWatch = func(n int, _ url.Values, w *wire) {
		if n == 1 {
			w.send(bookmark(11))
			a.wait(open)
			return // in good order
		}
		w.send(event("ADDED", object("b", 12)))
		w.hold()
	}
	d := &door{next: http.DefaultTransport.(*http.Transport).Clone()}
	t.Cleanup(d.next.(*http.Transport).CloseIdleConnections)
	kc, err := kube.New(&rest.Config{Host: a.URL, Transport: d}, kube.Config{})
	if err != nil {
		t.Fatal(err)
	}
	nats := embeddedtest.NATS(t).URL()
	svc, _ := startOn(t, quick(), kc, nats)
	c := dial(t, svc)
	m := follow(t, nats, pods)
	m.until(t, "the first watch", func() bool { return m.revision().RV == "11" })
	d.shut.Store(true)
	close(open)
	r := reflection(t, c, "pods", "the outage", func(r *reflectorv1.Reflection) bool {
		return r.GetReason() == "UNREACHABLE" && r.GetNextRetryAt() != nil
	})
	if r.GetState() != reflectorv1.ReflectionState_REFLECTION_STATE_BACKOFF {
		t.Errorf("state %v", r.GetState())
	}
	d.shut.Store(false)
	m.until(t, "the second watch", func() bool { return m.revision().RV == "12" })
	if l := a.sequence(); len(l) != 1 {
		t.Errorf("lists %v, want none for an outage", l)
	}
	if got := a.nth(t, watched, 2).rv(); got != "11" {
		t.Errorf("watch from %s, want W", got)
	}
}

func TestAConnectionThatBreaksIsLikeAClose(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onList = func(int, url.Values) (int, string) { return 200, list("10", "", item("a", 1)) }
	a.onWatch = func(n int, _ url.Values, w *wire) {
		if n == 1 {
			w.send(event("MODIFIED", object("a", 11)))
			panic(http.ErrAbortHandler)
		}
		w.send(event("MODIFIED", object("a", 12)))
		w.hold()
	}
	m := mirrored(t, a, quick())
	m.until(t, "the second watch", func() bool { return m.revision().RV == "12" })
	if got := a.nth(t, watched, 2).rv(); got != "11" || len(a.of(listed)) != 1 {
		t.Errorf("watch from %s, %d lists; want the watch to go on where it broke", got, len(a.of(listed)))
	}
}

func TestAnEventOfAnotherKindChangesNothingElse(t *testing.T) {
	t.Parallel() // TestReflectorWatchHandler: foo, bar; a Service is rejected, foo deleted, bar@55, baz@32
	a := newAPI(t)
	a.onList = func(n int, _ url.Values) (int, string) {
		if n == 1 {
			return 200, list("1", "", item("foo", 1), item("bar", 1))
		}
		return 200, list("60", "", item("bar", 55), item("baz", 32)) // due after what had no name
	}
	a.onWatch = func(n int, _ url.Values, w *wire) {
		if n > 1 {
			w.send()
			w.hold()
			return
		}
		w.send(
			event("ADDED", `{"kind":"Service","apiVersion":"v1","metadata":{"name":"rejected","namespace":"default","uid":"s","resourceVersion":"20"}}`),
			event("ADDED", `{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"21"},"rows":[]}`),
			event("DELETED", object("foo", 22)), event("MODIFIED", object("bar", 55)), event("ADDED", object("baz", 32)), bookmark(60),
		)
		w.hold()
	}
	m := mirrored(t, a, quick())
	m.until(t, "the bookmark behind", func() bool { return m.revision().RV == "60" })
	live := m.live()
	if r, ok := m.get("default/rejected"); ok && !r.Tombstone() && r.Encoding != delta.EncodingUnreadable {
		t.Errorf("the Service became %+v", r)
	}
	delete(live, "default/rejected")
	if diff := cmp.Diff(map[delta.Key]string{"default/bar": "55", "default/baz": "32"}, live); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
}

func TestNothingIsResyncedThroughTheLog(t *testing.T) {
	t.Parallel() // resync is the consumers' matter: a quiet source makes no deltas, however long
	a := newAPI(t)
	a.onList = func(n int, _ url.Values) (int, string) { return 200, list(strconv.Itoa(10*n), "", items(20, 3)...) }
	a.onWatch = relisting(5)
	m := mirrored(t, a, quick())
	m.until(t, "six lists", func() bool { return m.revision().RV == "60" })
	if n := len(m.kinds(delta.KindDelta)); n != 20 {
		t.Errorf("%d deltas after six equal lists, want 20", n)
	}
}

func TestEveryEndOfAWatchIsReportedWithItsReasonAndTheNextRetry(t *testing.T) {
	t.Parallel()
	for want, end := range map[string]func(w *wire){
		"EXPIRED":       func(w *wire) { w.send(errorEvent(410, "Expired")) },
		"SOURCE_FAILED": func(w *wire) { w.send(bookmark(11), errorEvent(500, "InternalError")) },
		"THROTTLED":     func(w *wire) { w.refuse(429, status(429, "TooManyRequests", "slow down")) },
		"SHORT_WATCH":   func(w *wire) { w.send() },
		"FORBIDDEN":     func(w *wire) { w.refuse(403, status(403, "Forbidden", "no watch")) },
		"UNREACHABLE":   func(w *wire) { w.send(); panic(http.ErrAbortHandler) },
	} {
		a := newAPI(t)
		a.onList = func(int, url.Values) (int, string) { return 200, list("10", "", item("a", 1)) }
		a.onWatch = func(_ int, _ url.Values, w *wire) { end(w) }
		cfg := quick()
		cfg.Backoff = reflector.Backoff{Base: time.Hour, Cap: time.Hour, Jitter: -1}
		svc, _ := start(t, cfg, a.URL, embeddedtest.NATS(t).URL())
		r := reflection(t, dial(t, svc), "pods", want, func(r *reflectorv1.Reflection) bool { return r.GetNextRetryAt() != nil })
		short := int64(0)
		if want == "SHORT_WATCH" {
			short = 1
		}
		if r.GetReason() != want || r.GetLastError() == "" || time.Until(r.GetNextRetryAt().AsTime()) < 30*time.Minute || r.GetShortWatches() != short {
			t.Errorf("%s: %v", want, r)
		}
	}
}
