package failover

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	sourceKeys = 300
	firstRV    = 1000
)

// source is an API server whose pods change all the time. It remembers every change, so that what a
// reader received can be judged.
type source struct {
	*httptest.Server

	mu      sync.Mutex
	history []change // history[i] has resource version firstRV+1+i
	state   map[int]int
	lists   int
	watches int
	news    chan struct{} // closed and replaced when something changed
}

// change is what happened to a key.
type change struct {
	key  int
	kind string // ADDED, MODIFIED or DELETED
}

func newSource(t *testing.T) *source {
	t.Helper()
	s := &source{state: map[int]int{}, news: make(chan struct{})}
	for k := range sourceKeys / 2 {
		s.state[k] = firstRV - sourceKeys + k
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, `{"kind":"APIResourceList","resources":[{"name":"pods","kind":"Pod","namespaced":true,"verbs":["list","watch"]}]}`)
	})
	mux.HandleFunc("GET /api/v1/pods", s.pods)
	mux.HandleFunc("GET /api/v1/namespaces/{namespace}/pods", s.pods)
	s.Server = httptest.NewServer(mux)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

func namespace(key int) string { return "ns" + strconv.Itoa(key%3) }

func name(key int) string { return namespace(key) + "/p" + strconv.Itoa(key) }

func object(key, rv int) string {
	return fmt.Sprintf(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p%d","namespace":%q,"uid":"uid-%d","resourceVersion":"%d","labels":{"app":"a%d"}},`+
		`"spec":{"nodeName":"node-%d","containers":[{"name":"c","image":"registry.example/app:%d"}]}}`, key, namespace(key), key, rv, key%7, rv%11, rv)
}

func (s *source) pods(w http.ResponseWriter, r *http.Request) {
	q, only := r.URL.Query(), r.PathValue("namespace")
	w.Header().Set("Content-Type", "application/json")
	if q.Get("watch") == "" {
		s.list(w, only)
		return
	}
	if q.Get("sendInitialEvents") == "true" { // a server that does not stream lists
		w.WriteHeader(http.StatusUnprocessableEntity)
		_, _ = fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":422,"reason":"Invalid","message":"sendInitialEvents is forbidden"}`)
		return
	}
	from, err := strconv.Atoi(q.Get("resourceVersion"))
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	s.watch(w, r, from, only)
}

func (s *source) list(w http.ResponseWriter, only string) {
	s.mu.Lock()
	s.lists++
	rv := firstRV + len(s.history)
	var items []string
	for k, at := range s.state {
		if only == "" || namespace(k) == only {
			items = append(items, object(k, at))
		}
	}
	s.mu.Unlock()
	_, _ = fmt.Fprintf(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"%d"},"items":[%s]}`, rv, strings.Join(items, ","))
}

func (s *source) watch(w http.ResponseWriter, r *http.Request, from int, only string) {
	s.mu.Lock()
	s.watches++
	s.mu.Unlock()
	out := bufio.NewWriter(w)
	flusher := http.NewResponseController(w)
	_ = flusher.Flush()
	for at := from; ; {
		s.mu.Lock()
		news := s.news
		todo := s.history[at-firstRV:]
		s.mu.Unlock()
		for _, c := range todo {
			at++
			if only != "" && namespace(c.key) != only {
				_, _ = fmt.Fprintf(out, `{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"%d"}}}`+"\n", at)
				continue
			}
			_, _ = fmt.Fprintf(out, "{\"type\":%q,\"object\":%s}\n", c.kind, object(c.key, at))
		}
		if out.Flush() != nil || flusher.Flush() != nil {
			return
		}
		select {
		case <-news:
		case <-r.Context().Done():
			return
		}
	}
}

// run changes rate keys a second until stop is closed.
func (s *source) run(rate int, stop <-chan struct{}) {
	tick := time.NewTicker(4 * time.Millisecond)
	defer tick.Stop()
	began, done := time.Now(), 0
	for {
		select {
		case <-tick.C:
		case <-stop:
			return
		}
		due := int(time.Since(began).Seconds() * float64(rate))
		s.mu.Lock()
		for ; done < due; done++ {
			s.step()
		}
		close(s.news)
		s.news = make(chan struct{})
		s.mu.Unlock()
	}
}

// step makes one change. The caller holds mu.
func (s *source) step() {
	c := change{key: rand.IntN(sourceKeys), kind: "MODIFIED"}
	switch _, there := s.state[c.key]; {
	case !there:
		c.kind = "ADDED"
	case rand.IntN(10) == 0:
		c.kind = "DELETED"
	}
	s.history = append(s.history, c)
	if s.state[c.key] = firstRV + len(s.history); c.kind == "DELETED" {
		delete(s.state, c.key)
	}
}

// at returns what happened at a resource version.
func (s *source) at(rv int) change {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.history[rv-firstRV-1]
}

// now is the state and its resource version.
func (s *source) now() (map[string]int, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]int{}
	for k, rv := range s.state {
		out[name(k)] = rv
	}
	return out, firstRV + len(s.history)
}

func (s *source) requests() (lists, watches int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lists, s.watches
}
