package reflector_test

import (
	"context"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
	"github.com/deltaplane/deltaplane/services/reflector"
)

// Kubernetes' names, kinds and label, as its reflectors had them; then our own.
func TestMetricsUseKubernetesNames(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onList = func(int, url.Values) (int, string) {
		return 200, list("1234567890123456789", "", item("a", 1), item("b", 2), `{"metadata":{"name":"poison","namespace":"default"}}`)
	}
	a.onWatch = func(n int, _ url.Values, w *wire) {
		w.send()
		if n > 1 { // the first is a very short one
			w.hold()
		}
	}
	tel, err := telemetry.Setup(t.Context(), telemetry.Config{Service: "reflector", LogOutput: logs(t)})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := stream.Connect(t.Context(), stream.Config{URL: embeddedtest.NATS(t).URL()})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	kc, err := kube.Load(kube.Config{URL: a.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer kc.Close()
	cfg := quick()
	cfg.Admin.Listen = "off"
	svc, err := reflector.New(cfg, conn, kc, tel)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- svc.Run(ctx) }()
	reflection(t, dial(t, svc), "pods", "a second list", func(r *reflectorv1.Reflection) bool {
		return watching(r) && r.GetRelists() == 2 && r.GetPublished() > 0 && r.GetPending() == 0
	})
	got := map[string]string{}
	values := map[string]float64{}
	families, err := tel.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if !strings.Contains(f.GetName(), "reflector_") {
			continue
		}
		m := f.GetMetric()[0]
		labels := ""
		for _, l := range m.GetLabel() {
			if labels += " " + l.GetName(); l.GetName() == "name" && l.GetValue() != "dev/pods.v1" {
				t.Errorf("%s has the name %q", f.GetName(), l.GetValue())
			}
		}
		got[f.GetName()] = strings.ToLower(f.GetType().String()) + labels
		values[f.GetName()] = value(m)
	}
	want := map[string]string{
		"reflector_lists_total": "counter name", "reflector_list_duration_seconds": "summary name", "reflector_items_per_list": "summary name",
		"reflector_watches_total": "counter name", "reflector_short_watches_total": "counter name", "deltaplane_reflector_watch_ends_total": "counter name reason",
		"reflector_watch_duration_seconds": "summary name", "reflector_items_per_watch": "summary name",
		"reflector_last_resource_version": "gauge name",

		"deltaplane_reflector_objects": "gauge name", "deltaplane_reflector_pending": "gauge name",
		"deltaplane_reflector_lag_seconds": "gauge name", "deltaplane_reflector_observed_to_acknowledged_seconds": "histogram name",
		"deltaplane_reflector_source_silence_seconds": "gauge name", "deltaplane_reflector_published_total": "counter kind name",
		"deltaplane_reflector_coalesced_total": "counter name", "deltaplane_reflector_dropped_total": "counter name",
		"deltaplane_reflector_quarantined": "gauge name", "deltaplane_reflector_quarantined_total": "counter name",
		"deltaplane_reflector_errors_total": "counter name stage", "deltaplane_reflector_epoch": "gauge name", "deltaplane_reflector_term": "gauge name",
		"deltaplane_reflector_leader": "gauge name", "deltaplane_reflector_watching": "gauge name",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
	for name, n := range map[string]float64{
		"reflector_lists_total": 2, "reflector_watches_total": 2, "reflector_short_watches_total": 1,
		"reflector_items_per_list": 6, "reflector_items_per_watch": 0, // sums
		"reflector_last_resource_version": 567890123456789, // the last 15 digits
		"deltaplane_reflector_objects":    2, "deltaplane_reflector_leader": 1, "deltaplane_reflector_watching": 1,
	} {
		if values[name] != n {
			t.Errorf("%s is %v, want %v", name, values[name], n)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// counted is a collection's counter by its other label.
func counted(t testing.TB, reg prometheus.Gatherer, name string) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() != "name" {
					out[l.GetValue()] += value(m)
				}
			}
		}
	}
	return out
}

// total is the sum of all that a name has.
func total(t testing.TB, tel *telemetry.Telemetry, name string) float64 {
	t.Helper()
	families, err := tel.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name {
				sum += value(m)
			}
		}
	}
	return sum
}

// value is a metric's, or the sum of what it observed.
func value(m *dto.Metric) float64 {
	switch {
	case m.GetCounter() != nil:
		return m.GetCounter().GetValue()
	case m.GetSummary() != nil:
		return m.GetSummary().GetSampleSum()
	case m.GetHistogram() != nil:
		return m.GetHistogram().GetSampleSum()
	}
	return m.GetGauge().GetValue()
}
