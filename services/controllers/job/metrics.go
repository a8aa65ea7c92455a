package job

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
)

// metrics carry the names of the upstream Job controller. completion_mode is
// always NonIndexed.
type metrics struct {
	syncs, ended, pods, externals *prometheus.CounterVec
	duration                      *prometheus.HistogramVec
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	const ns, mode = "job_controller", "completion_mode"
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Name: name, Help: help}, labels)
	}
	m := &metrics{
		syncs: counter("job_syncs_total",
			"Syncs of Jobs. result: success, error, lost; action: tracking, pods_created, pods_deleted, sweep.", mode, "result", "action"),
		ended: counter("jobs_finished_total", "Finished Jobs. result: succeeded, failed; reason: of the condition.", mode, "result", "reason"),
		pods: counter("job_pods_creation_total",
			"Creations of pods. reason: new, recreate_terminating_or_failed, recreate_failed; status: succeeded, failed.", "reason", "status"),
		externals: counter("jobs_by_external_controller_total",
			"Jobs that another controller manages, when they are first seen. controller_name: their spec.managedBy.", "controller_name"),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: ns, Name: "job_sync_duration_seconds", Help: "Time to sync a Job; labels as in job_syncs_total.",
			Buckets: prometheus.ExponentialBuckets(0.004, 2, 15),
		}, []string{mode, "result", "action"}),
	}
	if reg == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.syncs, m.ended, m.pods, m.externals, m.duration} {
		errs = append(errs, reg.Register(c))
	}
	return m, errors.Join(errs...)
}

const nonIndexed = string(batchv1.NonIndexedCompletion)

func (m *metrics) synced(action string, r Result, took time.Duration) {
	result := "success"
	switch {
	case r.Settle == Lost:
		result = "lost"
	case r.Err != nil:
		result = "error"
	}
	m.syncs.WithLabelValues(nonIndexed, result, action).Inc()
	m.duration.WithLabelValues(nonIndexed, result, action).Observe(took.Seconds())
}

func (m *metrics) finished(c *batchv1.JobCondition) {
	result := "failed"
	if c.Type == batchv1.JobComplete {
		result = "succeeded"
	}
	m.ended.WithLabelValues(nonIndexed, result, c.Reason).Inc()
}

func (m *metrics) created(reason string, ok, failed int32) {
	if ok > 0 {
		m.pods.WithLabelValues(reason, "succeeded").Add(float64(ok))
	}
	if failed > 0 {
		m.pods.WithLabelValues(reason, "failed").Add(float64(failed))
	}
}
