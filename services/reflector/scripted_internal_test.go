package reflector

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/attempt"
	"github.com/deltaplane/deltaplane/internal/kube"
)

// answer is what a scripted API server says to one request. The zero value is a watch that stays
// open and says nothing.
type answer struct {
	code  int // default 200
	after string
	body  string
	lasts time.Duration // of a watch behind its body, unless it ends at once
	ends  error         // io.EOF is a clean close; nil lets a watch stay open until its client leaves
	hangs bool          // a list that never comes
}

// script is a source of pods without a network and without a log, in the time of a test's bubble,
// where a pause that nobody asked for shows as well as one that is too short. The last answer of
// each kind is repeated.
type script struct {
	lists, watches []answer
	cfg            Config
	want           Resource
	shadow         *delta.Shadow
	w              delta.RV
	seed           func(now time.Time) // called as the source begins

	mu    sync.Mutex
	began time.Time
	calls []string // "list 10 @1s", guarded by mu
	asked []string // timeouts of watches
	n     map[string]int
}

// outcome is what was seen of a source that ran.
type outcome struct {
	calls, asked []string
	log          string
	failures     int // as the metric counts them
	r            *reflection
	list         progress // as it was at the end
	stage        *delta.Stage
}

// play runs the source for a time and ends it.
func (s *script) play(t *testing.T, lasts time.Duration) (out outcome) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		kc, err := kube.New(&rest.Config{Host: "http://script", Transport: s}, kube.Config{})
		if err != nil {
			t.Fatal(err)
		}
		reg := prometheus.NewRegistry()
		m, err := newMetrics(reg)
		if err != nil {
			t.Fatal(err)
		}
		if s.cfg.Backoff == (Backoff{}) {
			s.cfg.Backoff = Backoff{Base: time.Second, Cap: 16 * time.Second, Jitter: -1}
		}
		if s.shadow == nil {
			s.shadow = delta.NewShadow(time.Hour)
		}
		var log bytes.Buffer
		var loops sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		logger := slog.New(slog.NewTextHandler(&log, nil))
		out.r = &reflection{
			cfg: s.cfg.withDefaults(), kube: kc, metrics: m, slog: logger, want: s.want, relist: make(chan struct{}, 1),
			resource: kube.Resource{Version: "v1", Name: "pods", Kind: "Pod", Namespaced: true}, col: delta.Collection{Cluster: "dev", Version: "v1", Resource: "pods"},
			faults: newDeduplicator(logger, &loops, func() context.Context { return ctx }),
		}
		out.r.state.set(func(v *view) { v.name = out.r.col.String() })
		p := &publisher{r: out.r, wake: make(chan struct{}, 1), stage: delta.NewStage(1<<20, "")}
		s.began, s.n, s.calls, s.asked = time.Now(), map[string]int{}, nil, nil
		if s.seed != nil {
			s.seed(s.began)
		}
		done := make(chan error, 1)
		go func() { done <- newSource(out.r, p, s.shadow, 1, s.w, "").run(ctx) }()
		time.Sleep(lasts)
		synctest.Wait()
		out.list = out.r.state.get().list
		s.mu.Lock()
		out.calls, out.asked, out.stage = s.calls, s.asked, p.stage
		s.mu.Unlock()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("run() = %v", err)
		}
		loops.Wait()
		out.log = log.String()
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() == "deltaplane_reflector_errors_total" {
					out.failures += int(m.GetCounter().GetValue())
				}
			}
		}
	})
	return out
}

// RoundTrip implements [http.RoundTripper].
func (s *script) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasSuffix(r.URL.Path, "/namespaces/kube-system") {
		return &http.Response{StatusCode: http.StatusNotFound, Header: http.Header{}, Request: r, Body: http.NoBody}, nil
	}
	q := r.URL.Query()
	sort, answers := "list", s.lists
	switch {
	case q.Get("sendInitialEvents") != "":
		sort, answers = "stream", s.watches
	case q.Get("watch") != "":
		sort, answers = "watch", s.watches
	}
	s.mu.Lock()
	s.calls = append(s.calls, fmt.Sprintf("%s %s @%v", sort, q.Get("resourceVersion"), time.Since(s.began)))
	if sort != "list" {
		s.asked = append(s.asked, q.Get("timeoutSeconds"))
	}
	a := answers[min(s.n[sort], len(answers)-1)]
	s.n[sort]++
	s.mu.Unlock()
	if a.hangs {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	resp := &http.Response{StatusCode: max(a.code, http.StatusOK), Header: http.Header{}, Request: r}
	if a.after != "" {
		resp.Header.Set("Retry-After", a.after)
	}
	if sort == "list" || a.code != 0 {
		resp.Body = io.NopCloser(strings.NewReader(a.body))
		return resp, nil
	}
	body, in := io.Pipe()
	stop := context.AfterFunc(r.Context(), func() { _ = in.CloseWithError(r.Context().Err()) })
	go func() {
		if a.body != "" {
			_, _ = io.WriteString(in, a.body+"\n")
		}
		if a.ends != nil && attempt.Sleep(r.Context(), a.lasts) && stop() {
			_ = in.CloseWithError(a.ends)
		}
	}()
	resp.Body = body
	return resp, nil
}

// empty is a list without objects.
func empty(rv string) answer {
	return answer{body: `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"` + rv + `"},"items":[]}`}
}

func failure(code int, reason string) string {
	return fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d,"reason":%q,"message":"scripted"}`, code, reason)
}

func refusal(code int, reason, after string) answer {
	return answer{code: code, after: after, body: failure(code, reason)}
}

// mark is a bookmark.
func mark(rv string) string {
	return `{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"` + rv + `"}}}`
}

// told is an ERROR in an open watch.
func told(code int, reason string) answer {
	return answer{body: `{"type":"ERROR","object":` + failure(code, reason) + `}`}
}
