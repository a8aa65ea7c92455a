package job

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"

	"github.com/deltaplane/deltaplane/internal/telemetry/series"
)

// metrics carry the names of the upstream Job controller.
type metrics struct {
	managers                                 *series.Names
	syncs, ended, pods, externals            *prometheus.CounterVec
	podsEnded, indexes, judgements, tracking *prometheus.CounterVec
	duration                                 *prometheus.HistogramVec
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	const ns, mode = "job_controller", "completion_mode"
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Name: name, Help: help}, labels)
	}
	m := &metrics{
		managers: series.NewNames(series.MaxManagers),
		syncs: counter("job_syncs_total",
			"Syncs of Jobs. result: success, error, lost; action: reconciling, tracking, pods_created, pods_deleted, sweep.", mode, "result", "action"),
		ended: counter("jobs_finished_total", "Finished Jobs. result: succeeded, failed; reason: of the condition.", mode, "result", "reason"),
		pods: counter("job_pods_creation_total",
			"Creations of pods. reason: new, recreate_terminating_or_failed, recreate_failed; status: succeeded, failed.", "reason", "status"),
		externals: counter("jobs_by_external_controller_total",
			"Jobs that another controller manages, when they are first seen. controller_name: their spec.managedBy.", "controller_name"),
		podsEnded: counter("job_pods_finished_total",
			"Pods that have been counted. result: succeeded (indexes, of an indexed Job), failed.", mode, "result"),
		indexes: counter("job_finished_indexes_total",
			"Finished indexes of indexed Jobs. status: succeeded, failed; backoffLimit: global, perIndex.", "status", "backoffLimit"),
		judgements: counter("pod_failures_handled_by_failure_policy_total",
			"Failed pods that a rule of a podFailurePolicy matches. action: of the rule.", "action"),
		tracking: counter("terminated_pods_tracking_finalizer_total",
			"Terminated pods with the tracking finalizer. event: add, when the status lists one; delete, when a sync has taken the finalizer off.", "event"),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: ns, Name: "job_sync_duration_seconds", Help: "Time to sync a Job; labels as in job_syncs_total.",
			Buckets: prometheus.ExponentialBuckets(0.004, 2, 15),
		}, []string{mode, "result", "action"}),
	}
	if reg == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.syncs, m.ended, m.pods, m.externals, m.podsEnded, m.indexes, m.judgements, m.tracking, m.duration} {
		errs = append(errs, reg.Register(c))
	}
	return m, errors.Join(errs...)
}

// modeOf is a Job's completion mode; where there is no Job, that of most.
func modeOf(j *batchv1.Job) string {
	if j != nil && indexed(j) {
		return string(batchv1.IndexedCompletion)
	}
	return string(batchv1.NonIndexedCompletion)
}

func (m *metrics) synced(mode, action string, r Result, took time.Duration) {
	result := "success"
	switch {
	case r.Settle == Lost:
		result = "lost"
	case r.Err != nil:
		result = "error"
	}
	m.syncs.WithLabelValues(mode, result, action).Inc()
	m.duration.WithLabelValues(mode, result, action).Observe(took.Seconds())
}

func (m *metrics) finished(j *batchv1.Job, c *batchv1.JobCondition) {
	result := "failed"
	if c.Type == batchv1.JobComplete {
		result = "succeeded"
	}
	m.ended.WithLabelValues(modeOf(j), result, c.Reason).Inc()
}

// counted counts what a status that was written has more than the one before.
func (m *metrics) counted(j *batchv1.Job, was *batchv1.JobStatus) {
	st, mode := &j.Status, modeOf(j)
	more := func(v *prometheus.CounterVec, n int, labels ...string) {
		if n > 0 {
			v.WithLabelValues(labels...).Add(float64(n))
		}
	}
	more(m.podsEnded, int(st.Failed-was.Failed), mode, "failed")
	if !indexed(j) {
		more(m.podsEnded, int(st.Succeeded-was.Succeeded), mode, "succeeded")
		return
	}
	// The status before may have indexes that completions have left behind since.
	ok := completedIndexesOf(j, st).Len() - completedIndexesOf(j, was).Len()
	more(m.podsEnded, ok, mode, "succeeded")
	limit := "global"
	if perIndex(j) {
		limit = "perIndex"
		more(m.indexes, failedIndexesOf(j, st).Len()-failedIndexesOf(j, was).Len(), "failed", limit)
	}
	more(m.indexes, ok, "succeeded", limit)
}

// tracked counts what the first step of counting has written.
func (m *metrics) tracked(t *turn) {
	for action, n := range t.judged {
		m.judgements.WithLabelValues(string(action)).Add(float64(n))
	}
	if t.added > 0 {
		m.tracking.WithLabelValues("add").Add(float64(t.added))
	}
}

// released counts a terminated pod that has lost its finalizer. It first adds one that no status
// lists: a success of an index, or a pod that counts as nothing.
func (m *metrics) released(listed bool) {
	if !listed {
		m.tracking.WithLabelValues("add").Inc()
	}
	m.tracking.WithLabelValues("delete").Inc()
}

func (m *metrics) created(reason string, ok, failed int32) {
	if ok > 0 {
		m.pods.WithLabelValues(reason, "succeeded").Add(float64(ok))
	}
	if failed > 0 {
		m.pods.WithLabelValues(reason, "failed").Add(float64(failed))
	}
}
