package follow

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/core/delta"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/indexertest"
)

// laggingGauges are the values of deltaplane_indexer_lagging by collection.
func laggingGauges(t *testing.T, s *Collections) map[string]float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	if err := r.Register(gauges{s}); err != nil {
		t.Fatal(err)
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		if f.GetName() == "deltaplane_indexer_lagging" {
			for _, m := range f.GetMetric() {
				values[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
			}
		}
	}
	return values
}

// fakeHealth is what was told last, by name.
type fakeHealth map[string]bool

func (h fakeHealth) SetServing(service string, serving bool) { h[service] = serving }
func (h fakeHealth) SetPart(name string, serving bool)       { h[name] = serving }

// A lagging collection shows in health, metric and status; the others and the service are well.
func TestHealthMetricAndStatusSayThatACollectionLags(t *testing.T) {
	t.Parallel()
	s := newTestCollections(t, nil, Config{})
	told := fakeHealth{}
	s.health = told
	var both []*Collection
	for _, cluster := range []string{"eu", "us"} {
		id := indexertest.Pods
		id.Cluster = cluster
		c := s.Know(id)
		mustApply(t, c, delta.Batch{Reset: true, Records: []delta.Record{record(1, 0), synced(2)}, Replayed: true, Next: 3})
		both = append(both, c)
	}
	s.discovered.Store(true)
	lags := both[0]
	check := func(when string, want bool) {
		t.Helper()
		s.publishHealth(t.Context())
		service := indexv1.IndexService_ServiceDesc.ServiceName
		for name, want := range map[string]bool{service: true, service + "/us/pods.v1": true, service + "/eu/pods.v1": !want} {
			if got, ok := told[name]; !ok || got != want {
				t.Errorf("%s: health of %s is %v, want %v", when, name, got, want)
			}
		}
		values := laggingGauges(t, s)
		if value, ok := values["eu/pods.v1"]; !ok || (value == 1) != want {
			t.Errorf("%s: the metric says %v", when, values)
		}
		if value, ok := values["us/pods.v1"]; !ok || value != 0 {
			t.Errorf("%s: the metric says %v", when, values)
		}
		for _, c := range both {
			if c.Lagging() != (want && c == lags) {
				t.Errorf("%s: %s lags: %v", when, c.Name, c.Lagging())
			}
		}
	}
	check("while it goes on", false)
	lags.frozen.Store(now.UnixNano())
	check("behind a hole for a moment", false)
	since := now.Add(-laggingAfter - time.Second)
	lags.frozen.Store(since.UnixNano())
	check("behind a hole for long", true)
	if !lags.FrozenSince().Equal(since) {
		t.Errorf("frozen since %v, want %v", lags.FrozenSince(), since)
	}
	lags.frozen.Store(0)
	check("when it is over", false)
}
