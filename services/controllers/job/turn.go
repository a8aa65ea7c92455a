package job

import (
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/core/replica"
	"github.com/deltaplane/deltaplane/services/controllers/job/policy"
)

// facts is everything one sync decides from. The job is changed by the turn; the
// pods are not.
type facts struct {
	job  *batchv1.Job
	pods []*corev1.Pod // claimed, surplus left out
	// satisfied is false while deletions of an earlier sync have not been seen.
	satisfied bool
	// ignored are pods whose finalizer is known to be gone although the index
	// still shows it.
	ignored  map[types.UID]bool
	failures replica.Failures
	// accounted is what the failure record has taken into account; nil when that is
	// not known.
	accounted *tally
	now       time.Time
}

// tally is how many pods a status accounts for as succeeded and as failed,
// counted or not.
type tally [2]int32

func tallyOf(st *batchv1.JobStatus) tally {
	n := tally{st.Succeeded, st.Failed}
	if un := st.UncountedTerminatedPods; un != nil {
		n[0] += count(un.Succeeded)
		n[1] += count(un.Failed)
	}
	return n
}

type actionKind int

const (
	nothing   actionKind = iota
	finishing            // delete pods, keep their finalizers
	removing             // strip finalizers, then delete pods
	creating
	waiting // pods are missing and none may be created now
)

// action is what a turn wants done to pods. At most one kind in one sync.
type action struct {
	kind    actionKind
	pods    []*corev1.Pod // to delete
	create  int
	indexes []int // of the pods to create, of an indexed Job
}

// acted is what became of an action.
type acted struct {
	deleted, deletedReady int32
	created               int32
}

type event struct{ kind, reason, message string }

// turn is one sync of one Job, as a sequence of pure steps: begin, then act on
// its action, acted, track, write the status, remove finalizers, counted, finish,
// write the status. See docs/rules.md#job-controller.
type turn struct {
	facts
	action action
	finish *batchv1.JobCondition // what the Job ends with, interim or final
	wake   time.Duration         // sync again after this; zero means no need
	events []event               // to be recorded once the status is written

	activePods                      []*corev1.Pod
	succeeded, failed               int32
	activeN, readyN, terminatingN   int32
	uncountedOK, uncountedBad       map[types.UID]bool // as they were read
	managed, suspendChanged, capped bool
	withFinalizer                   map[types.UID]bool

	// Of an indexed Job: the indexes that its status had as completed, those that have succeeded
	// and failed by now, and, where failures are counted for each, the last failed pod of an index
	// that has no other yet.
	completed, succeededIndexes, failedIndexes replica.Indexes
	predecessors                               map[int]*corev1.Pod

	judged map[batchv1.PodFailurePolicyAction]int // failures that are counted now, by what the policy does
	added  int                                    // terminated pods that the status now lists
}

// begin looks at the facts and chooses the action.
func begin(f facts) *turn {
	t := &turn{facts: f}
	st := &t.job.Status
	if st.UncountedTerminatedPods == nil {
		st.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{}
	}
	t.uncountedOK = setOf(st.UncountedTerminatedPods.Succeeded)
	t.uncountedBad = setOf(st.UncountedTerminatedPods.Failed)
	for _, p := range t.pods {
		if active(p) {
			t.activePods = append(t.activePods, p)
		}
		if terminating(p) {
			t.terminatingN++
		}
	}
	t.activeN, t.readyN = count(t.activePods), countReady(t.activePods)
	t.countFinished()
	if st.StartTime == nil && !suspended(t.job) { // a suspended Job starts when it is resumed
		st.StartTime = new(metav1.NewTime(t.now))
	}
	t.judge()
	switch {
	case t.finish != nil:
		t.action = action{kind: finishing, pods: t.activePods}
	case t.satisfied && t.job.DeletionTimestamp == nil:
		t.managed = true
		t.manage()
	}
	return t
}

// countFinished counts what has ended, counted or not, and brings
// the failure record up to date.
func (t *turn) countFinished() {
	var ok, bad []time.Time
	ignored := int32(0)
	for _, p := range t.pods {
		if !t.relevant(p) || !t.valid(p) {
			continue
		}
		if p.Status.Phase == corev1.PodSucceeded && !t.uncountedOK[p.UID] {
			ok = append(ok, finishedAt(p))
		}
		if failed(t.job, p) && !t.uncountedBad[p.UID] {
			bad = append(bad, finishedAt(p))
			if !policy.OfFailure(t.job.Spec.PodFailurePolicy, p).Counts() {
				ignored++ // but it delays the next pod
			}
		}
	}
	st := &t.job.Status
	t.succeeded = st.Succeeded + count(ok) + count(st.UncountedTerminatedPods.Succeeded)
	t.failed = st.Failed + count(bad) - ignored + count(st.UncountedTerminatedPods.Failed)
	if indexed(t.job) {
		t.countIndexes()
	}
	if perIndex(t.job) {
		return // the pods of each index say how often it has failed
	}
	missedOK, missedBad := t.missed()
	t.failures = t.failures.Add(append(ok, missedOK...), append(bad, missedBad...))
}

// missed are the times at which pods finished that the status accounts for and the
// failure record does not: that status was written and nobody heard the answer, or
// came to save the record. A failure whose pod is gone counts as of now.
func (t *turn) missed() (ok, bad []time.Time) {
	if t.accounted == nil {
		return nil, nil
	}
	is := tallyOf(&t.job.Status)
	latest := func(of func(*corev1.Pod) bool, n int32) []time.Time {
		var times []time.Time
		for _, p := range t.pods {
			if of(p) {
				times = append(times, finishedAt(p))
			}
		}
		slices.SortFunc(times, func(a, b time.Time) int { return b.Compare(a) })
		return times[:min(len(times), max(0, int(n)))]
	}
	failed := is[1] - t.accounted[1]
	bad = latest(func(p *corev1.Pod) bool { return t.uncountedBad[p.UID] }, failed)
	for count(bad) < min(failed, maxUncounted) {
		bad = append(bad, t.now)
	}
	succeeded := func(p *corev1.Pod) bool {
		return t.uncountedOK[p.UID] || indexed(t.job) && p.Status.Phase == corev1.PodSucceeded && t.completed.Has(indexOf(p, t.limit()))
	}
	return latest(succeeded, is[0]-t.accounted[0]), bad
}

// relevant is false for pods that are in the counters or have no say.
func (t *turn) relevant(p *corev1.Pod) bool { return tracked(p) && !t.ignored[p.UID] }

// judge decides a Job's end in upstream's order.
func (t *turn) judge() {
	if c := conditionTrue(t.job, batchv1.JobSuccessCriteriaMet); c != nil {
		t.finish = new(*c)
		return
	}
	if c := conditionTrue(t.job, batchv1.JobFailureTarget); c != nil {
		t.finish = new(newCondition(batchv1.JobFailed, corev1.ConditionTrue, c.Reason, c.Message, t.now))
		return
	}
	fail := func(reason, message string) {
		t.finish = new(newCondition(batchv1.JobFailureTarget, corev1.ConditionTrue, reason, message, t.now))
	}
	if message := t.refused(); message != "" {
		fail(batchv1.JobReasonPodFailurePolicy, message)
		return
	}
	if t.failed > *t.job.Spec.BackoffLimit || t.restartedTooOften() {
		fail(batchv1.JobReasonBackoffLimitExceeded, "Job has reached the specified backoff limit")
		return
	}
	left, running := t.untilDeadline()
	if running && left <= 0 {
		fail(batchv1.JobReasonDeadlineExceeded, "Job was active longer than specified deadline")
		return
	}
	if running {
		t.wakeIn(left) // armed again on every sync
	}
	if perIndex(t.job) {
		t.judgeIndexes(fail)
	}
	if t.finish != nil || !indexed(t.job) {
		return
	}
	if message, met := policy.OfSuccess(t.job.Spec.SuccessPolicy, t.limit(), t.succeededIndexes); met {
		t.finish = new(newCondition(batchv1.JobSuccessCriteriaMet, corev1.ConditionTrue, batchv1.JobReasonSuccessPolicy, message, t.now))
	}
}

// refused is why a failed pod fails the Job by its failure policy; empty when none does.
func (t *turn) refused() string {
	for _, p := range t.pods {
		if failed(t.job, p) {
			if v := policy.OfFailure(t.job.Spec.PodFailurePolicy, p); v.Message != "" {
				return v.Message
			}
		}
	}
	return ""
}

// restartedTooOften reports whether restarts of containers exceed the back-off limit,
// which counts them for the restart policy OnFailure.
func (t *turn) restartedTooOften() bool {
	if t.job.Spec.Template.Spec.RestartPolicy != corev1.RestartPolicyOnFailure {
		return false
	}
	var n int32
	for _, p := range t.pods {
		if p.Status.Phase != corev1.PodRunning && p.Status.Phase != corev1.PodPending {
			continue
		}
		for _, s := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
			for i := range s {
				n += s[i].RestartCount
			}
		}
	}
	if *t.job.Spec.BackoffLimit == 0 {
		return n > 0
	}
	return n >= *t.job.Spec.BackoffLimit
}

// untilDeadline is how long the Job may still run, if it has a deadline that
// counts; it never does while suspended.
func (t *turn) untilDeadline() (time.Duration, bool) {
	s := t.job.Spec.ActiveDeadlineSeconds
	if s == nil || *s > longestDeadline || t.job.Status.StartTime == nil || suspended(t.job) {
		return 0, false
	}
	return time.Duration(*s)*time.Second - t.now.Sub(t.job.Status.StartTime.Time), true
}

func (t *turn) wakeIn(d time.Duration) {
	if t.wake == 0 || d < t.wake {
		t.wake = d
	}
}

// manage chooses how many pods to create or which to delete.
func (t *turn) manage() {
	if suspended(t.job) {
		if len(t.activePods) > 0 {
			t.action = action{kind: removing, pods: t.activePods} // all of them, no cap
		}
		return
	}
	want := t.want()
	if surplus := t.surplus(int(max(0, t.activeN-want))); len(surplus) > 0 {
		t.action = action{kind: removing, pods: surplus[:min(len(surplus), replica.MaxPerSync)]}
		return
	}
	missing := want - t.activeN
	if replaceFailedOnly(t.job) {
		missing -= t.terminatingN
	}
	if missing <= 0 {
		return
	}
	if !perIndex(t.job) {
		if d := t.failures.Wait(t.now, podBackoff, maxPodBackoff); d > 0 {
			t.action.kind = waiting
			t.wakeIn(max(d, batchPeriod)) // the rest of the back-off, at least a second
			return
		}
	}
	n := min(int(missing), replica.MaxPerSync)
	if !indexed(t.job) {
		t.action = action{kind: creating, create: n}
		return
	}
	t.action.kind = waiting
	indexes, wait := t.startable(t.pending(n))
	if wait > 0 {
		t.wakeIn(max(wait, batchPeriod))
	}
	if len(indexes) > 0 {
		t.action = action{kind: creating, create: len(indexes), indexes: indexes}
	}
}

// creates is why a turn creates pods, as upstream's metric says it.
func (t *turn) creates() string {
	switch {
	case t.failed > 0 && replaceFailedOnly(t.job):
		return "recreate_failed"
	case t.failed > 0 || t.terminatingN > 0:
		return "recreate_terminating_or_failed"
	default:
		return "new"
	}
}

func (t *turn) want() int32 {
	s := &t.job.Spec
	if s.Completions == nil {
		if t.succeeded > 0 {
			return t.activeN
		}
		return *s.Parallelism
	}
	return max(0, min(*s.Completions-t.succeeded, *s.Parallelism))
}

// rank orders pods for deletion. A pod that lost its finalizer to a
// removal that was cut short goes first: it can never be counted.
func rank(pods []*corev1.Pod) []*corev1.Pod {
	pods = slices.Clone(pods)
	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int {
		if tracked(a) != tracked(b) {
			if tracked(b) {
				return -1
			}
			return 1
		}
		return replica.Compare(standing(a), standing(b))
	})
	return pods
}

// acted takes the outcome of the action into account and decides whether the Job
// has ended.
func (t *turn) acted(a acted) {
	t.activeN += a.created - a.deleted
	t.readyN -= a.deletedReady
	t.terminatingN += a.deleted
	if t.action.kind == finishing {
		if a.deleted != count(t.action.pods) || !t.satisfied {
			t.finish = nil // not before every deletion worked and was seen
		}
		return
	}
	if t.complete() {
		t.finish = new(newCondition(batchv1.JobSuccessCriteriaMet, corev1.ConditionTrue,
			batchv1.JobReasonCompletionsReached, "Reached expected number of succeeded pods", t.now))
		return
	}
	if t.managed {
		t.markSuspension()
	}
}

// complete reports whether enough pods succeeded and none is active.
func (t *turn) complete() bool {
	if t.activeN != 0 {
		return false
	}
	if t.job.Spec.Completions == nil {
		return t.succeeded > 0
	}
	return t.succeeded >= *t.job.Spec.Completions
}

// markSuspension brings the Suspended condition and the start time up to date with
// the spec.
func (t *turn) markSuspension() {
	st := &t.job.Status
	if suspended(t.job) {
		if setCondition(t.job, newCondition(batchv1.JobSuspended, corev1.ConditionTrue, "JobSuspended", "Job suspended", t.now)) {
			t.suspendChanged = true
			st.StartTime = nil
			t.note(corev1.EventTypeNormal, "Suspended", "Job suspended")
		}
		return
	}
	if setCondition(t.job, newCondition(batchv1.JobSuspended, corev1.ConditionFalse, "JobResumed", "Job resumed", t.now)) {
		t.suspendChanged = true
		st.StartTime = new(metav1.NewTime(t.now))
		t.note(corev1.EventTypeNormal, "Resumed", "Job resumed")
		if left, running := t.untilDeadline(); running {
			t.wake = 0
			t.wakeIn(max(left, batchPeriod))
		}
	}
}

func (t *turn) note(kind, reason, message string) {
	t.events = append(t.events, event{kind, reason, message})
}

func setOf(uids []types.UID) map[types.UID]bool {
	m := make(map[types.UID]bool, len(uids))
	for _, u := range uids {
		m[u] = true
	}
	return m
}

func count[T any](s []T) int32 { return int32(len(s)) } //nolint:gosec // pods of one Job
