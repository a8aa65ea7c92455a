package nodeagent

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics carry the kubelet's names where it has them.
type metrics struct {
	start        prometheus.Histogram
	desired      prometheus.Gauge
	restarted    prometheus.Counter
	orphans      prometheus.Counter
	volumes      prometheus.Gauge
	housekeeping prometheus.Histogram
	operations   *prometheus.HistogramVec
	failures     *prometheus.CounterVec
	paused       prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		start: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "kubelet_pod_start_duration_seconds", Buckets: []float64{0.1, 0.25, 0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600},
			Help: "From a pod being seen for the first time to it running.",
		}),
		desired: prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubelet_desired_pods", Help: "Pods bound to the node."}),
		restarted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_restarted_pods_total", Help: "Pods that were restarted under the UID of one that had ended.",
		}),
		orphans: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_orphaned_runtime_pods_total", Help: "Pods found in the runtime that are no pods of the node.",
		}),
		volumes: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kubelet_orphan_pod_cleaned_volumes", Help: "Volumes of pods that are gone, removed in the last round.",
		}),
		housekeeping: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "deltaplane_nodeagent_housekeeping_duration_seconds", Buckets: prometheus.DefBuckets,
			Help: "How long a round of housekeeping took.",
		}),
		operations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_runtime_operations_duration_seconds", Buckets: prometheus.ExponentialBuckets(.005, 2.5, 14),
			Help: "Duration of calls of the runtime. operation_type: the call, in the kubelet's words.",
		}, []string{"operation_type"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_runtime_operations_errors_total", Help: "Calls of the runtime that failed. operation_type: the call, in the kubelet's words.",
		}, []string{"operation_type"}),
		paused: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "deltaplane_nodeagent_paused", Help: "1 while the loop stands still because the runtime is in error.",
		}),
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.start, m.desired, m.restarted, m.orphans, m.volumes, m.housekeeping, m.operations, m.failures, m.paused} {
		errs = append(errs, reg.Register(c))
	}
	return m, errors.Join(errs...)
}

// operation notes a call of the runtime.
func (m *metrics) operation(name string, took time.Duration, err error) {
	m.operations.WithLabelValues(name).Observe(took.Seconds())
	if err != nil {
		m.failures.WithLabelValues(name).Inc()
	}
}
