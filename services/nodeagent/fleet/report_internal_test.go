package fleet

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/deltaplane/deltaplane/internal/telemetry"
)

// reporter is an agent that has something to say.
type reporter struct{ checks []telemetry.CheckResult }

func (reporter) Run(context.Context) error { return nil }

func (r reporter) Ready(context.Context) telemetry.Readiness {
	return telemetry.Readiness{Checks: r.checks}
}

func quietly() *telemetry.Telemetry {
	return &telemetry.Telemetry{Log: slog.New(slog.DiscardHandler), Tracer: noop.NewTracerProvider(), Registry: prometheus.NewRegistry()}
}

func TestMetricsOfEveryAgentCarryItsNode(t *testing.T) {
	t.Parallel()
	process := quietly()
	process.Registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "process_up", Help: "Up."}, func() float64 { return 1 }))
	f, err := New(Config{Nodes: []string{"a", "b", "c"}, Admin: telemetry.AdminConfig{Listen: "off"}}, Deps{Telemetry: process})
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]float64{"a": 1, "b": 2} {
		tel := quietly()
		pods := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "pods", Help: "Pods."}, []string{"phase"})
		tel.Registry.MustRegister(pods)
		pods.WithLabelValues("Running").Set(value)
		f.nodes[name].set(reporter{}, tel)
	}
	page := httptest.NewRecorder()
	f.admin.ServeHTTP(page, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	for _, want := range []string{`pods{node="a",phase="Running"} 1`, `pods{node="b",phase="Running"} 2`, "process_up 1"} {
		if strings.Count(page.Body.String(), want+"\n") != 1 {
			t.Errorf("/metrics answers %d without %q:\n%s", page.Code, want, page.Body)
		}
	}
}

func TestANodeIsReadyWhenItsAgentIsAndWhenItIsToBeSilent(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		wanted bool
		agent  Agent
		fault  string
	}{
		{"wanted and ready", true, reporter{[]telemetry.CheckResult{{Name: "index", OK: true}}}, ""},
		{"wanted and not ready", true, reporter{[]telemetry.CheckResult{{Name: "index", OK: true}, {Name: "runtime", Error: "away"}}}, "runtime: away"},
		{"wanted and not started", true, nil, "has not started"},
		{"stopped", false, nil, ""},
		{"stopping", false, reporter{[]telemetry.CheckResult{{Name: "runtime", Error: "away"}}}, ""},
	} {
		n := &node{name: "a", wanted: c.wanted, agent: c.agent}
		err := n.ready(t.Context())
		if (err == nil) != (c.fault == "") || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%s: ready = %v, want %q", c.name, err, c.fault)
		}
	}
}
