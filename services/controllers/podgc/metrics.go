package podgc

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/core/podgc"
	"github.com/deltaplane/deltaplane/internal/telemetry/series"
)

// metrics carry upstream's names.
type metrics struct {
	namespaces          *series.Names
	deletions, failures *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"namespace", "reason"})
	}
	m := &metrics{
		namespaces: series.NewNames(series.MaxNamespaces),
		deletions:  counter("pod_gc_collector_force_delete_pods_total", "Pods whose deletion was tried. reason: orphaned, out-of-service, terminated, unscheduled."),
		failures:   counter("pod_gc_collector_force_delete_pod_errors_total", "Those that failed, and are tried again."),
	}
	if reg == nil {
		return m, nil
	}
	return m, errors.Join(reg.Register(m.deletions), reg.Register(m.failures))
}

func (m *metrics) tried(p *podgc.Pod, why podgc.Reason, err error) {
	namespace := m.namespaces.Of(p.Metadata.Namespace)
	m.deletions.WithLabelValues(namespace, string(why)).Inc()
	if err != nil {
		m.failures.WithLabelValues(namespace, string(why)).Inc()
	}
}
