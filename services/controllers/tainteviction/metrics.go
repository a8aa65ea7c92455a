package tainteviction

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics carry upstream's names.
type metrics struct {
	deletions prometheus.Counter
	latency   prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		deletions: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "taint_eviction_controller_pod_deletions_total", Help: "Pods deleted because of NoExecute taints.",
		}),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "taint_eviction_controller_pod_deletion_duration_seconds",
			Help: "How long after the end of a pod's tolerated time it was deleted.",
			// Upstream's; its values are off by 10^9, these are seconds.
			Buckets: []float64{0.005, 0.025, 0.1, 0.5, 1, 2.5, 10, 30, 60, 120, 180, 240},
		}),
	}
	if reg == nil {
		return m, nil
	}
	return m, errors.Join(reg.Register(m.deletions), reg.Register(m.latency))
}

func (m *metrics) deleted(late time.Duration) {
	m.deletions.Inc()
	m.latency.Observe(max(late, 0).Seconds())
}
