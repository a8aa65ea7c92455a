package reflector_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/services/reflector"
)

var pods = delta.Collection{Cluster: "dev", Version: "v1", Resource: "pods"}

// quick is a configuration that mirrors pods with short delays. The lease is long: a busy machine
// loses a short one, and every term starts over.
func quick() reflector.Config {
	return reflector.Config{
		Resources: []reflector.Resource{{Name: "pods.v1"}},
		Backoff:   reflector.Backoff{Base: 10 * time.Millisecond, Cap: 50 * time.Millisecond, Jitter: -1},
		LeaseTTL:  20 * time.Second, LivenessEvery: 500 * time.Millisecond, DiscoverEvery: 50 * time.Millisecond,
	}
}

// mirrored starts a reflector on a scripted API server, and a reader of what it writes.
func mirrored(t testing.TB, a *api, cfg reflector.Config) *mirror {
	t.Helper()
	nats := embeddedtest.NATS(t).URL()
	start(t, cfg, a.URL, nats)
	return follow(t, nats, pods)
}

func TestAnExpiredRelistIsRepeatedAtOnceWithTheMostRecentState(t *testing.T) {
	t.Parallel() // TestReflectorExpiredExactResourceVersion: "0","10",""
	a := newAPI(t)
	a.onList = func(n int, _ url.Values) (int, string) {
		switch n {
		case 1:
			return 200, list("10", "", items(4, 5)...)
		case 2:
			return 410, status(410, "Expired", "too old")
		}
		return 200, list("11", "", items(8, 5)...)
	}
	a.onWatch = func(n int, _ url.Values, w *wire) {
		if n == 1 {
			w.send(errorEvent(410, "Expired"))
			return
		}
		w.send()
		w.hold()
	}
	m := mirrored(t, a, quick())
	m.until(t, "8 pods at 11", func() bool { return m.revision().RV == "11" && len(m.live()) == 8 })
	if diff := cmp.Diff([]string{"0", "10", ""}, a.sequence()); diff != "" {
		t.Errorf("list versions (-want +got):\n%s", diff)
	}
	second := a.requests(false)[1].query
	if second.Get("resourceVersionMatch") != "NotOlderThan" || second.Get("limit") != "" {
		t.Errorf("relist asked %v, want NotOlderThan without limit", second)
	}
	if first := a.requests(false)[0].query; first.Get("limit") != "500" || first.Get("resourceVersionMatch") != "" {
		t.Errorf("first list asked %v, want limit 500", first)
	}
	if got := a.nth(t, watched, 2).rv(); got != "11" {
		t.Errorf("watch from %q, want the list's version", got)
	}
}

func TestATooLargeVersionIsRecognisedInItsThreeForms(t *testing.T) {
	t.Parallel() // TestReflectorFullListIfTooLarge: "0","20","","30","","40",""
	a := newAPI(t)
	forms := []string{
		`{"kind":"Status","code":504,"reason":"Timeout","message":"x","details":{"causes":[{"reason":"ResourceVersionTooLarge","message":"y"}]}}`,
		`{"kind":"Status","code":504,"reason":"Timeout","message":"x","details":{"causes":[{"message":"Too large resource version"}]}}`,
		status(504, "Timeout", "Timeout: Too large resource version: 40, current: 39"),
	}
	a.onList = func(n int, _ url.Values) (int, string) {
		switch n {
		case 2, 4, 6:
			return 504, forms[n/2-1]
		}
		return 200, list(strconv.Itoa(20+10*(n/2)), "", item("a", 1))
	}
	a.onWatch = func(n int, _ url.Values, w *wire) {
		if n <= 3 {
			w.send(errorEvent(410, "Gone"))
			return
		}
		w.send()
		w.hold()
	}
	m := mirrored(t, a, quick())
	m.until(t, "revision 50", func() bool { return m.revision().RV == "50" })
	if diff := cmp.Diff([]string{"0", "20", "", "30", "", "40", ""}, a.sequence()); diff != "" {
		t.Errorf("list versions (-want +got):\n%s", diff)
	}
}

func TestAnExplicitPageSizeForcesPagesAndContinuationsCarryNoVersion(t *testing.T) {
	t.Parallel() // TestReflectorWatchListPageSize: 4+4+2 via C1, C2
	a := newAPI(t)
	ten := items(10, 3)
	a.onList = func(_ int, q url.Values) (int, string) {
		switch q.Get("continue") {
		case "":
			return 200, list("10", "C1", ten[:4]...)
		case "C1":
			return 200, list("12", "C2", ten[4:8]...)
		}
		return 200, list("13", "", ten[8:]...)
	}
	cfg := quick()
	cfg.PageSize = 4
	m := mirrored(t, a, cfg)
	m.until(t, "10 pods at the first page's version", func() bool { return m.revision().RV == "10" && len(m.live()) == 10 })
	if diff := cmp.Diff([]string{"0", "+C1", "+C2"}, a.sequence()); diff != "" {
		t.Errorf("lists (-want +got):\n%s", diff)
	}
	for _, c := range a.requests(false) {
		if c.query.Get("limit") != "4" || c.query.Get("continue") != "" && c.query.Has("resourceVersion") {
			t.Errorf("list asked %v", c.query)
		}
	}
}

func TestPagesAtZeroKeepPagingOnAndExpiredPagesEndInOneFullList(t *testing.T) {
	t.Parallel() // TestReflectorPaginatingNonConsistentReadsIfWatchCacheDisabled, TestReflectorFullListIfExpired
	a := newAPI(t)
	ten := items(10, 3)
	a.onList = func(n int, _ url.Values) (int, string) {
		switch n {
		case 1:
			return 200, list("10", "C1", ten[:5]...)
		case 2:
			return 200, list("10", "", ten[5:]...)
		case 3:
			return 200, list("20", "C2", ten[:5]...)
		case 4:
			return 410, status(410, "Expired", "continue token expired")
		}
		return 200, list("21", "", ten[:9]...)
	}
	a.onWatch = func(n int, _ url.Values, w *wire) {
		if n == 1 {
			w.send(errorEvent(410, "Expired"))
			return
		}
		w.send()
		w.hold()
	}
	m := mirrored(t, a, quick())
	m.until(t, "9 pods at 21", func() bool { return m.revision().RV == "21" && len(m.live()) == 9 })
	if diff := cmp.Diff([]string{"0", "+C1", "10", "+C2", "10"}, a.sequence()); diff != "" {
		t.Errorf("lists (-want +got):\n%s", diff)
	}
	reqs := a.requests(false)
	if got := reqs[2].query.Get("limit"); got != "500" {
		t.Errorf("relist limit %q, want 500 once a list at 0 came in pages", got)
	}
	if got := reqs[4].query.Get("limit"); got != "" {
		t.Errorf("full list limit %q, want none", got)
	}
	if r, _ := m.get("default/p9"); !r.Tombstone() || r.DeleteReason != delta.Inferred || r.RV != "21" {
		t.Errorf("missing pod is %+v, want an inferred tombstone with the list's version", r)
	}
}

func TestATableIsNoList(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onList = func(n int, _ url.Values) (int, string) {
		if n < 3 {
			return 200, `{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"9"},"rows":[]}`
		}
		return 200, list("10", "", item("a", 1))
	}
	m := mirrored(t, a, quick())
	m.until(t, "the real list", func() bool { return m.revision().RV == "10" })
	if got := len(a.requests(false)); got != 3 {
		t.Errorf("%d lists, want the table refused twice", got)
	}
}

func TestTheWatchTimeoutIsRandomBetweenFiveAndTenMinutes(t *testing.T) {
	t.Parallel() // TestWatchTimeout: 1 s -> [300,600]
	a := newAPI(t)
	a.onList = func(int, url.Values) (int, string) { return 200, list("10", "") }
	a.onWatch = func(n int, _ url.Values, w *wire) {
		if n <= 8 {
			w.send(bookmark(10 + n)) // a close after an event is followed by a watch at once
			return
		}
		w.send()
		w.hold()
	}
	cfg := quick()
	cfg.MinWatchTimeout = time.Second
	m := mirrored(t, a, cfg)
	m.until(t, "eight watches", func() bool { return m.revision().RV == "18" })
	distinct := map[string]bool{}
	for i, c := range a.requests(true) {
		s, err := strconv.Atoi(c.query.Get("timeoutSeconds"))
		if err != nil || s < 300 || s >= 600 || c.query.Get("allowWatchBookmarks") != "true" {
			t.Errorf("watch asked %v", c.query)
		}
		if want := strconv.Itoa(10 + i); c.rv() != want {
			t.Errorf("watch %d from %s, want %s", i, c.rv(), want)
		}
		distinct[c.query.Get("timeoutSeconds")] = true
	}
	if len(distinct) < 3 || len(a.requests(false)) != 1 {
		t.Errorf("%d distinct timeouts, %d lists; want random timeouts and one list", len(distinct), len(a.requests(false)))
	}
}

func TestTooManyRequestsBacksOffWithoutARelist(t *testing.T) {
	t.Parallel() // TestNoRelistOnTooManyRequests: 4 x 429 then ok: 1 list, 5 watches; TestBackoffOnTooManyRequests
	a := newAPI(t)
	a.onList = func(int, url.Values) (int, string) { return 200, list("10", "") }
	a.onWatch = func(n int, _ url.Values, w *wire) {
		switch {
		case n <= 3:
			w.w.WriteHeader(http.StatusTooManyRequests)
			w.send(status(429, "TooManyRequests", "slow down"))
		case n == 4:
			w.send(errorEvent(429, "TooManyRequests"))
		default:
			w.send(event("ADDED", object("a", 11)))
			w.hold()
		}
	}
	m := mirrored(t, a, quick())
	m.until(t, "the event of the fifth watch", func() bool { return m.revision().RV == "11" })
	if l, w := len(a.requests(false)), len(a.requests(true)); l != 1 || w != 5 {
		t.Errorf("%d lists and %d watches, want 1 and 5", l, w)
	}
}

func TestGoneServerErrorsAndVeryShortWatchesRelistFromTheWatermark(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onList = func(n int, _ url.Values) (int, string) { return 200, list(strconv.Itoa(10*n), "", item("a", 1)) }
	a.onWatch = func(n int, _ url.Values, w *wire) {
		switch n {
		case 1:
			w.send(bookmark(15), errorEvent(410, "Expired"))
		case 2:
			w.send(errorEvent(500, "InternalError"))
		case 3: // very short
		case 4:
			w.w.WriteHeader(http.StatusGone)
			w.send(status(410, "Expired", "too old"))
		default:
			w.send()
			w.hold()
		}
	}
	m := mirrored(t, a, quick())
	m.until(t, "the fifth list", func() bool { return m.revision().RV == "50" })
	if diff := cmp.Diff([]string{"0", "15", "20", "30", "40"}, a.sequence()); diff != "" {
		t.Errorf("list versions (-want +got):\n%s", diff)
	}
	if n := len(m.kinds(delta.KindDelta)); n != 1 {
		t.Errorf("%d deltas, want relists to publish differences only", n)
	}
}

func TestEveryEventMovesTheWatermark(t *testing.T) {
	t.Parallel() // TestReflectorResourceVersionUpdate: Added10 Modified20 Bookmark30 Deleted40
	a := newAPI(t)
	a.onList = func(int, url.Values) (int, string) { return 200, list("5", "") }
	steps := a.stepped()
	m := mirrored(t, a, quick())
	m.until(t, "sync", m.readable)
	for _, step := range []struct{ line, rv string }{
		{event("ADDED", object("foo", 10)), "10"},
		{event("MODIFIED", object("foo", 20)), "20"},
		{bookmark(30), "30"},
		{event("DELETED", object("foo", 40)), "40"},
		{event("FUTURE", object("foo", 50)), "50"},
		{event("DELETED", object("never-seen", 60)), "60"}, // nothing to publish
		{event("MODIFIED", object("foo", 20)), "60"},       // replayed from before the deletion
	} {
		steps <- step.line
		m.until(t, step.line, func() bool { return m.revision().RV == step.rv })
	}
	steps <- bookmark(70)
	m.until(t, "the end", func() bool { return m.revision().RV == "70" })
	if live := m.live(); len(live) != 0 {
		t.Errorf("%v lives, want a replayed event not to resurrect", live)
	}
	var got []string
	for _, r := range m.kinds(delta.KindDelta) {
		got = append(got, r.Type.String()+" "+string(r.Key)+" "+r.RV)
	}
	if diff := cmp.Diff([]string{"ADDED default/foo 10", "UPDATED default/foo 20", "DELETED default/foo 40"}, got); diff != "" {
		t.Errorf("deltas (-want +got):\n%s", diff)
	}
}

func TestPayloadsPassAsBytesAndAreTheSameFromListAndWatch(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	odd := `{"metadata":{"name":"odd","namespace":"default","uid":"u","resourceVersion":"7","annotations":{"a":"\u003cb\u003e","kubectl.kubernetes.io/last-applied-configuration":"{}"},` +
		`"managedFields":[{"manager":"x"}]},"zz":1.50,"aa":[ 1, 2 ],"big":12345678901234567890}`
	want := `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"odd","namespace":"default","uid":"u","resourceVersion":"7","annotations":{"a":"\u003cb\u003e","kubectl.kubernetes.io/last-applied-configuration":"{}"}},"zz":1.50,"aa":[ 1, 2 ],"big":12345678901234567890}`
	large := `{"metadata":{"name":"large","namespace":"default","uid":"l","resourceVersion":"8"},"data":"` + strings.Repeat("x", 1_400_000) + `"}`
	a.onList = func(int, url.Values) (int, string) { return 200, list("10", "", odd, large) }
	m := mirrored(t, a, quick())
	m.until(t, "both", func() bool { return m.revision().RV == "10" })
	if r, _ := m.get("default/odd"); string(r.Payload) != want || r.Hash != delta.Hash([]byte(want)) || r.Encoding != delta.EncodingJSON {
		t.Errorf("payload\n%s\nwant\n%s", r.Payload, want)
	}
	if r, _ := m.get("default/large"); len(r.Payload) != len(large)+len(`"kind":"Pod","apiVersion":"v1",`) {
		t.Errorf("a 1.4 MB object came as %d bytes", len(r.Payload))
	}
}

func TestASourceThatWentBackBeginsANewEpochAndReadersSweep(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onList = func(n int, q url.Values) (int, string) {
		switch {
		case n == 1:
			return 200, list("1000", "", item("kept", 5), item("ghost", 900))
		case q.Get("resourceVersion") == "1000":
			return 504, status(504, "Timeout", "Too large resource version: 1000, current: 300")
		}
		return 200, list("300", "", item("kept", 5), item("new", 200))
	}
	restored := make(chan struct{})
	a.onWatch = func(n int, _ url.Values, w *wire) {
		w.send()
		if n == 1 {
			a.wait(restored)
			w.send(errorEvent(410, "Expired"))
			return
		}
		w.hold()
	}
	m := mirrored(t, a, quick())
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
}

func TestRestartsResumeFromTheWatermarkWithoutAList(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onList = func(int, url.Values) (int, string) { return 200, list("10", "", items(3, 4)...) }
	a.onWatch = func(n int, _ url.Values, w *wire) {
		w.send(bookmark(20 + n))
		w.hold()
	}
	nats := embeddedtest.NATS(t).URL()
	_, stop := start(t, quick(), a.URL, nats)
	m := follow(t, nats, pods)
	m.until(t, "the first bookmark", func() bool { return m.revision().RV == "21" })
	stop()
	start(t, quick(), a.URL, nats)
	m.until(t, "the second watch's bookmark", func() bool { return m.revision().RV == "22" })
	if diff := cmp.Diff([]string{"0"}, a.sequence()); diff != "" {
		t.Errorf("lists (-want +got):\n%s", diff)
	}
	if got := a.nth(t, watched, 2).rv(); got != "21" {
		t.Errorf("resumed from %s, want the watermark in the log", got)
	}
	if m.resets != 1 {
		t.Errorf("%d resets, want readers not to notice", m.resets)
	}
}

func TestFormerOwnersAndHintsStayInHeaders(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	pod := func(rv int, meta, node string) string {
		return fmt.Sprintf(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","namespace":"default","uid":"u","resourceVersion":"%d"%s},"spec":{"nodeName":%q}}`, rv, meta, node)
	}
	owned := `,"labels":{"batch.kubernetes.io/job-name":"j"},"ownerReferences":[{"kind":"Job","name":"j","uid":"ju","controller":true}]`
	a.onList = func(int, url.Values) (int, string) { return 200, list("10", "", pod(5, owned, "n1")) }
	a.onWatch = func(_ int, _ url.Values, w *wire) {
		w.send(event("MODIFIED", pod(11, "", "n2")))
		w.hold()
	}
	m := mirrored(t, a, quick())
	m.until(t, "the orphan", func() bool { return m.revision().RV == "11" })
	r, _ := m.get("default/a")
	if diff := cmp.Diff([]delta.Owner{{Kind: "Job", Name: "j", UID: "ju"}}, r.Owners); diff != "" {
		t.Errorf("owners (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string][]string{"node": {"n2", "n1"}}, r.Hints); diff != "" {
		t.Errorf("hints (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string][]string{"batch.kubernetes.io/job-name": {"j"}}, r.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
}
