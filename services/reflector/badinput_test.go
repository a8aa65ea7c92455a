package reflector_test

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/kube"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
	"github.com/deltaplane/deltaplane/services/reflector"
)

func TestAResourceThatFailsSaysWhyAndHoldsNoOtherBack(t *testing.T) {
	t.Parallel()
	answer := func(code int, body string) func(*api) {
		return func(a *api) { a.onList = func(int, url.Values) (int, string) { return code, body } }
	}
	for name, row := range map[string]struct {
		script func(*api)
		want   string
	}{
		"401":                         {answer(401, "Unauthorized"), "UNAUTHORIZED"},
		"403":                         {answer(403, status(403, "Forbidden", "pods is forbidden")), "FORBIDDEN"},
		"404":                         {answer(404, "404 page not found"), "NOT_SERVED"},
		"not served":                  {func(a *api) { a.served = false }, "NOT_SERVED"},
		"429":                         {answer(429, status(429, "TooManyRequests", "slow down")), "THROTTLED"},
		"503":                         {answer(503, "no endpoints"), "SOURCE_FAILED"},
		"400":                         {answer(400, status(400, "BadRequest", "what")), "REFUSED"},
		"a web page":                  {answer(200, "<html>please log in</html>"), "BAD_ANSWER"},
		"half a list":                 {answer(200, listHead+item("a", 1)), "BAD_ANSWER"},
		"a table":                     {answer(200, `{"kind":"Table","metadata":{"resourceVersion":"9"},"rows":[]}`), "BAD_ANSWER"},
		"no version":                  {answer(200, `{"kind":"PodList","metadata":{},"items":[]}`), "BAD_ANSWER"},
		"a version that is no number": {answer(200, list("twelve", "")), "BAD_ANSWER"},
		"a connection that breaks": {func(a *api) {
			a.onPage = func(_ int, w *wire) bool { w.send(listHead + item("a", 1)); panic(http.ErrAbortHandler) }
		}, "UNREACHABLE"},
	} {
		a := newAPI(t)
		row.script(a)
		cfg := quick()
		cfg.Backoff = reflector.Backoff{Base: time.Hour, Cap: time.Hour, Jitter: -1}
		cfg.DiscoverEvery = time.Hour
		cfg.Resources = append(cfg.Resources, reflector.Resource{Name: "nodes.v1"})
		svc, _ := start(t, cfg, a.URL, embeddedtest.NATS(t).URL())
		c := dial(t, svc)
		r := reflection(t, c, "pods", name, func(r *reflectorv1.Reflection) bool {
			return r.GetState() == reflectorv1.ReflectionState_REFLECTION_STATE_BACKOFF && r.GetReason() != "" && r.GetNextRetryAt() != nil
		})
		if r.GetReason() != row.want || r.GetLastError() == "" || time.Until(r.GetNextRetryAt().AsTime()) < 30*time.Minute {
			t.Errorf("%s: %v, want %s and the next retry", name, r, row.want)
		}
		reflection(t, c, "nodes", name+": nodes watched", watching)
	}
}

func TestTheServersWaitIsTheNextRetry(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onPage = func(_ int, w *wire) bool {
		w.w.Header().Set("Retry-After", "3600")
		w.refuse(429, status(429, "TooManyRequests", "slow down"))
		return true
	}
	svc, _ := start(t, quick(), a.URL, embeddedtest.NATS(t).URL())
	r := reflection(t, dial(t, svc), "pods", "the refusal", func(r *reflectorv1.Reflection) bool { return r.GetNextRetryAt() != nil })
	if d := time.Until(r.GetNextRetryAt().AsTime()); d < 50*time.Minute || r.GetReason() != "THROTTLED" {
		t.Errorf("%s, the next retry in %v; want what the server asked for", r.GetReason(), d)
	}
}

func TestAServerThatNobodyVouchesForIsNotTrusted(t *testing.T) {
	t.Parallel()
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	for name, address := range map[string]string{"a certificate of its own": s.URL, "no TLS at all": "https" + strings.TrimPrefix(plain.URL, "http")} {
		svc, _ := start(t, quick(), address, embeddedtest.NATS(t).URL())
		r := reflection(t, dial(t, svc), "pods", name, func(r *reflectorv1.Reflection) bool { return r.GetReason() != "" })
		if r.GetReason() != "CERTIFICATE" {
			t.Errorf("%s: %v", name, r)
		}
	}
}

func TestAServerThatIsNotThereIsUnreachable(t *testing.T) {
	t.Parallel()
	kc, err := kube.Load(kube.Config{URL: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	svc, _ := startOn(t, quick(), kc, embeddedtest.NATS(t).URL())
	r := reflection(t, dial(t, svc), "pods", "the refusal", func(r *reflectorv1.Reflection) bool { return r.GetReason() != "" })
	if r.GetReason() != "UNREACHABLE" {
		t.Errorf("%v", r)
	}
}

func TestHugePagesOddObjectsAndKeysThatComeTwice(t *testing.T) {
	t.Parallel()
	const pages, each = 2, 10
	a := newAPI(t)
	pad := strings.Repeat("x", 1_000_000)
	a.onList = func(_ int, q url.Values) (int, string) {
		n := 0
		_, _ = fmt.Sscanf(q.Get("continue"), "C%d", &n)
		var all []string
		for i := range each { // 10 MB a page
			all = append(all, fmt.Sprintf(`{"metadata":{"name":"p%d-%d","namespace":"default","uid":"u%d-%d","resourceVersion":"7"},"x":%q}`, n, i, n, i, pad))
		}
		all = append(all, `{}`, `{"metadata":{}}`, `{"metadata":null}`, `{"metadata":{"name":"nameless-version"}}`)
		all = append(all, item("twice", 8+n), item("twice", 5)) // the newer one counts, wherever it stands
		token := fmt.Sprintf("C%d", n+1)
		if n == pages-1 {
			token = ""
		}
		return 200, list("30", token, all...)
	}
	cfg := quick()
	cfg.PageSize = each
	nats := embeddedtest.NATS(t).URL()
	svc, _ := start(t, cfg, a.URL, nats)
	m := follow(t, nats, pods)
	m.until(t, "everything that has a name", func() bool { return m.revision().RV == "30" && len(m.live()) == pages*each+1 })
	if r, _ := m.get("default/twice"); r.RV != "9" {
		t.Errorf("the key that came twice is at %s, want its newest version", r.RV)
	}
	r := reflection(t, dial(t, svc), "pods", "watching", watching)
	if r.GetObjects() != pages*each+1 || r.GetQuarantinedTotal() != 3*pages+1 || r.GetReason() != "" || r.GetList() != nil {
		t.Errorf("%v; want %d objects, %d quarantined and no error", r, pages*each+1, 3*pages+1)
	}
	for _, r := range m.kinds(delta.KindDelta) {
		if r.Key == "" || strings.HasPrefix(string(r.Key), "nameless") {
			t.Errorf("published %+v", r)
		}
	}
}

func TestProgressOfAListIsToldWhileItRuns(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	goOn := make(chan struct{})
	ten := items(10, 3)
	a.onList = func(_ int, q url.Values) (int, string) {
		if q.Get("continue") == "" {
			return 200, strings.Replace(list("10", "C1", ten[:4]...), `"continue":"C1"`, `"continue":"C1","remainingItemCount":6`, 1)
		}
		a.wait(goOn)
		return 200, list("10", "", ten[4:]...)
	}
	svc, _ := start(t, quick(), a.URL, embeddedtest.NATS(t).URL())
	c := dial(t, svc)
	r := reflection(t, c, "pods", "the first page", func(r *reflectorv1.Reflection) bool { return r.GetList().GetPages() == 1 })
	l := r.GetList()
	if l.GetObjects() != 4 || l.GetRemaining().GetValue() != 6 || l.GetStreaming() || l.GetBeganAt() == nil || l.GetRate() <= 0 ||
		r.GetState() != reflectorv1.ReflectionState_REFLECTION_STATE_LISTING {
		t.Errorf("after the first page: %v", r)
	}
	close(goOn)
	if r := reflection(t, c, "pods", "watching", watching); r.GetList() != nil || r.GetObjects() != 10 || r.GetRelists() != 1 {
		t.Errorf("after the list: %v", r)
	}
}

func TestAnEventWithoutAKeyMakesAListDue(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onList = func(n int, _ url.Values) (int, string) {
		if n == 1 {
			return 200, list("10", "", item("a", 1), item("b", 2))
		}
		return 200, list("20", "", item("a", 11), item("b", 2))
	}
	a.onWatch = func(n int, _ url.Values, w *wire) {
		if n == 1 {
			w.send(`{"type":"MODIFIED","object":{"metadata":{"name":"a", what?`)
		}
		w.send()
		w.hold()
	}
	m := mirrored(t, a, quick())
	m.until(t, "the state that the event told of", func() bool { return m.revision().RV == "20" && m.live()["default/a"] == "11" })
	if diff := a.sequence(); len(diff) != 2 || diff[1] != "10" {
		t.Errorf("lists %v", diff)
	}
}

func TestASilentWatchAheadOfARestoredSourceIsDetected(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onList = func(n int, q url.Values) (int, string) {
		switch {
		case n == 1:
			return 200, list("1000", "", item("kept", 5), item("ghost", 900))
		case q.Get("resourceVersion") == "1000":
			return 504, status(504, "Timeout", "Too large resource version: 1000, current: 300")
		}
		return 200, list("300", "", item("kept", 5))
	}
	cfg := quick()
	cfg.QuietAfter = 100 * time.Millisecond
	m := mirrored(t, a, cfg) // the watch from 1000 is open and silent
	m.until(t, "the restored state", func() bool { return m.revision().RV == "300" && len(m.live()) == 1 })
	if probe := a.of(listed)[1].query; probe.Get("limit") != "1" || probe.Get("resourceVersionMatch") != "NotOlderThan" {
		t.Errorf("asked %v, want one object not older than W", probe)
	}
}

func TestAListDeletesNoObjectThatItHoldsButCannotRead(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	goOn := make(chan struct{})
	a.onList = func(n int, _ url.Values) (int, string) {
		switch n {
		case 1:
			return 200, list("10", "", item("known", 1), item("same", 2))
		case 2: // a version is gone, and a new object is of another kind
			return 200, list("20", "", `{"metadata":{"name":"known","namespace":"default"}}`, item("same", 2),
				`{"kind":"Node","metadata":{"name":"new","namespace":"default","uid":"n","resourceVersion":"15"}}`)
		}
		return 200, list("30", "", item("known", 1), item("same", 2), item("new", 15))
	}
	a.onWatch = func(n int, _ url.Values, w *wire) {
		switch n {
		case 1:
			w.send(errorEvent(410, "Expired"))
			return
		case 2: // a version without a name: something changed, and a list is due
			select {
			case <-goOn:
			case <-w.done:
			}
			w.send(`{"type":"MODIFIED","object":{"metadata":{"resourceVersion":"21"}}}`)
		}
		w.send()
		w.hold()
	}
	m := mirrored(t, a, quick())
	m.until(t, "what could not be read", func() bool { return m.revision().RV == "20" })
	for key, rv := range map[delta.Key]string{"default/known": "1", "default/new": "15"} {
		if r, ok := m.get(key); !ok || r.RV != rv || r.Encoding != delta.EncodingUnreadable {
			t.Errorf("%s is %+v, want it unreadable at %s", key, r, rv)
		}
	}
	close(goOn)
	m.until(t, "what can be read again", func() bool { return m.revision().RV == "30" })
	for _, key := range []delta.Key{"default/known", "default/new"} {
		if r, _ := m.get(key); len(r.Payload) == 0 {
			t.Errorf("%s is %+v, want the object", key, r)
		}
	}
	for _, r := range m.kinds(delta.KindDelta) {
		if r.Tombstone() {
			t.Errorf("a deletion of what is there: %+v", r)
		}
	}
}

func TestAnObjectWithoutANameIsCountedOnceHoweverManyListsHoldIt(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onList = func(n int, _ url.Values) (int, string) {
		return 200, list(fmt.Sprint(10*n), "", item("a", 1), `{"metadata":{}}`)
	}
	a.onWatch = func(n int, _ url.Values, w *wire) {
		if n < 3 {
			w.send(errorEvent(410, "Expired"))
			return
		}
		w.send()
		w.hold()
	}
	svc, _ := start(t, quick(), a.URL, embeddedtest.NATS(t).URL())
	r := reflection(t, dial(t, svc), "pods", "three lists", func(r *reflectorv1.Reflection) bool { return watching(r) && r.GetRelists() == 3 })
	if r.GetQuarantinedTotal() != 1 || len(r.GetQuarantined()) != 1 {
		t.Errorf("%v, want one quarantined", r)
	}
}
