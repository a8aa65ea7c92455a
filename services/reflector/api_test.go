package reflector_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// call is a request the scripted API server got.
type call struct {
	watch bool
	query url.Values
	at    time.Time
}

func (c call) rv() string { return c.query.Get("resourceVersion") }

// api is a scripted API server that serves pods over real HTTP. Lists are answered by onList, watches by onWatch, which may send what it likes;
// when it returns the watch ends.
type api struct {
	*httptest.Server

	mu      sync.Mutex
	calls   []call
	onList  func(n int, q url.Values) (code int, body string)
	onWatch func(n int, q url.Values, w *wire)
	onPage  func(n int, w *wire) bool // answers a list as it likes; false leaves it to onList
	served  bool                      // discovery knows the resource
}

// wire is an open watch.
type wire struct {
	w    http.ResponseWriter
	done <-chan struct{}
}

func (w *wire) send(lines ...string) {
	for _, l := range lines {
		_, _ = fmt.Fprintln(w.w, l)
	}
	w.w.(http.Flusher).Flush()
}

// hold keeps the watch open until the client leaves.
func (w *wire) hold() { <-w.done }

func newAPI(t testing.TB) *api {
	t.Helper()
	a := &api{served: true}
	a.onWatch = func(_ int, _ url.Values, w *wire) { w.send(); w.hold() }
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1", func(w http.ResponseWriter, _ *http.Request) {
		a.mu.Lock()
		served := a.served
		a.mu.Unlock()
		pods := ""
		if served {
			pods = `{"name":"pods","kind":"Pod","namespaced":true,"verbs":["list","watch"]},`
		}
		_, _ = fmt.Fprintf(w, `{"kind":"APIResourceList","resources":[%s{"name":"nodes","kind":"Node","verbs":["list","watch"]}]}`, pods)
	})
	mux.HandleFunc("GET /api/v1/nodes", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") != "" {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return
		}
		_, _ = fmt.Fprint(w, list("5", "", `{"metadata":{"name":"n1","uid":"n","resourceVersion":"3"}}`))
	})
	mux.HandleFunc("GET /api/v1/pods", a.pods())
	a.Server = httptest.NewServer(mux)
	t.Cleanup(func() {
		a.CloseClientConnections()
		a.Close()
	})
	return a
}

func (a *api) pods() http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		c := call{watch: q.Get("watch") != "", query: q, at: time.Now()}
		a.mu.Lock()
		a.calls = append(a.calls, c)
		n := 0
		for _, o := range a.calls {
			if o.watch == c.watch {
				n++
			}
		}
		onList, onWatch, onPage := a.onList, a.onWatch, a.onPage
		a.mu.Unlock()
		if c.watch {
			onWatch(n, q, &wire{w: w, done: r.Context().Done()})
			return
		}
		if onPage != nil && onPage(n, &wire{w: w, done: r.Context().Done()}) {
			return
		}
		code, body := onList(n, q)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = fmt.Fprint(w, body)
	}
}

func (a *api) set(fn func(*api)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	fn(a)
}

// requests are the calls so far of one sort.
func (a *api) requests(watch bool) []call {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []call
	for _, c := range a.calls {
		if c.watch == watch {
			out = append(out, c)
		}
	}
	return out
}

// sequence is the resource versions asked for by lists; continuations count as "+token".
func (a *api) sequence() []string {
	var out []string
	for _, c := range a.requests(false) {
		if token := c.query.Get("continue"); token != "" {
			out = append(out, "+"+token)
			continue
		}
		out = append(out, c.rv())
	}
	return out
}

func list(rv, token string, items ...string) string {
	return fmt.Sprintf(`{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":%q,"continue":%q},"items":[%s]}`,
		rv, token, strings.Join(items, ","))
}

// item is a pod as a list holds it, without kind and apiVersion.
func item(name string, rv int) string {
	return fmt.Sprintf(`{"metadata":{"name":%q,"namespace":"default","uid":"uid-%s","resourceVersion":"%d"},"spec":{"nodeName":"n1"}}`, name, name, rv)
}

// object is the same pod as a watch sends it.
func object(name string, rv int) string {
	return `{"kind":"Pod","apiVersion":"v1",` + item(name, rv)[1:]
}

func event(typ, object string) string { return fmt.Sprintf(`{"type":%q,"object":%s}`, typ, object) }

func bookmark(rv int) string {
	return event("BOOKMARK", fmt.Sprintf(`{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"%d"}}`, rv))
}

func status(code int, reason, message string) string {
	return fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d,"reason":%q,"message":%q}`, code, reason, message)
}

func errorEvent(code int, reason string) string {
	return event("ERROR", status(code, reason, "scripted"))
}

func items(n, rv int) []string {
	out := make([]string, n)
	for i := range n {
		out[i] = item("p"+strconv.Itoa(i), rv)
	}
	return out
}
