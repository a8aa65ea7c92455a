package nodelifecycle

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/core/nodelifecycle"
	"github.com/deltaplane/deltaplane/internal/telemetry/series"
)

func TestZonesBeyondTheBoundAreCountedTogether(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m, err := newMetrics(reg)
	if err != nil {
		t.Fatal(err)
	}
	type counts = map[nodelifecycle.Zone]nodelifecycle.Count
	zone := func(i int) nodelifecycle.Zone { return nodelifecycle.Zone{Name: fmt.Sprintf("z%d", i)} }
	all := counts{}
	for i := range series.MaxZones {
		all[zone(i)] = nodelifecycle.Count{Ready: 1}
	}
	m.counted(all, nil)
	beyond := counts{zone(-1): {Ready: 1, NotReady: 2}, zone(-2): {Ready: 2, NotReady: 3}, zone(0): {Ready: 7}}
	m.counted(beyond, all)
	says := func(what, zone string, want float64) {
		t.Helper()
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, metric := range f.GetMetric() {
				if f.GetName() == what && metric.GetLabel()[0].GetValue() == zone {
					if got := metric.GetGauge().GetValue(); got != want {
						t.Errorf("%s of %s is %v, want %v", what, zone, got, want)
					}
					return
				}
			}
			if n := len(f.GetMetric()); n > series.MaxZones+1 {
				t.Errorf("%s has %d series", f.GetName(), n)
			}
		}
		t.Errorf("%s of %s is missing", what, zone)
	}
	says("node_collector_zone_size", series.Rest, 8)
	says("node_collector_unhealthy_nodes_in_zone", series.Rest, 5)
	says("node_collector_zone_health", series.Rest, 37.5)
	says("node_collector_zone_size", ":z0", 7)
	says("node_collector_zone_size", ":z1", 0) // it has no node any more
	says("node_collector_zone_health", ":z1", 100)
}
