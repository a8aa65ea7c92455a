package podstatus

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/internal/kube"
)

type metrics struct {
	took  prometheus.Histogram
	calls *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		took: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "kubelet_pod_status_sync_duration_seconds", Help: "From a pod's first status that was not written to the write of its latest.",
			Buckets: []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5, 10, 20, 30, 45, 60},
		}),
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "deltaplane_node_pod_status_calls_total", Help: "Calls of the status writer. verb: get, patch, delete; outcome: ok, conflict, not_found, error.",
		}, []string{"verb", "outcome"}),
	}
	if reg == nil {
		return m, nil
	}
	return m, errors.Join(reg.Register(m.took), reg.Register(m.calls))
}

func (m *metrics) call(verb string, err error) {
	outcome := "ok"
	switch {
	case err == nil:
	case kube.IsNotFound(err):
		outcome = "not_found"
	case kube.IsConflict(err):
		outcome = "conflict"
	default:
		outcome = "error"
	}
	m.calls.WithLabelValues(verb, outcome).Inc()
}
