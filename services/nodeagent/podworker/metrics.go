package podworker

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/core/podsync"
)

type metrics struct {
	duration *prometheus.HistogramVec
	start    prometheus.Histogram
	working  *prometheus.GaugeVec
	panics   prometheus.Counter
}

// lifecycles are the kubelet's words for what a worker does.
var lifecycles = map[podsync.State]string{
	podsync.Syncing: "sync", podsync.Terminating: "terminating", podsync.Terminated: "terminated", podsync.Finished: "terminated",
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_pod_worker_duration_seconds", Buckets: prometheus.DefBuckets,
			Help: "From news of a pod to the end of the step that acted on it. operation_type: create, update, sync, kill, terminated.",
		}, []string{"operation_type"}),
		start: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "kubelet_pod_worker_start_duration_seconds", Buckets: prometheus.DefBuckets,
			Help: "From a pod being seen to its worker's first step.",
		}),
		working: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kubelet_working_pods",
			Help: "Pods that have a worker. lifecycle: sync, terminating, terminated; config: desired, orphan, runtime_only.",
		}, []string{"lifecycle", "config"}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "deltaplane_nodeagent_step_panics_total", Help: "Steps of pod workers that panicked.",
		}),
	}
	if reg == nil {
		return m, nil
	}
	return m, errors.Join(reg.Register(m.duration), reg.Register(m.start), reg.Register(m.working), reg.Register(m.panics))
}

func (m *metrics) count(all map[types.UID]Known) {
	type label struct{ lifecycle, config string }
	counts := map[label]int{}
	for _, lifecycle := range lifecycles {
		for _, config := range []string{"desired", "orphan", "runtime_only"} {
			counts[label{lifecycle, config}] = 0
		}
	}
	for _, k := range all {
		config := "desired"
		if k.Orphan {
			config = "orphan"
			if k.Pod == nil {
				config = "runtime_only"
			}
		}
		counts[label{lifecycles[k.State], config}]++
	}
	for l, n := range counts {
		m.working.WithLabelValues(l.lifecycle, l.config).Set(float64(n))
	}
}
