package nodelifecycle

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics carry upstream's names. A zone is "region:zone", empty without labels.
type metrics struct {
	health, size, unhealthy *prometheus.GaugeVec
	evictions               *prometheus.CounterVec
	looked, refreshed       prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"zone"})
	}
	m := &metrics{
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
