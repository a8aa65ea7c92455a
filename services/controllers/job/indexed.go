package job

import (
	"fmt"
	"slices"
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/core/replica"
)

// indexed reports whether each pod of a Job stands for one index below spec.completions.
func indexed(j *batchv1.Job) bool {
	return j.Spec.CompletionMode != nil && *j.Spec.CompletionMode == batchv1.IndexedCompletion
}

// indexOf is the index of a pod, or [replica.NoIndex] where its annotation has none below limit.
func indexOf(p *corev1.Pod, limit int) int {
	ix, err := strconv.Atoi(p.Annotations[batchv1.JobCompletionIndexAnnotation])
	if err != nil || ix < 0 || ix >= limit {
		return replica.NoIndex
	}
	return ix
}

const completionIndexEnv = "JOB_COMPLETION_INDEX"

// mark gives a pod its index: for people and services as annotation and label, for its containers
// in their environment, and in its host name.
func mark(p *corev1.Pod, j *batchv1.Job, index int) {
	text := strconv.Itoa(index)
	if p.Labels == nil {
		p.Labels = map[string]string{}
	}
	p.Labels[batchv1.JobCompletionIndexAnnotation] = text
	p.Annotations[batchv1.JobCompletionIndexAnnotation] = text
	p.Spec.Hostname = fmt.Sprintf("%s-%d", j.Name, index)
	for _, containers := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range containers {
			c := &containers[i]
			if slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == completionIndexEnv }) {
				continue // the user's own
			}
			c.Env = append(c.Env, corev1.EnvVar{Name: completionIndexEnv, ValueFrom: &corev1.EnvVarSource{
				FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels['" + batchv1.JobCompletionIndexAnnotation + "']"},
			}})
		}
	}
}

// completedIndexesOf are those below completions that a status of an indexed Job has as completed.
func completedIndexesOf(j *batchv1.Job, st *batchv1.JobStatus) replica.Indexes {
	return replica.ParseIndexes(st.CompletedIndexes, int(*j.Spec.Completions))
}

// limit is the number of indexes of an indexed Job.
func (t *turn) limit() int { return int(*t.job.Spec.Completions) }

// valid is false for pods of an indexed Job that stand for none of its indexes: they count neither
// as succeeded nor as failed.
func (t *turn) valid(p *corev1.Pod) bool {
	return !indexed(t.job) || indexOf(p, t.limit()) != replica.NoIndex
}

// indexesOf are the indexes that pods stand for.
func (t *turn) indexesOf(pods []*corev1.Pod, which func(*corev1.Pod) bool) replica.Indexes {
	var all []int
	for _, p := range pods {
		if ix := indexOf(p, t.limit()); ix != replica.NoIndex && which(p) {
			all = append(all, ix)
		}
	}
	return replica.IndexesOf(all...)
}

// countIndexes finds which indexes have succeeded. One success counts for each, and none for an
// index that the status has as failed: the API server refuses an index that is both.
func (t *turn) countIndexes() {
	t.completed = completedIndexesOf(t.job, &t.job.Status)
	failed := failedIndexesOf(t.job, &t.job.Status)
	t.succeededIndexes = t.completed.Union(t.indexesOf(t.pods, func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodSucceeded && t.relevant(p) && !failed.Has(indexOf(p, t.limit()))
	}))
	t.succeeded = int32(t.succeededIndexes.Len()) //nolint:gosec // at most spec.completions
	if perIndex(t.job) {
		t.countFailedIndexes()
	}
}

// misplaced are the active pods of an indexed Job that stand for an index out of range, for none,
// or for one that a more useful pod stands for as well.
func (t *turn) misplaced() []*corev1.Pod {
	var out []*corev1.Pod
	byIndex := map[int][]*corev1.Pod{}
	for _, p := range t.activePods {
		if ix := indexOf(p, t.limit()); ix == replica.NoIndex {
			out = append(out, p)
		} else {
			byIndex[ix] = append(byIndex[ix], p)
		}
	}
	for _, p := range t.activePods { // in their order, so that the choice is the same every time
		same := byIndex[indexOf(p, t.limit())]
		if len(same) > 1 && same[0] == p {
			out = append(out, rank(same)[:len(same)-1]...)
		}
	}
	return out
}

// surplus are n active pods that are to be deleted, and all that are misplaced.
func (t *turn) surplus(n int) []*corev1.Pod {
	if !indexed(t.job) {
		return rank(t.activePods)[:n]
	}
	out := t.misplaced()
	if len(out) >= n {
		return out
	}
	chosen := map[*corev1.Pod]bool{}
	for _, p := range out {
		chosen[p] = true
	}
	left := slices.DeleteFunc(rank(t.activePods), func(p *corev1.Pod) bool { return chosen[p] })
	return append(out, left[:n-len(out)]...)
}

// pending are the lowest n indexes that have no pod and need one.
func (t *turn) pending(n int) []int {
	taken := t.succeededIndexes.Union(t.failedIndexes).Union(t.indexesOf(t.activePods, active))
	if replaceFailedOnly(t.job) {
		taken = taken.Union(t.indexesOf(t.pods, terminating))
	}
	return taken.Free(n, t.limit())
}
