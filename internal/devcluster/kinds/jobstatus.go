package kinds

import (
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// jobChange compares two versions of a Job's status. A rule is applied only when a
// field it speaks of changed, so that an old fault does not block every write.
type jobChange struct {
	job, old *batchv1.Job
	path     *field.Path
	errs     field.ErrorList
}

// validateJobStatusUpdate refuses the status transitions that the real API refuses.
func validateJobStatusUpdate(j, old *batchv1.Job) field.ErrorList {
	c := &jobChange{job: j, old: old, path: field.NewPath("status")}
	c.counts()
	c.uncounted()
	c.conditions()
	c.finished()
	c.times()
	c.indexes()
	c.transitions()
	return c.errs
}

func (c *jobChange) invalid(name string, value any, detail string) {
	c.errs = append(c.errs, field.Invalid(c.path.Child(name), value, detail))
}

// flipped reports whether a condition differs between the versions.
func (c *jobChange) flipped(kind batchv1.JobConditionType) bool {
	return jobCondition(c.job, kind) != jobCondition(c.old, kind)
}

func (c *jobChange) is(kind batchv1.JobConditionType) bool  { return jobCondition(c.job, kind) }
func (c *jobChange) was(kind batchv1.JobConditionType) bool { return jobCondition(c.old, kind) }

func jobFinished(j *batchv1.Job) bool {
	return jobCondition(j, batchv1.JobComplete) || jobCondition(j, batchv1.JobFailed)
}

func (c *jobChange) counts() {
	s, was := &c.job.Status, &c.old.Status
	for _, n := range []struct {
		name  string
		value int32
	}{
		{"active", s.Active}, {"succeeded", s.Succeeded}, {"failed", s.Failed}, {"ready", deref(s.Ready)}, {"terminating", deref(s.Terminating)},
	} {
		c.errs = append(c.errs, validation.ValidateNonnegativeField(int64(n.value), c.path.Child(n.name))...)
	}
	if deref(s.Ready) > s.Active && (s.Active != was.Active || deref(s.Ready) != deref(was.Ready)) {
		c.invalid("ready", *s.Ready, "cannot set more ready pods than active")
	}
	if s.Failed < was.Failed {
		c.invalid("failed", s.Failed, "cannot decrease the failed counter")
	}
	// Elastic Indexed Jobs may shrink, which forgets successes beyond the new range.
	indexed := deref(c.job.Spec.CompletionMode) == batchv1.IndexedCompletion
	if s.Succeeded < was.Succeeded && !(indexed && equality.Semantic.DeepEqual(c.job.Spec.Completions, c.job.Spec.Parallelism)) {
		c.invalid("succeeded", s.Succeeded, "cannot decrease the succeeded counter")
	}
}

func (c *jobChange) uncounted() {
	u := c.job.Status.UncountedTerminatedPods
	if u == nil {
		return
	}
	seen := map[types.UID]bool{}
	for _, l := range []struct {
		name string
		uids []types.UID
	}{{"succeeded", u.Succeeded}, {"failed", u.Failed}} {
		for i, uid := range l.uids {
			path := c.path.Child("uncountedTerminatedPods", l.name).Index(i)
			switch {
			case uid == "":
				c.errs = append(c.errs, field.Invalid(path, uid, "must not be empty"))
			case seen[uid]:
				c.errs = append(c.errs, field.Duplicate(path, uid))
			}
			seen[uid] = true
		}
	}
}

func (c *jobChange) conditions() {
	bad := func(detail string) { c.invalid("conditions", field.OmitValueType{}, detail) }
	complete, failed := c.is(batchv1.JobComplete), c.is(batchv1.JobFailed)
	target, met := c.is(batchv1.JobFailureTarget), c.is(batchv1.JobSuccessCriteriaMet)
	if complete && failed && (c.flipped(batchv1.JobComplete) || c.flipped(batchv1.JobFailed)) {
		bad("cannot set Complete=True and Failed=true conditions")
	}
	if complete && target && (c.flipped(batchv1.JobComplete) || c.flipped(batchv1.JobFailureTarget)) {
		bad("cannot set Complete=True and FailureTarget=true conditions")
	}
	if failed && !target && c.flipped(batchv1.JobFailed) {
		bad("cannot set Failed=True condition without the FailureTarget=true condition")
	}
	if complete && !met && (c.flipped(batchv1.JobComplete) || c.flipped(batchv1.JobSuccessCriteriaMet)) {
		bad("cannot set Complete=True condition without the SuccessCriteriaMet=true condition")
	}
	if met && failed {
		bad("cannot set SuccessCriteriaMet=True and Failed=true conditions")
	}
	if met && target {
		bad("cannot set SuccessCriteriaMet=True and FailureTarget=true conditions")
	}
}

// finished checks that a finished Job has nothing left to run or count.
func (c *jobChange) finished() {
	if !jobFinished(c.job) {
		return
	}
	s, was := &c.job.Status, &c.old.Status
	now := jobFinished(c.old) != jobFinished(c.job)
	if s.Active > 0 && (now || s.Active != was.Active) {
		c.invalid("active", s.Active, "active>0 is invalid for finished job")
	}
	if deref(s.Terminating) > 0 && (now || deref(s.Terminating) != deref(was.Terminating)) {
		c.invalid("terminating", *s.Terminating, "terminating>0 is invalid for finished job")
	}
	if u := s.UncountedTerminatedPods; u != nil && len(u.Succeeded)+len(u.Failed) > 0 &&
		(now || !equality.Semantic.DeepEqual(u, was.UncountedTerminatedPods)) {
		c.invalid("uncountedTerminatedPods", u, "must be empty for finished job")
	}
	emptySuspended := deref(c.job.Spec.Suspend) && c.job.Spec.Completions != nil && *c.job.Spec.Completions == 0
	if s.StartTime == nil && (now || was.StartTime != nil) && !emptySuspended {
		c.errs = append(c.errs, field.Required(c.path.Child("startTime"), "startTime is required for finished job"))
	}
}

func (c *jobChange) times() {
	s, was := &c.job.Status, &c.old.Status
	startMoved, endMoved := !sameTime(s.StartTime, was.StartTime), !sameTime(s.CompletionTime, was.CompletionTime)
	complete := c.is(batchv1.JobComplete)
	if endMoved || c.flipped(batchv1.JobComplete) {
		if s.CompletionTime != nil && !complete {
			c.invalid("completionTime", s.CompletionTime, "cannot set completionTime when there is no Complete=True condition")
		}
		if s.CompletionTime == nil && complete {
			c.errs = append(c.errs, field.Required(c.path.Child("completionTime"), "completionTime is required for Complete jobs"))
		}
	}
	if (startMoved || endMoved) && s.StartTime != nil && s.CompletionTime != nil && s.CompletionTime.Before(s.StartTime) {
		c.invalid("completionTime", s.CompletionTime, "must be equal to or after `startTime`")
	}
	if endMoved && s.CompletionTime != nil && was.CompletionTime != nil {
		c.invalid("completionTime", s.CompletionTime, "field is immutable")
	}
	resuming := c.was(batchv1.JobSuspended) && !c.is(batchv1.JobSuspended)
	if startMoved && was.StartTime != nil && !resuming && !deref(c.job.Spec.Suspend) {
		c.invalid("startTime", s.StartTime, "field is immutable for unsuspended job once set")
	}
}

func (c *jobChange) indexes() {
	s, was := &c.job.Status, &c.old.Status
	if s.CompletedIndexes != was.CompletedIndexes && s.CompletedIndexes != "" && deref(c.job.Spec.CompletionMode) != batchv1.IndexedCompletion {
		c.invalid("completedIndexes", s.CompletedIndexes, "cannot set non-empty completedIndexes when non-indexed completion mode")
	}
	if s.FailedIndexes != nil && c.job.Spec.BackoffLimitPerIndex == nil && !equality.Semantic.DeepEqual(s.FailedIndexes, was.FailedIndexes) {
		c.invalid("failedIndexes", *s.FailedIndexes, "cannot set non-null failedIndexes when backoffLimitPerIndex is null")
	}
}

// transitions keeps terminal conditions terminal.
func (c *jobChange) transitions() {
	for _, kind := range []batchv1.JobConditionType{batchv1.JobFailed, batchv1.JobComplete, batchv1.JobFailureTarget} {
		if c.was(kind) && !c.is(kind) {
			c.invalid("conditions", field.OmitValueType{}, fmt.Sprintf("cannot disable the terminal %s=True condition", kind))
		}
	}
	if c.was(batchv1.JobSuccessCriteriaMet) && !c.is(batchv1.JobSuccessCriteriaMet) {
		c.invalid("conditions", field.OmitValueType{}, "cannot disable the SuccessCriteriaMet=True condition")
	}
}

func sameTime(a, b *metav1.Time) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Equal(b)
}

func deref[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}
