package job

import (
	"cmp"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/services/controllers/job/policy"
)

// maxUncounted bounds what one sync counts, so that the status stays small.
const maxUncounted = 500

// track is the first step of counting: it puts the UIDs of newly terminated pods
// into the status and returns the pods whose finalizers may go once that status
// is written, and whether it has to be written at all.
func (t *turn) track() (remove []*corev1.Pod, write bool) {
	st := &t.job.Status
	write = t.suspendChanged || st.Active != t.activeN ||
		st.Ready == nil || *st.Ready != t.readyN || st.Terminating == nil || *st.Terminating != t.terminatingN
	st.Active, st.Ready, st.Terminating = t.activeN, new(t.readyN), new(t.terminatingN)

	t.withFinalizer = map[types.UID]bool{}
	for _, p := range t.pods {
		if t.relevant(p) {
			t.withFinalizer[p.UID] = true
		}
	}
	write = t.countRemoved() || write
	pods := t.pods
	if indexed(t.job) {
		write = t.trackIndexes() || write
		pods = slices.SortedStableFunc(slices.Values(pods), func(a, b *corev1.Pod) int { return cmp.Compare(indexOf(a, t.limit()), indexOf(b, t.limit())) })
	}
	un := st.UncountedTerminatedPods
	successes := 0 // of indexes, which need no UIDs
	for _, p := range pods {
		if !t.withFinalizer[p.UID] || !t.releasable(p) {
			continue
		}
		remove = append(remove, p)
		switch {
		case p.Status.Phase == corev1.PodSucceeded && !t.uncountedBad[p.UID]:
			switch {
			case indexed(t.job):
				if t.valid(p) && !t.completed.Has(indexOf(p, t.limit())) {
					successes++
				}
			case !t.uncountedOK[p.UID]:
				un.Succeeded = append(un.Succeeded, p.UID)
				t.added++
				write = true
			}
		case failed(t.job, p) || t.failing(): // when failing, every pod left counts
			if t.uncountedBad[p.UID] || !t.valid(p) {
				break
			}
			if t.counts(p) {
				un.Failed = append(un.Failed, p.UID)
				write = true
				if terminal(p) {
					t.added++
				}
			}
		}
		if successes+len(un.Succeeded)+len(un.Failed) >= maxUncounted {
			t.capped = true
			break
		}
	}
	return remove, t.interim() || write
}

// counts notes what the failure policy does with a failed pod and reports whether it counts.
func (t *turn) counts(p *corev1.Pod) bool {
	v := policy.OfFailure(t.job.Spec.PodFailurePolicy, p)
	if v.Action != "" {
		if t.judged == nil {
			t.judged = map[batchv1.PodFailurePolicyAction]int{}
		}
		t.judged[v.Action]++
	}
	return v.Counts()
}

// trackIndexes brings the indexes of the status up to date and reports whether they changed. Those
// that have succeeded are listed at once: listing one twice does no harm.
func (t *turn) trackIndexes() bool {
	st := &t.job.Status
	was, text := st.CompletedIndexes, t.succeededIndexes.String()
	st.CompletedIndexes, st.Succeeded = text, t.succeeded
	changed := text != was
	if perIndex(t.job) {
		text := t.failedIndexes.String()
		changed = changed || st.FailedIndexes == nil || *st.FailedIndexes != text
		st.FailedIndexes = &text
	}
	return changed
}

// releasable says whether a pod's finalizer may be removed in this sync.
func (t *turn) releasable(p *corev1.Pod) bool {
	if t.job.DeletionTimestamp != nil || t.finish != nil || p.Status.Phase == corev1.PodSucceeded {
		return true
	}
	if perIndex(t.job) && t.predecessors[indexOf(p, t.limit())] == p {
		return false // its successor has yet to inherit what it counts
	}
	return failed(t.job, p)
}

func (t *turn) failing() bool {
	return t.finish != nil && t.finish.Type != batchv1.JobSuccessCriteriaMet && t.finish.Type != batchv1.JobComplete
}

// interim adds FailureTarget or SuccessCriteriaMet and turns what the Job ends
// with into the terminal condition.
func (t *turn) interim() (write bool) {
	if t.finish == nil {
		return false
	}
	final := batchv1.JobFailed
	switch t.finish.Type {
	case batchv1.JobFailureTarget:
		write = setCondition(t.job, *t.finish)
	case batchv1.JobSuccessCriteriaMet:
		final = batchv1.JobComplete
		if conditionTrue(t.job, batchv1.JobSuccessCriteriaMet) == nil {
			write = setCondition(t.job, *t.finish)
		}
	}
	t.finish = new(newCondition(final, corev1.ConditionTrue, t.finish.Reason, t.finish.Message, t.now))
	return write
}

// countRemoved is step (iii): UIDs whose pods have no finalizer any more move
// into the counters, which never fall.
func (t *turn) countRemoved() bool {
	st := &t.job.Status
	un := st.UncountedTerminatedPods
	ok, bad := keep(un.Succeeded, t.withFinalizer), keep(un.Failed, t.withFinalizer)
	nOK, nBad := len(un.Succeeded)-len(ok), len(un.Failed)-len(bad)
	st.Succeeded += int32(nOK) //nolint:gosec // at most 500
	st.Failed += int32(nBad)   //nolint:gosec // at most 500
	un.Succeeded, un.Failed = ok, bad
	return nOK+nBad > 0
}

func keep(uids []types.UID, in map[types.UID]bool) []types.UID {
	var out []types.UID
	for _, u := range uids {
		if in[u] {
			out = append(out, u)
		}
	}
	return out
}

// counted notes which finalizers are gone and reports whether the counters
// moved.
func (t *turn) counted(gone []types.UID) bool {
	for _, u := range gone {
		delete(t.withFinalizer, u)
	}
	return t.countRemoved()
}

// end adds the terminal condition when nothing is left to wait for and reports whether it did.
func (t *turn) end() bool {
	st := &t.job.Status
	un := st.UncountedTerminatedPods
	if t.finish == nil || t.capped || len(un.Succeeded)+len(un.Failed) > 0 || t.terminatingN > 0 {
		return false
	}
	setCondition(t.job, *t.finish)
	if t.finish.Type == batchv1.JobComplete {
		st.CompletionTime = new(t.finish.LastTransitionTime)
		if c := t.job.Spec.Completions; c != nil && st.Succeeded > *c {
			t.note(corev1.EventTypeWarning, "TooManySucceededPods", "Too many succeeded pods running after completion count reached")
		}
		t.note(corev1.EventTypeNormal, "Completed", "Job completed")
	} else {
		t.note(corev1.EventTypeWarning, t.finish.Reason, t.finish.Message)
	}
	return true
}
