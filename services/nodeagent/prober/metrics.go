package prober

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/core/probe"
)

// metrics have the kubelet's names. Pods and containers are no labels: a scrape of the kubelet's
// has them on a page of its own.
type metrics struct {
	total    *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "prober_probe_total", Help: "Probes of containers. probe_type: Readiness, Liveness or Startup. result: successful, failed, or unknown for one that could not be made.",
		}, []string{"probe_type", "result"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "prober_probe_duration_seconds", Buckets: prometheus.DefBuckets,
			Help: "How long probes took. probe_type: Readiness, Liveness or Startup.",
		}, []string{"probe_type"}),
	}
	if reg == nil {
		return m, nil
	}
	return m, errors.Join(reg.Register(m.total), reg.Register(m.duration))
}

func (m *metrics) made(kind probe.Kind, r probe.Result, took time.Duration) {
	result := "unknown"
	switch r {
	case probe.Success:
		result = "successful"
	case probe.Failure:
		result = "failed"
	}
	m.total.WithLabelValues(kind.String(), result).Inc()
	m.duration.WithLabelValues(kind.String()).Observe(took.Seconds())
}
