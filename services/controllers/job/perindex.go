package job

import (
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/core/replica"
	"github.com/deltaplane/deltaplane/services/controllers/job/policy"
)

// perIndex reports whether failures are counted for each index of a Job by itself.
func perIndex(j *batchv1.Job) bool { return indexed(j) && j.Spec.BackoffLimitPerIndex != nil }

// ignoredCountAnnotation on a pod is how many failures of its index the failure policy has ignored.
const ignoredCountAnnotation = "batch.kubernetes.io/job-index-ignored-failure-count"

// countOf is a count in an annotation; one that cannot be read is none.
func countOf(p *corev1.Pod, annotation string) int32 {
	n, err := strconv.ParseInt(p.Annotations[annotation], 10, 32)
	if err != nil || n < 0 {
		return 0
	}
	return int32(n)
}

// failuresBefore is how often an index has failed before a pod, counted or ignored.
func failuresBefore(p *corev1.Pod) int32 {
	return countOf(p, batchv1.JobIndexFailureCountAnnotation) + countOf(p, ignoredCountAnnotation)
}

// failedIndexesOf are those that a status of a Job has as failed.
func failedIndexesOf(j *batchv1.Job, st *batchv1.JobStatus) replica.Indexes {
	if st.FailedIndexes == nil {
		return nil
	}
	return replica.ParseIndexes(*st.FailedIndexes, int(*j.Spec.Completions))
}

// countFailedIndexes finds which indexes have failed finally, and the pods that tell how often the
// others have failed. One that has succeeded does not fail any more.
func (t *turn) countFailedIndexes() {
	t.failedIndexes = failedIndexesOf(t.job, &t.job.Status).Union(t.indexesOf(t.pods, func(p *corev1.Pod) bool {
		return t.relevant(p) && t.failsIndex(p) && !t.succeededIndexes.Has(indexOf(p, t.limit()))
	}))
	current := t.succeededIndexes.Union(t.failedIndexes).Union(t.indexesOf(t.activePods, active))
	t.predecessors = map[int]*corev1.Pod{}
	for _, p := range t.pods {
		ix := indexOf(p, t.limit())
		if !t.relevant(p) || ix == replica.NoIndex || current.Has(ix) || !failed(t.job, p) {
			continue
		}
		last := t.predecessors[ix]
		if last == nil || failuresBefore(last) <= failuresBefore(p) && !finishedAt(p).Before(finishedAt(last)) {
			t.predecessors[ix] = p
		}
	}
}

// failsIndex reports whether a pod's failure is the last that its index may have.
func (t *turn) failsIndex(p *corev1.Pod) bool {
	if !failed(t.job, p) {
		return false
	}
	v := policy.OfFailure(t.job.Spec.PodFailurePolicy, p)
	return v.Action == batchv1.PodFailurePolicyActionFailIndex ||
		v.Counts() && countOf(p, batchv1.JobIndexFailureCountAnnotation) >= *t.job.Spec.BackoffLimitPerIndex
}

// inherit gives the pod of an index the failures of the index so far.
func (t *turn) inherit(p *corev1.Pod, index int) {
	var counted, ignored int32
	if last := t.predecessors[index]; last != nil {
		counted, ignored = countOf(last, batchv1.JobIndexFailureCountAnnotation), countOf(last, ignoredCountAnnotation)
		if policy.OfFailure(t.job.Spec.PodFailurePolicy, last).Counts() {
			counted++
		} else {
			ignored++
		}
	}
	p.Annotations[batchv1.JobIndexFailureCountAnnotation] = strconv.Itoa(int(counted))
	if ignored > 0 {
		p.Annotations[ignoredCountAnnotation] = strconv.Itoa(int(ignored))
	}
}

// startable are those of the indexes whose back-off is over; wait is how long the first of the
// others has to wait, zero for none.
func (t *turn) startable(indexes []int) (now []int, wait time.Duration) {
	for _, ix := range indexes {
		last := t.predecessors[ix]
		if last == nil {
			now = append(now, ix)
			continue
		}
		f := replica.Failures{Count: failuresBefore(last) + 1, Last: finishedAt(last)}
		switch d := f.Wait(t.now, podBackoff, maxPodBackoff); {
		case d == 0:
			now = append(now, ix)
		case wait == 0 || d < wait:
			wait = d
		}
	}
	return now, wait
}

// judgeIndexes decides whether a Job fails for its failed indexes.
func (t *turn) judgeIndexes(fail func(reason, message string)) {
	bad := t.failedIndexes.Len()
	most := t.job.Spec.MaxFailedIndexes
	switch {
	case most != nil && bad > int(*most):
		fail(batchv1.JobReasonMaxFailedIndexesExceeded, "Job has exceeded the specified maximal number of failed indexes")
	case bad > 0 && bad+t.succeededIndexes.Len() >= t.limit():
		fail(batchv1.JobReasonFailedIndexes, "Job has failed indexes")
	}
}
