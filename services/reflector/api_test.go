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
	sort  sort
	query url.Values
	at    time.Time
}

// sort of a request.
type sort string

const (
	listed   sort = "list"
	watched  sort = "watch"
	streamed sort = "stream" // a watch that begins with the whole state
	asked    sort = "get"    // of one object
)

func (c call) rv() string { return c.query.Get("resourceVersion") }

// api is a scripted API server that serves pods over real HTTP. Lists are answered by onList,
// watches by onWatch, which may send what it likes; when it returns the watch ends. Streaming
// starts are answered by onStream, and refused, as by a server that has none, without it.
type api struct {
	*httptest.Server

	mu       sync.Mutex
	calls    []call
	onList   func(n int, q url.Values) (code int, body string)
	onWatch  func(n int, q url.Values, w *wire)
	onPage   func(n int, w *wire) bool // answers a list as it likes; false leaves it to onList
	onStream func(n int, q url.Values, w *wire)
	onGet    func(n int, key string, q url.Values) (code int, body string)
	served   bool   // discovery knows the resource
	cluster  string // UID of kube-system: empty, there is none; forbidden, nobody may know
	closing  chan struct{}
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

// refuse answers the request as a whole.
func (w *wire) refuse(code int, body string) {
	w.w.Header().Set("Content-Type", "application/json")
	w.w.WriteHeader(code)
	_, _ = fmt.Fprint(w.w, body)
}

// hold keeps the watch open until the client leaves.
func (w *wire) hold() { <-w.done }

// stepped makes watches say what is put into the channel, a line each.
func (a *api) stepped() chan<- string {
	steps := make(chan string)
	a.onWatch = func(_ int, _ url.Values, w *wire) {
		w.send()
		for {
			select {
			case line := <-steps:
				w.send(line)
			case <-w.done:
				return
			}
		}
	}
	return steps
}

const forbidden = "forbidden"

func newAPI(t testing.TB) *api {
	t.Helper()
	a := &api{served: true, closing: make(chan struct{})}
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
		if r.URL.Query().Get("sendInitialEvents") != "" {
			(&wire{w: w}).refuse(422, status(422, "Invalid", "no streaming start"))
			return
		}
		if r.URL.Query().Get("watch") != "" {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return
		}
		_, _ = fmt.Fprint(w, list("5", "", `{"metadata":{"name":"n1","uid":"n","resourceVersion":"3"}}`))
	})
	mux.HandleFunc("GET /api/v1/namespaces/kube-system", func(w http.ResponseWriter, _ *http.Request) {
		a.mu.Lock()
		uid := a.cluster
		a.mu.Unlock()
		switch uid {
		case "":
			(&wire{w: w}).refuse(404, status(404, "NotFound", "no such namespace"))
		case forbidden:
			(&wire{w: w}).refuse(403, status(403, "Forbidden", "namespaces: no"))
		default:
			_, _ = fmt.Fprintf(w, `{"metadata":{"name":"kube-system","uid":%q}}`, uid)
		}
	})
	mux.HandleFunc("GET /api/v1/pods", a.pods)
	mux.HandleFunc("GET /api/v1/namespaces/{namespace}/pods/{name}", a.pod)
	a.Server = httptest.NewServer(mux)
	t.Cleanup(func() {
		close(a.closing)
		a.CloseClientConnections()
		a.Close()
	})
	return a
}

// wait holds an answer back until ch is closed, or the test ends: a test that failed before it
// closed ch must not wait for itself when it cleans up.
func (a *api) wait(ch <-chan struct{}) {
	select {
	case <-ch:
	case <-a.closing:
	}
}

// note records a request and returns which of its sort it is.
func (a *api) note(c call) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls = append(a.calls, c)
	n := 0
	for _, o := range a.calls {
		if o.sort == c.sort {
			n++
		}
	}
	return n
}

func (a *api) pods(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	c := call{sort: listed, query: q, at: time.Now()}
	switch {
	case q.Get("sendInitialEvents") == "true":
		c.sort = streamed
	case q.Get("watch") != "":
		c.sort = watched
	}
	n := a.note(c)
	a.mu.Lock()
	onList, onWatch, onPage, onStream := a.onList, a.onWatch, a.onPage, a.onStream
	a.mu.Unlock()
	out := &wire{w: w, done: r.Context().Done()}
	switch {
	case c.sort == streamed && onStream == nil:
		out.refuse(422, status(422, "Invalid", "sendInitialEvents: Forbidden: the WatchList feature gate is off"))
	case c.sort == streamed:
		onStream(n, q, out)
	case c.sort == watched:
		onWatch(n, q, out)
	case onPage != nil && onPage(n, out):
	default:
		out.refuse(onList(n, q))
	}
}

func (a *api) pod(w http.ResponseWriter, r *http.Request) {
	n := a.note(call{sort: asked, query: r.URL.Query(), at: time.Now()})
	code, body := 404, status(404, "NotFound", "no such pod")
	if a.onGet != nil {
		code, body = a.onGet(n, r.PathValue("namespace")+"/"+r.PathValue("name"), r.URL.Query())
	}
	(&wire{w: w}).refuse(code, body)
}

func (a *api) set(fn func(*api)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	fn(a)
}

// requests are the calls so far: the watches, or the lists.
func (a *api) requests(watch bool) []call {
	if watch {
		return a.of(watched)
	}
	return a.of(listed)
}

// nth waits for a call of one sort, the first being 1.
func (a *api) nth(t testing.TB, s sort, n int) call {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for tick := time.NewTicker(2 * time.Millisecond); ; <-tick.C {
		if all := a.of(s); len(all) >= n {
			return all[n-1]
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s %d: not seen in time", s, n)
		}
	}
}

// of is the calls of one sort so far.
func (a *api) of(s sort) []call {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []call
	for _, c := range a.calls {
		if c.sort == s {
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
