package nodelifecycle

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/core/nodelifecycle"
	"github.com/deltaplane/deltaplane/internal/telemetry/series"
)

// metrics carry upstream's names. A zone is "region:zone", empty without labels.
type metrics struct {
	zones                   *series.Names
	health, size, unhealthy *prometheus.GaugeVec
	evictions               *prometheus.CounterVec
	looked, refreshed       prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"zone"})
	}
	m := &metrics{
		zones:     series.NewNames(series.MaxZones),
		health:    gauge("node_collector_zone_health", "Percentage of the zone's nodes that are ready."),
		size:      gauge("node_collector_zone_size", "Nodes of the zone."),
		unhealthy: gauge("node_collector_unhealthy_nodes_in_zone", "Nodes of the zone that are not ready."),
		evictions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "node_collector_evictions_total", Help: "Nodes given a NoExecute taint since this process started.",
		}, []string{"zone"}),
		looked: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "node_collector_update_node_health_duration_seconds", Help: "How long one look at a node took.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 8),
		}),
		refreshed: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "node_collector_update_all_nodes_health_duration_seconds",
			Help:    "How long one round over all nodes took: reading them from the index, judging their zones, setting the rates. Single nodes are looked at by their own keys.",
			Buckets: prometheus.ExponentialBuckets(0.01, 4, 8),
		}),
	}
	if reg == nil {
		return m, nil
	}
	return m, errors.Join(reg.Register(m.health), reg.Register(m.size), reg.Register(m.unhealthy), reg.Register(m.evictions), reg.Register(m.looked), reg.Register(m.refreshed))
}

// counted shows the nodes of zones. A zone of before that is none any more, since its last node
// went or was relabelled, is empty and healthy.
func (m *metrics) counted(now, before map[nodelifecycle.Zone]nodelifecycle.Count) {
	shown := map[string]nodelifecycle.Count{}
	for _, counts := range []map[nodelifecycle.Zone]nodelifecycle.Count{now, before} {
		for zone := range counts {
			shown[m.zones.Of(zone.String())] = nodelifecycle.Count{}
		}
	}
	for zone, c := range now {
		label := m.zones.Of(zone.String())
		sum := shown[label]
		shown[label] = nodelifecycle.Count{Ready: sum.Ready + c.Ready, NotReady: sum.NotReady + c.NotReady}
	}
	for label, c := range shown {
		health := 100.0
		if c.Size() > 0 {
			health *= float64(c.Ready) / float64(c.Size())
		}
		m.size.WithLabelValues(label).Set(float64(c.Size()))
		m.unhealthy.WithLabelValues(label).Set(float64(c.NotReady))
		m.health.WithLabelValues(label).Set(health)
	}
}
