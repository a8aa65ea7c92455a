package pleg

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics carry upstream's names.
type metrics struct {
	relist, interval, podRelist, latency prometheus.Histogram
	discarded, streams, streamErrors     prometheus.Counter
	lastSeen, pods                       prometheus.Gauge
	containers                           *prometheus.GaugeVec
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	histogram := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: prometheus.DefBuckets})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	m := &metrics{
		relist:       histogram("kubelet_pleg_relist_duration_seconds", "How long a list of all pods and the comparison with the last took."),
		interval:     histogram("kubelet_pleg_relist_interval_seconds", "Time between the starts of lists."),
		podRelist:    histogram("kubelet_pleg_pod_relist_duration_seconds", "How long the inspection about one pod took."),
		latency:      histogram("kubelet_evented_pleg_connection_latency_seconds", "Time from the runtime's event to its processing."),
		discarded:    counter("kubelet_pleg_discard_events", "Events that the channel had no room for; they were delivered later."),
		streams:      counter("kubelet_evented_pleg_connection_success_count", "Event streams of the runtime that delivered something."),
		streamErrors: counter("kubelet_evented_pleg_connection_error_count", "Event streams of the runtime that failed."),
		lastSeen:     gauge("kubelet_pleg_last_seen_seconds", "Unix time of the last list that succeeded."),
		pods:         gauge("kubelet_running_pods", "Pods with a ready sandbox."),
		containers: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kubelet_running_containers",
			Help: "Containers by container_state: created, running, exited, unknown.",
		}, []string{"container_state"}),
	}
	if reg == nil {
		return m, nil
	}
	var faults []error
	for _, c := range []prometheus.Collector{
		m.relist, m.interval, m.podRelist, m.latency, m.discarded, m.streams, m.streamErrors, m.lastSeen, m.pods, m.containers,
	} {
		faults = append(faults, reg.Register(c))
	}
	return m, errors.Join(faults...)
}
