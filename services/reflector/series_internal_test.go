package reflector

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/internal/telemetry/series"
)

func TestReflectionsBeyondTheBoundShareTheSeriesOfTheRest(t *testing.T) {
	t.Parallel()
	const beyond = 2
	reg := prometheus.NewPedanticRegistry()
	m, err := newMetrics(reg)
	if err != nil {
		t.Fatal(err)
	}
	s := &Service{metrics: m, moved: make(chan struct{})}
	reg.MustRegister(gauges{s})
	for i := range series.MaxCollections + beyond {
		r := &reflection{metrics: m}
		r.state.v = view{name: fmt.Sprintf("dev/r%d.v1", i), objects: 1, sourceAt: time.Now()}
		s.reflections = append(s.reflections, r)
		m.lists.WithLabelValues(m.names.Of(r.state.v.name)).Inc()
	}
	names := func() (by map[string][]string, rest map[string]float64) {
		t.Helper()
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		by, rest = map[string][]string{}, map[string]float64{}
		for _, f := range families {
			for _, metric := range f.GetMetric() {
				name := metric.GetLabel()[0].GetValue()
				by[f.GetName()] = append(by[f.GetName()], name)
				if name == series.Rest {
					rest[f.GetName()] = metric.GetGauge().GetValue() + metric.GetCounter().GetValue()
				}
			}
		}
		return by, rest
	}
	by, rest := names()
	for family, all := range by {
		if len(all) > series.MaxCollections+1 {
			t.Errorf("%s has series of %d collections", family, len(all))
		}
	}
	if rest["deltaplane_reflector_objects"] != beyond || rest["reflector_lists_total"] != beyond {
		t.Errorf("the rest has %v, want %d objects and lists", rest, beyond)
	}
	if _, ok := rest["deltaplane_reflector_epoch"]; ok {
		t.Error("the rest has an epoch, which belongs to one collection")
	}

	first := s.reflections[0]
	s.drop(func(r *reflection) bool { return r == first })
	by, rest = names()
	if slices.Contains(by["reflector_lists_total"], first.state.v.name) {
		t.Error("a dropped reflection has a series")
	}
	if rest["reflector_lists_total"] != beyond || rest["deltaplane_reflector_objects"] != beyond-1 {
		t.Errorf("after one was dropped the rest has %v", rest)
	}
}
