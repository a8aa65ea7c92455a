package kuberuntime

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics carry the kubelet's names.
type metrics struct {
	pods, podErrors             prometheus.Counter
	containers, containerErrors *prometheus.CounterVec
	backoff                     prometheus.Counter
	stateErrors                 prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		pods:      prometheus.NewCounter(prometheus.CounterOpts{Name: "kubelet_started_pods_total", Help: "Sandboxes that were asked for."}),
		podErrors: prometheus.NewCounter(prometheus.CounterOpts{Name: "kubelet_started_pods_errors_total", Help: "Sandboxes that could not be made."}),
		containers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_started_containers_total", Help: "Starts that were tried. container_type is container or init_container.",
		}, []string{"container_type"}),
		containerErrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_started_containers_errors_total",
			Help: "Starts that failed. container_type is container or init_container; code is the reason in the pod's status, such as ErrImagePull.",
		}, []string{"container_type", "code"}),
		backoff: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "deltaplane_nodeagent_restarts_delayed_total", Help: "Syncs that found a container in CrashLoopBackOff.",
		}),
		stateErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "deltaplane_nodeagent_backoff_state_errors_total", Help: "Writes of the file of restart delays that failed.",
		}),
	}
	if reg == nil {
		return m, nil
	}
	var faults []error
	for _, c := range []prometheus.Collector{m.pods, m.podErrors, m.containers, m.containerErrors, m.backoff, m.stateErrors} {
		faults = append(faults, reg.Register(c))
	}
	return m, errors.Join(faults...)
}
