package logs

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/system"
	"github.com/deltaplane/deltaplane/internal/kube"
)

// scriptConfig is a population and the API server that serves it.
type scriptConfig struct {
	File      string `json:"file"` // for the population
	Seed      uint64 `json:"seed"`
	Pods      int    `json:"pods"`
	Templates int    `json:"templates"`
	Managed   bool   `json:"managed"` // objects have managed fields
	// Streams tells whether it sends initial states as events (watch-list), as API
	// servers since 1.34 do; otherwise it refuses, as those before.
	Streams bool `json:"streams"`
}

// scriptInfo is what a scripted API server tells about itself.
type scriptInfo struct {
	URL      string   `json:"url"`
	First    int      `json:"first"` // resource version of the population
	Keys     []string `json:"keys"`  // in the order of the events
	FullMean int      `json:"full_mean"`
	BareMean int      `json:"bare_mean"`
}

// asked counts requests for pods.
type asked struct {
	Lists   int `json:"lists"` // without the further pages of one
	Pages   int `json:"pages"`
	Watches int `json:"watches"`
	Streams int `json:"streams"` // watches that began with the initial state
	Refused int `json:"refused"` // that were to begin so
	Ended   int `json:"ended"`   // watches that have ended, by whomever
}

// script is an API server that plays a history: JSON, pods alone. Its watches
// never wait for each other.
type script struct {
	*history

	streams bool
	done    atomic.Int64 // events so far
	mu      sync.Mutex
	moved   chan struct{} // closed when done grows; guarded by mu like what follows
	asked   asked
	halt    func() error // ends the stretch of events that runs in the background
}

// ScriptServer is the servant that is a scripted API server.
func ScriptServer(ctx context.Context, raw json.RawMessage) (*harness.Servant, error) {
	var cfg scriptConfig
	if err := json.Unmarshal(raw, &cfg); err != nil {
		return nil, err
	}
	h, err := writeHistory(cfg.File, cfg.Seed, cfg.Pods, cfg.Templates, cfg.Managed)
	if err != nil {
		return nil, err
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it is closed by stop
	if err != nil {
		return nil, errors.Join(err, h.close())
	}
	s := &script{history: h, streams: cfg.Streams, moved: make(chan struct{})}
	srv := &http.Server{Handler: s.mux(), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = srv.Serve(lis) }() // an API server that fails fails the client
	info := scriptInfo{
		URL: "http://" + lis.Addr().String(), First: h.first(), FullMean: h.full / len(h.pods), BareMean: h.bare / len(h.pods),
	}
	for i := range h.pods {
		info.Keys = append(info.Keys, string(h.pods[i].key))
	}
	return &harness.Servant{Info: info, Ops: s.ops(), Stop: func() error { return errors.Join(srv.Close(), h.close()) }}, nil
}

func (s *script) ops() map[string]harness.Op {
	return map[string]harness.Op{
		"run": func(ctx context.Context, args json.RawMessage) (any, error) {
			var c system.ChurnArgs
			if err := json.Unmarshal(args, &c); err != nil {
				return nil, err
			}
			return s.play(ctx, c.Rate, int(c.For.Seconds()*float64(c.Rate)), true), nil
		},
		"start": func(ctx context.Context, args json.RawMessage) (any, error) {
			var rate int
			if err := json.Unmarshal(args, &rate); err != nil {
				return nil, err
			}
			s.halt = harness.InBackground(ctx, func(ctx context.Context) error { s.play(ctx, rate, 1<<40, false); return nil })
			return nil, nil
		},
		"halt":  func(context.Context, json.RawMessage) (any, error) { return nil, s.halt() },
		"rv":    func(context.Context, json.RawMessage) (any, error) { return s.rv(int(s.done.Load())), nil },
		"asked": func(context.Context, json.RawMessage) (any, error) { return s.count(func(*asked) {}), nil },
		"hash": func(context.Context, json.RawMessage) (any, error) {
			return s.hash(int(s.done.Load()))
		},
		"versions": func(context.Context, json.RawMessage) (any, error) {
			return s.versions(int(s.done.Load())), nil
		},
	}
}

// play lets n events happen at a fixed rate, open loop, and returns when each
// did, in nanoseconds of the machine's clock, if that is asked for.
func (s *script) play(ctx context.Context, rate, n int, stamped bool) (stamps []int64) {
	began := time.Now()
	for i := range n {
		if wait := time.Duration(i)*time.Second/time.Duration(rate) - time.Since(began); wait > 0 {
			time.Sleep(wait)
		}
		if ctx.Err() != nil {
			return stamps
		}
		if stamped {
			stamps = append(stamps, time.Now().UnixNano())
		}
		s.mu.Lock()
		s.done.Add(1)
		close(s.moved)
		s.moved = make(chan struct{})
		s.mu.Unlock()
	}
	return stamps
}

// rv is the resource version after so many events.
func (s *script) rv(events int) int { return s.first() + events }

// next returns when there are more than so many events.
func (s *script) next(events int) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if int(s.done.Load()) > events {
		return closedChannel
	}
	return s.moved
}

var closedChannel = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (s *script) count(fn func(*asked)) asked {
	s.mu.Lock()
	defer s.mu.Unlock()
	fn(&s.asked)
	return s.asked
}

func (s *script) mux() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"v1","resources":[{"name":"pods","singularName":"pod","namespaced":true,"kind":"Pod","verbs":["get","list","watch"]}]}`)
	})
	mux.HandleFunc("GET /api/v1/pods", func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		var err error
		switch {
		case query.Get("watch") == "":
			err = s.list(w, query)
		case query.Get("sendInitialEvents") == "true" && !s.streams:
			s.count(func(a *asked) { a.Refused++ })
			refuse(w, http.StatusUnprocessableEntity, "Invalid", "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled")
		default:
			err = s.watch(r.Context(), w, query)
		}
		if err != nil {
			panic(http.ErrAbortHandler) // the client sees a cut answer
		}
	})
	return mux
}

func refuse(w http.ResponseWriter, code int, reason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":%q,"reason":%q,"code":%d}`, message, reason, code)
}

// list answers a list, or a page of it. As a watch cache does, it takes no
// notice of a limit when any version will do; the pages of one list are all of
// the state in which it began.
func (s *script) list(w http.ResponseWriter, query url.Values) error {
	events, at := int(s.done.Load()), 0
	s.count(func(a *asked) {
		a.Pages++
		if query.Get("continue") == "" {
			a.Lists++
		}
	})
	limit, _ := strconv.Atoi(query.Get("limit"))
	if token := query.Get("continue"); token != "" {
		if _, err := fmt.Sscanf(token, "%d-%d", &events, &at); err != nil {
			refuse(w, http.StatusBadRequest, "BadRequest", "continue token "+token)
			return nil
		}
	} else if rv := query.Get("resourceVersion"); rv != "" {
		if asked, err := strconv.Atoi(rv); err != nil || asked > s.rv(events) {
			refuse(w, http.StatusGatewayTimeout, "Timeout", "Too large resource version: "+rv)
			return nil
		}
		limit = 0
	}
	end := len(s.pods)
	header := fmt.Sprintf(`"resourceVersion":"%d"`, s.rv(events))
	if limit > 0 && at+limit < end {
		end = at + limit
		header += fmt.Sprintf(`,"continue":"%d-%d","remainingItemCount":%d`, events, end, len(s.pods)-end)
	}
	w.Header().Set("Content-Type", "application/json")
	out := bufio.NewWriterSize(w, 1<<18)
	_, _ = fmt.Fprintf(out, `{"kind":"PodList","apiVersion":"v1","metadata":{%s},"items":[`, header) // errors stay until Flush
	var text []byte
	comma := ""
	for ; at < end; at++ {
		x, alive := s.state(at, events)
		if !alive {
			continue
		}
		var err error
		if text, err = s.body(x, text); err != nil {
			return err
		}
		_, _ = out.WriteString(comma + "{")
		_, _ = out.Write(text[1+len(objectHead):])
		comma = ","
	}
	_, _ = out.WriteString("]}\n")
	return out.Flush()
}

// bookmarkEvery is how often an idle watch gets a bookmark.
const bookmarkEvery = 30 * time.Second

// watch plays what happens after a version, behind the initial state when that is asked for.
func (s *script) watch(ctx context.Context, w http.ResponseWriter, query url.Values) error {
	s.count(func(a *asked) { a.Watches++ })
	defer s.count(func(a *asked) { a.Ended++ })
	if seconds, err := strconv.Atoi(query.Get("timeoutSeconds")); err == nil && seconds > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(seconds)*time.Second)
		defer cancel()
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	out := &watchWriter{script: s, out: bufio.NewWriterSize(w, 1<<16), flush: http.NewResponseController(w).Flush}
	at := int(s.done.Load())
	rv, err := strconv.Atoi(query.Get("resourceVersion"))
	if err == nil && rv > 0 && query.Get("sendInitialEvents") != "true" {
		at = max(rv-s.first(), 0)
	} else if err := out.initial(at, query.Get("sendInitialEvents") == "true"); err != nil {
		return err
	}
	bookmarks := time.NewTicker(bookmarkEvery)
	defer bookmarks.Stop()
	for {
		for end := int(s.done.Load()); at < end; at++ {
			if err := out.event(s.event(at)); err != nil {
				return err
			}
		}
		if err := out.send(); err != nil {
			return err
		}
		select {
		case <-s.next(at):
		case <-bookmarks.C:
			out.bookmark(at, "")
		case <-ctx.Done():
			return nil
		}
	}
}

// watchWriter writes the events of one watch.
type watchWriter struct {
	script *script
	out    *bufio.Writer // errors stay until send
	flush  func() error
	text   []byte
}

func (w *watchWriter) event(x incarnation) (err error) {
	if w.text, err = w.script.body(x, w.text); err != nil {
		return err
	}
	_, _ = w.out.WriteString(`{"type":"` + x.kind + `","object":`)
	_, _ = w.out.Write(w.text)
	_, err = w.out.WriteString("}\n")
	return err
}

func (w *watchWriter) bookmark(events int, annotations string) {
	_, _ = fmt.Fprintf(w.out, `{"type":"`+kube.EventBookmark+`","object":{%s"metadata":{"resourceVersion":"%d"%s}}}`+"\n",
		objectHead, w.script.rv(events), annotations)
}

// initial sends a whole state and, when asked for, the bookmark that ends it.
func (w *watchWriter) initial(events int, marked bool) error {
	w.script.count(func(a *asked) { a.Streams++ })
	for i := range w.script.pods {
		x, alive := w.script.state(i, events)
		if !alive {
			continue
		}
		x.kind = kube.EventAdded
		if err := w.event(x); err != nil {
			return err
		}
	}
	if marked {
		w.bookmark(events, `,"annotations":{"k8s.io/initial-events-end":"true"}`)
	}
	return nil
}

func (w *watchWriter) send() error {
	if err := w.out.Flush(); err != nil {
		return err
	}
	return w.flush()
}

// scripted is the parent's side of a scripted API server.
type scripted struct {
	*harness.Child
	scriptInfo
}

func startScript(ctx context.Context, b *harness.Bench, name string, cfg scriptConfig) (*scripted, error) {
	cfg.File, cfg.Seed = b.PathIn(strings.ReplaceAll(name, " ", "-")+".pods"), b.Seed
	s := &scripted{}
	var err error
	s.Child, err = b.Spawn(ctx, "script", harness.Place{}, cfg, &s.scriptInfo)
	return s, err
}

// counts are the requests so far.
func (s *scripted) counts() (a asked, err error) {
	err = s.Call("asked", nil, &a)
	return a, err
}
