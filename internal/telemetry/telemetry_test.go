package telemetry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/internal/telemetry/recent"
	"github.com/deltaplane/deltaplane/internal/tracing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestALogLineInsideASpanCarriesItsIds(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	tel, err := telemetry.Setup(t.Context(), telemetry.Config{Service: "queue", LogFormat: "json", LogOutput: &out})
	if err != nil {
		t.Fatal(err)
	}
	sc := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}})
	ctx := trace.ContextWithSpanContext(t.Context(), sc)
	tel.Log.With(slog.String(telemetry.KeyQueue, "q")).InfoContext(ctx, "hello", telemetry.Err(errors.New("no")))
	tel.Log.Debug("not shown")
	var line map[string]any
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatalf("%v in %q", err, out.String())
	}
	for key, want := range map[string]string{
		"service": "queue", "queue": "q", "error": "no", "msg": "hello",
		"trace_id": sc.TraceID().String(), "span_id": sc.SpanID().String(),
	} {
		if line[key] != want {
			t.Errorf("%s = %v, want %q", key, line[key], want)
		}
	}
}

func TestConfigFaultsAreReportedTogether(t *testing.T) {
	t.Parallel()
	_, err := telemetry.Setup(t.Context(), telemetry.Config{LogFormat: "xml", LogLevel: "loud", TraceRatio: 2})
	for _, want := range []string{"xml", "loud", "ratio 2"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %q", err, want)
		}
	}
}

func TestSpansAreMadeOnlyWhereSomebodyTakesThem(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		config telemetry.Config
		want   bool
	}{
		"nobody":    {},
		"collector": {config: telemetry.Config{OTLPEndpoint: "http://127.0.0.1:1"}, want: true},
		"memory":    {config: telemetry.Config{Recent: recent.New()}, want: true},
	} {
		c.config.TraceRatio = 1
		tel, err := telemetry.Setup(t.Context(), c.config)
		if err != nil {
			t.Fatal(err)
		}
		_, span := tel.Tracer.Tracer("t").Start(tracing.Root(t.Context()), "s")
		if got := span.SpanContext().IsSampled(); got != c.want {
			t.Errorf("%s: sampled = %v, want %v", name, got, c.want)
		}
		if got := tel.Events.Samples(tracing.EventOf("dev/pods.v1", "1")); got != c.want {
			t.Errorf("%s: an event is sampled: %v, want %v", name, got, c.want)
		}
		_, other := tel.Tracer.Tracer("t").Start(t.Context(), "s")
		if other.SpanContext().IsSampled() {
			t.Errorf("%s: a span without a parent is sampled", name)
		}
		other.End()
		// There is no collector: a span that ends after the exporter need not be sent.
		if err := tel.Shutdown(t.Context()); err != nil {
			t.Errorf("%s: Shutdown() = %v", name, err)
		}
		span.End()
	}
}

func TestAdminPages(t *testing.T) {
	t.Parallel()
	tel, err := telemetry.Setup(t.Context(), telemetry.Config{})
	if err != nil {
		t.Fatal(err)
	}
	a, err := telemetry.NewAdmin(telemetry.AdminConfig{}, tel.Registry, nil)
	if err != nil {
		t.Fatal(err)
	}
	get := func(path string) (int, string) {
		w := httptest.NewRecorder()
		a.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w.Code, w.Body.String()
	}
	check := func(path string, code int, text string) {
		t.Helper()
		if c, body := get(path); c != code || !strings.Contains(body, text) {
			t.Errorf("%s: %d %.200q, want %d with %q", path, c, body, code, text)
		}
	}
	check("/healthz", 200, "ok")
	check("/readyz", 200, "ok")
	a.Ready("pods", func(context.Context) error { return telemetry.Degraded(errors.New("full")) })
	check("/readyz", 200, "ok\npods: full")
	check("/metrics", 200, "go_goroutines")
	check("/debug/pprof/", 404, "")
	a.Ready("pods", func(context.Context) error { return errors.New("not synced") })
	a.Ready("nats", func(context.Context) error { return nil })
	check("/readyz", 503, "pods: not synced")
	check("/healthz", 200, "ok")
	_, body := get("/readyz?verbose")
	var r telemetry.Readiness
	if err := json.Unmarshal([]byte(body), &r); err != nil {
		t.Fatal(err)
	}
	if r.Ready || len(r.Checks) != 2 || r.Checks[0].Name != "nats" || !r.Checks[0].OK || r.Checks[1].Error != "not synced" {
		t.Errorf("/readyz?verbose = %+v", r)
	}
}

func TestTracesThatAreKeptArePages(t *testing.T) {
	t.Parallel()
	kept := recent.New()
	tel, err := telemetry.Setup(t.Context(), telemetry.Config{Service: "reflector", Recent: kept})
	if err != nil {
		t.Fatal(err)
	}
	_, span := tel.Tracer.Tracer("t").Start(tracing.Root(t.Context()), "event")
	span.End()
	a, err := telemetry.NewAdmin(telemetry.AdminConfig{Traces: kept}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	id := span.SpanContext().TraceID().String()
	for query, want := range map[string]struct {
		code int
		text string
	}{
		"":                    {200, id},
		"?text=event&limit=1": {200, id},
		"?text=other":         {200, `{"traces":[]}`},
		"?at-least=1h":        {200, `{"traces":[]}`},
		"?failed=true":        {200, `{"traces":[]}`},
		"?id=" + id:           {200, `"service":"deltaplane-reflector"`},
		"?id=0123":            {404, `id: trace "0123" is not kept`},
		"?failed=maybe":       {400, "failed"},
		"?at-least=long":      {400, "at-least"},
		"?limit=0":            {400, "limit"},
	} {
		w := httptest.NewRecorder()
		a.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/traces"+query, nil))
		if w.Code != want.code || !strings.Contains(w.Body.String(), want.text) {
			t.Errorf("/traces%s answers %d %s, want %d with %s", query, w.Code, w.Body, want.code, want.text)
		}
	}
}

func TestPprofIsServedOnRequestAndWithoutTheCommandLine(t *testing.T) {
	t.Parallel()
	for _, on := range []bool{false, true} {
		a, err := telemetry.NewAdmin(telemetry.AdminConfig{Pprof: on}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		for path, want := range map[string]int{
			"/debug/pprof/": 200, "/debug/pprof/heap": 200, "/debug/pprof/symbol": 200,
			"/debug/pprof/cmdline": 404, "/debug/pprof//cmdline": 404, "/debug/pprof/./cmdline": 404, "/debug/vars": 404,
		} {
			w := httptest.NewRecorder()
			a.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			if w.Code >= 300 && w.Code < 400 { // to the clean path
				next := httptest.NewRequest(http.MethodGet, w.Header().Get("Location"), nil)
				w = httptest.NewRecorder()
				a.ServeHTTP(w, next)
			}
			if !on {
				want = 404
			}
			if w.Code != want || strings.Contains(w.Body.String(), os.Args[0]+"\x00") {
				t.Errorf("with pprof %t: %s answers %d, want %d", on, path, w.Code, want)
			}
		}
	}
}

func TestAdminListensOnLoopbackUnlessToldOtherwise(t *testing.T) {
	t.Parallel()
	if _, err := telemetry.NewAdmin(telemetry.AdminConfig{Listen: "0.0.0.0:1"}, nil, nil); !errors.Is(err, rpc.ErrOpenListen) {
		t.Errorf("0.0.0.0: error %v, want ErrOpenListen", err)
	}
	a, err := telemetry.NewAdmin(telemetry.AdminConfig{}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	lis, err := a.Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Serve(ctx, lis) }()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Get("http://" + lis.Addr().String() + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if string(body) != "ok\n" {
		t.Errorf("body %q", body)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Serve = %v, want nil on a clean stop", err)
	}
}
