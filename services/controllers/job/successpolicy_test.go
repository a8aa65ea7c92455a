package job_test

import (
	"math"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

const (
	policyMet  = "SuccessCriteriaMet(SuccessPolicy)"
	policyDone = policyMet + " Complete(SuccessPolicy)"
)

// TestSyncJobWithJobSuccessPolicy rows. The policy is one success among the indexes 0 and 1.
func TestSyncJobWithJobSuccessPolicy(t *testing.T) {
	t.Parallel()
	const most = math.MaxInt32
	policy := func(j *batchv1.Job) {
		j.Spec.SuccessPolicy = &batchv1.SuccessPolicy{Rules: []batchv1.SuccessPolicyRule{{SucceededIndexes: new("0,1"), SucceededCount: new(int32(1))}}}
	}
	with := func(more ...func(*batchv1.Job)) func(*batchv1.Job) {
		return func(j *batchv1.Job) {
			policy(j)
			for _, f := range more {
				f(j)
			}
		}
	}
	refusing := func(j *batchv1.Job) {
		j.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{onCondition(failJob, corev1.DisruptionTarget)}}
	}
	is := func(c batchv1.JobConditionType, reason string) func(*batchv1.Job) {
		return func(j *batchv1.Job) {
			j.Status.Conditions = []batchv1.JobCondition{{Type: c, Status: corev1.ConditionTrue, Reason: reason}}
		}
	}
	met := is(batchv1.JobSuccessCriteriaMet, batchv1.JobReasonSuccessPolicy)
	hadOne := func(j *batchv1.Job) { j.Status.Succeeded, j.Status.CompletedIndexes = 1, "1" }
	for _, tc := range []indexedRow{
		{
			name: "job meets successPolicy and some indexes fail", p: 3, c: 3, l: most, job: with(),
			pods: "0:failed 0:running 1:ok 2:running", remove: "pod-1 pod-3",
			want: "a0 r0 s1 f1 t2", indexes: "ok 1", conds: policyMet, patches: 4,
		},
		{
			name: "job meets successPolicy and doesn't meet podFailurePolicy", p: 2, c: 2, l: most, job: with(refusing),
			pods: "0:failed 0:running 1:ok", remove: "pod-1", want: "a0 r0 s1 f1 t1", indexes: "ok 1", conds: policyMet, patches: 3,
		},
		{
			name: "job meets successPolicy and doesn't meet backoffLimitPerIndex", p: 2, c: 2, l: most, job: with(perIndexOf(2)),
			pods: "0:failed 0:running 1:ok", remove: "pod-1", want: "a0 r0 s1 f1 t1", indexes: "ok 1 failed", conds: policyMet, patches: 3,
		},
		{
			name: "both Complete and SuccessCriteriaMet when all pods have been already removed", p: 2, c: 2, l: most, job: with(perIndexOf(2), met),
			pods: "0:failed 1:ok", want: "a0 r0 s1 f1 t0", indexes: "ok 1 failed", conds: policyDone, patches: 2,
		},
		{
			name: "SuccessCriteriaMet when some pods still are running", p: 3, c: 3, l: most, job: with(perIndexOf(3), met),
			pods: "0:failed 1:running 1:ok 2:running", remove: "pod-1 pod-3",
			want: "a0 r0 s1 f1 t2", indexes: "ok 1 failed", conds: policyMet, patches: 4,
		},
		{
			name: "job has a failed condition when it meets both successPolicy and podFailurePolicy", p: 2, c: 2, l: most, job: with(refusing),
			pods: "0:failed:disrupted 1:ok", want: "a0 r0 s1 f1 t0", indexes: "ok 1", conds: refusedDone, patches: 2,
		},
		{
			name: "job has a failed condition when it meets both successPolicy and backoffLimitPerIndex", p: 2, c: 2, l: most, job: with(perIndexOf(1)),
			pods: "0:failed:count=1 1:ok:count=0", want: "a0 r0 s1 f1 t0", indexes: "ok 1 failed 0", conds: indexesFailed, patches: 2,
		},
		{
			name: "job has a failed condition when it meets both successPolicy and backoffLimit", p: 2, c: 2, l: 1, job: with(),
			pods: "0:failed 0:failed 1:ok", want: "a0 r0 s1 f2 t0", indexes: "ok 1", conds: gaveUp, patches: 3,
		},
		{
			name: "SuccessCriteriaMet stays although job meets podFailurePolicy", p: 2, c: 2, l: most, job: with(refusing, met, hadOne),
			pods: "0:failed:disrupted 1:ok", want: "a0 r0 s1 f1 t0", indexes: "ok 1", conds: policyDone, patches: 2,
		},
		{
			name: "SuccessCriteriaMet stays although job meets backoffLimitPerIndex", p: 2, c: 2, l: most, job: with(perIndexOf(1), met, hadOne),
			pods: "0:failed:count=1 1:ok", want: "a0 r0 s1 f1 t0", indexes: "ok 1 failed 0", conds: policyDone, patches: 2,
		},
		{
			name: "SuccessCriteriaMet stays although job meets backoffLimit", p: 2, c: 2, l: 0, job: with(met, hadOne),
			pods: "0:failed 1:ok", want: "a0 r0 s1 f1 t0", indexes: "ok 1", conds: policyDone, patches: 2,
		},
		{
			name: "FailureTarget stays although job meets successPolicy", p: 2, c: 2, l: most,
			job:  with(refusing, is(batchv1.JobFailureTarget, batchv1.JobReasonPodFailurePolicy), func(j *batchv1.Job) { j.Status.Failed = 1 }),
			pods: "0:failed:disrupted:untracked 1:ok", want: "a0 r0 s1 f1 t0", indexes: "ok 1", conds: refusedDone, patches: 1,
		},
		{
			name: "job without successPolicy has reason CompletionsReached", p: 1, c: 1, l: most,
			pods: "0:ok", want: "a0 r0 s1 f0 t0", indexes: "ok 0", conds: completed, patches: 1,
		},
		{
			name: "job does not meet its successPolicy yet", p: 3, c: 3, l: most, job: with(),
			pods: "0:running 1:running 2:ok", want: "a2 r0 s1 f0 t0", indexes: "ok 2", patches: 1,
		},
		{
			name: "suspended, met all the same", p: 3, c: 3, l: most, job: with(func(j *batchv1.Job) { j.Spec.Suspend = new(true) }),
			pods: "0:running 1:ok", remove: "pod-0", want: "a0 r0 s1 f0 t1", indexes: "ok 1", conds: policyMet, patches: 2,
		},
	} {
		t.Run(tc.name, tc.run)
	}
}

// A Job whose policy is met ends when its other pods have; they count as nothing.
func TestAJobThatItsSuccessPolicyEnds(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	j := newIndexedJob(b.w, 3, 3, 6)
	j.Spec.SuccessPolicy = &batchv1.SuccessPolicy{Rules: []batchv1.SuccessPolicyRule{{SucceededCount: new(int32(1))}}}
	b.w.putJob(j)
	b.w.addIndexed(t, j, "0:running 1:ok 2:running")
	for i, want := range []string{policyMet, policyMet, policyDone} {
		if res := b.sync("default/work"); res.Err != nil {
			t.Fatal(res.Err)
		}
		if got := summary(b.status("work")); got != want {
			t.Errorf("after sync %d %s, want %s", i, got, want)
		}
		if i == 1 {
			b.w.kubelet()
		}
	}
	st := b.status("work")
	if show(st) != "a0 r0 s1 f0 t0" || showIndexes(st) != "ok 1" || st.CompletionTime == nil {
		t.Errorf("in the end %s, %s, completed %v", show(st), showIndexes(st), st.CompletionTime)
	}
	for _, c := range st.Conditions {
		if c.Message != "Matched rules at index 0" {
			t.Errorf("message of %s %q", c.Type, c.Message)
		}
	}
	if got := strings.Join(b.rec.events, "; "); !strings.Contains(got, "Normal Completed Job completed") {
		t.Errorf("events %q", got)
	}
}
