package consistency

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	sourceKeys = 150
	firstRV    = 1000
	namespaces = 3
	nodes      = 5
	// rate is how many changes happen a second.
	rate = 300
)

// source is an API server whose pods are created, updated, deleted and created again all the time.
// It remembers all of it.
type source struct {
	*httptest.Server

	mu      sync.RWMutex
	changes []change // changes[i] has resource version firstRV+1+i
	events  [sourceKeys][]event
	news    chan struct{} // closed and replaced when something changed
}

type change struct {
	key  int
	kind string // ADDED, MODIFIED or DELETED
	uid  int
}

// event is the state of a key from a resource version on.
type event struct {
	rv, uid int
	lives   bool
}

func newSource(t *testing.T) *source {
	t.Helper()
	s := &source{news: make(chan struct{})}
	for k := range sourceKeys / 2 {
		s.events[k] = []event{{rv: firstRV - sourceKeys + k, uid: 1, lives: true}}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, `{"kind":"APIResourceList","resources":[{"name":"pods","kind":"Pod","namespaced":true,"verbs":["list","watch"]}]}`)
	})
	mux.HandleFunc("GET /api/v1/pods", s.pods)
	s.Server = httptest.NewServer(mux)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

func namespace(key int) string { return "ns" + strconv.Itoa(key%namespaces) }

func name(key int) string { return namespace(key) + "/p" + strconv.Itoa(key) }

func keyOf(name string) (int, bool) {
	_, n, ok := strings.Cut(name, "/p")
	key, err := strconv.Atoi(n)
	return key, ok && err == nil
}

// nodeAt is where a pod runs as of a version of it.
func nodeAt(rv int) string { return "node-" + strconv.Itoa(rv%nodes) }

func object(key, uid, rv int) string {
	return fmt.Sprintf(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p%d","namespace":%q,"uid":"uid-%d-%d","resourceVersion":"%d"},"spec":{"nodeName":%q}}`,
		key, namespace(key), key, uid, rv, nodeAt(rv))
}

func (s *source) pods(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	w.Header().Set("Content-Type", "application/json")
	from, err := strconv.Atoi(q.Get("resourceVersion"))
	switch {
	case q.Get("watch") == "":
		s.list(w)
	case q.Get("sendInitialEvents") == "true": // a server that does not stream lists
		w.WriteHeader(http.StatusUnprocessableEntity)
		_, _ = fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":422,"reason":"Invalid","message":"sendInitialEvents is forbidden"}`)
	case err != nil:
		w.WriteHeader(http.StatusBadRequest)
	default:
		s.watch(w, r, from)
	}
}

func (s *source) list(w http.ResponseWriter) {
	s.mu.RLock()
	rv := firstRV + len(s.changes)
	var items []string
	for k := range s.events {
		if now := s.last(k, rv); now.lives {
			items = append(items, object(k, now.uid, now.rv))
		}
	}
	s.mu.RUnlock()
	_, _ = fmt.Fprintf(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"%d"},"items":[%s]}`, rv, strings.Join(items, ","))
}

func (s *source) watch(w http.ResponseWriter, r *http.Request, at int) {
	out, flusher := bufio.NewWriter(w), http.NewResponseController(w)
	_ = flusher.Flush()
	for {
		s.mu.RLock()
		news, todo := s.news, s.changes[at-firstRV:]
		s.mu.RUnlock()
		for _, c := range todo {
			at++
			_, _ = fmt.Fprintf(out, "{\"type\":%q,\"object\":%s}\n", c.kind, object(c.key, c.uid, at))
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

// run makes rate changes a second until stop is closed.
func (s *source) run(stop <-chan struct{}) {
	tick := time.NewTicker(4 * time.Millisecond)
	defer tick.Stop()
	for began, done := time.Now(), 0; ; {
		select {
		case <-tick.C:
		case <-stop:
			return
		}
		due := int(time.Since(began).Seconds() * rate)
		s.mu.Lock()
		for ; done < due; done++ {
			s.step()
		}
		close(s.news)
		s.news = make(chan struct{})
		s.mu.Unlock()
	}
}

// step makes one change; a deletion is sometimes followed by a creation at once. The caller holds
// mu.
func (s *source) step() {
	key := rand.IntN(sourceKeys)
	now := s.last(key, firstRV+len(s.changes))
	switch {
	case !now.lives:
		s.change(change{key, "ADDED", now.uid + 1})
	case rand.IntN(6) > 0:
		s.change(change{key, "MODIFIED", now.uid})
	default:
		if s.change(change{key, "DELETED", now.uid}); rand.IntN(3) == 0 {
			s.change(change{key, "ADDED", now.uid + 1})
		}
	}
}

func (s *source) change(c change) {
	s.changes = append(s.changes, c)
	s.events[c.key] = append(s.events[c.key], event{rv: firstRV + len(s.changes), uid: c.uid, lives: c.kind != "DELETED"})
}

// last is the state of a key at a resource version. The caller holds mu.
func (s *source) last(key, rv int) event {
	list := s.events[key]
	i, found := slices.BinarySearchFunc(list, rv, func(e event, rv int) int { return e.rv - rv })
	switch {
	case found:
		return list[i]
	case i == 0:
		return event{}
	default:
		return list[i-1]
	}
}

// states are those that a key may have in an answer: as of the revision, and of every change up to
// the upper bound.
func (s *source) states(key int, b bounds) []event {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := []event{s.last(key, b.revision)}
	list := s.events[key]
	i, _ := slices.BinarySearchFunc(list, b.revision+1, func(e event, rv int) int { return e.rv - rv })
	for ; i < len(list) && list[i].rv <= b.upper; i++ {
		out = append(out, list[i])
	}
	return out
}

func (s *source) now() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return firstRV + len(s.changes)
}
