package job_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/controllers/job"
)

const (
	completed   = "SuccessCriteriaMet(CompletionsReached) Complete(CompletionsReached)"
	giveUp      = "FailureTarget(BackoffLimitExceeded)"
	gaveUp      = giveUp + " Failed(BackoffLimitExceeded)"
	tooLate     = "FailureTarget(DeadlineExceeded)"
	tooLateDone = tooLate + " Failed(DeadlineExceeded)"
)

const unknownMode batchv1.CompletionMode = "Odd"

// The non-indexed rows of TestControllerSyncJob, with the
// 1.36 defaults: terminating is always reported, terminal conditions follow their
// interim ones and wait until nothing terminates.
func TestControllerSyncJob(t *testing.T) {
	t.Parallel()
	failedOnly := func(j *batchv1.Job) { j.Spec.PodReplacementPolicy = new(batchv1.Failed) }
	either := func(j *batchv1.Job) { j.Spec.PodReplacementPolicy = new(batchv1.TerminatingOrFailed) }
	deleting := func(j *batchv1.Job) { j.DeletionTimestamp = new(metav1.NewTime(epoch)) }
	suspend := func(j *batchv1.Job) { j.Spec.Suspend = new(true) }
	wasSuspended := func(j *batchv1.Job) {
		j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobSuspended, Status: corev1.ConditionTrue, Reason: "JobSuspended", Message: "Job suspended"}}
	}
	condFalse := func(c batchv1.JobConditionType) func(*batchv1.Job) {
		return func(j *batchv1.Job) {
			j.Status.Conditions = []batchv1.JobCondition{{Type: c, Status: corev1.ConditionFalse}}
		}
	}
	refused := fmt.Errorf("fake error: %w", kube.ErrRefused)
	tests := []struct {
		name       string
		p, c, l    int32
		job        []func(*batchv1.Job)
		pending    int
		active     int // running
		ready      int // of those
		ok, bad    int
		terming    int
		limit      int   // creations the writer takes
		err        error // of every pod write
		failures   int   // of a record whose last failure is now
		unseen     bool  // an expected deletion has not been seen
		create     int   // creations that happened
		calls      int   // creations tried, when not the same
		remove     int   // deletions that happened
		want       string
		conditions string
		patches    int
		wantErr    bool
	}{
		{name: "job start", p: 2, c: 5, l: 6, create: 2, want: "a2 r0 s0 f0 t0"},
		{name: "work queue job start", p: 2, c: -1, l: 6, create: 2, want: "a2 r0 s0 f0 t0"},
		{name: "pending pods", p: 2, c: 5, l: 6, pending: 2, want: "a2 r0 s0 f0 t0"},
		{name: "correct number of pods", p: 3, c: 5, l: 6, active: 3, ready: 2, want: "a3 r2 s0 f0 t0"},
		{name: "work queue job: correct number of pods", p: 2, c: -1, l: 6, active: 2, want: "a2 r0 s0 f0 t0"},
		{name: "too few active", p: 2, c: 5, l: 6, active: 1, ok: 1, create: 1, want: "a2 r0 s1 f0 t0", patches: 1},
		{name: "too few active, dynamic job", p: 2, c: -1, l: 6, active: 1, create: 1, want: "a2 r0 s0 f0 t0"},
		{
			name: "replacement Failed waits for the terminating pod", p: 1, c: -1, l: 6, job: []func(*batchv1.Job){failedOnly},
			active: 1, bad: 1, terming: 1, want: "a1 r0 s0 f1 t1", patches: 1,
		},
		{
			name: "no policy replaces a terminating pod", p: 1, c: 1, l: 6,
			active: 1, bad: 1, terming: 1, want: "a1 r0 s0 f2 t1", patches: 2,
		},
		{
			name: "TerminatingOrFailed replaces a terminating pod", p: 1, c: -1, l: 6, job: []func(*batchv1.Job){either},
			active: 1, bad: 1, terming: 1, want: "a1 r0 s0 f2 t1", patches: 2,
		},
		{
			name: "more terminating than parallelism", p: 1, c: 1, l: 6, job: []func(*batchv1.Job){failedOnly},
			active: 2, terming: 4, remove: 1, want: "a1 r0 s0 f0 t5", patches: 1,
		},
		{name: "active back-off", p: 1, c: 1, l: 6, failures: 1, want: "a0 r0 s0 f0 t0"},
		{name: "active back-off, a pod running", p: 2, c: 2, l: 6, failures: 1, active: 1, ready: 1, want: "a1 r1 s0 f0 t0"},
		{name: "back-off record without failures", p: 1, c: 1, l: 6, create: 1, want: "a1 r0 s0 f0 t0"},
		{
			name: "create error", p: 2, c: 5, l: 6, err: refused, active: 1, ok: 1, calls: 1,
			want: "a1 r0 s0 f0 t0", patches: 1, wantErr: true,
		},
		{name: "too many active", p: 2, c: 5, l: 6, active: 3, remove: 1, want: "a2 r0 s0 f0 t1", patches: 1},
		{name: "too many active, delete error", p: 2, c: 5, l: 6, err: refused, active: 3, want: "a3 r0 s0 f0 t0", patches: 1, wantErr: true},
		{name: "ready after removal", p: 2, c: 5, l: 6, active: 3, ready: 3, remove: 1, want: "a2 r2 s0 f0 t1", patches: 1},
		{name: "a success resets the back-off", p: 2, c: 5, l: 6, active: 1, ok: 1, bad: 1, create: 1, want: "a2 r0 s1 f1 t0", patches: 2},
		{name: "new failed pod", p: 2, c: 5, l: 6, active: 1, bad: 1, create: 1, want: "a2 r0 s0 f1 t0", patches: 1},
		{
			name: "new failed pod, writer fails", p: 2, c: 5, l: 6, err: refused, active: 1, bad: 1, calls: 1,
			want: "a1 r0 s0 f0 t0", patches: 1, wantErr: true,
		},
		{
			name: "finalizer echo", p: 1, c: 1, l: 6, active: 1, want: "a1 r0 s0 f1 t0",
			job: []func(*batchv1.Job){func(j *batchv1.Job) { j.Status.Active, j.Status.Failed = 1, 1 }},
		},
		{name: "job finish", p: 2, c: 5, l: 6, ok: 5, want: "a0 r0 s5 f0 t0", conditions: completed, patches: 5},
		{name: "work queue job finishing", p: 2, c: -1, l: 6, active: 1, ok: 1, want: "a1 r0 s1 f0 t0", patches: 1},
		{name: "work queue job all finished", p: 2, c: -1, l: 6, ok: 2, want: "a0 r0 s2 f0 t0", conditions: completed, patches: 2},
		{name: "work queue job finished despite one failure", p: 2, c: -1, l: 6, ok: 1, bad: 1, want: "a0 r0 s1 f1 t0", conditions: completed, patches: 2},
		{name: "more active than parallelism", p: 2, c: 5, l: 6, active: 10, remove: 8, want: "a2 r0 s0 f0 t8", patches: 8},
		{name: "more active than remaining", p: 3, c: 4, l: 6, active: 3, ok: 2, remove: 1, want: "a2 r0 s2 f0 t1", patches: 3},
		{name: "status change", p: 2, c: 5, l: 6, active: 2, ok: 2, want: "a2 r0 s2 f0 t0", patches: 2},
		{name: "deleting job", p: 2, c: 5, l: 6, job: []func(*batchv1.Job){deleting}, pending: 1, active: 1, ok: 1, want: "a2 r0 s1 f0 t0", patches: 3},
		{name: "limited pods", p: 100, c: 200, l: 6, limit: 10, create: 10, calls: 15, want: "a10 r0 s0 f0 t0", wantErr: true},
		{name: "too many failures", p: 2, c: 5, job: []func(*batchv1.Job){deleting}, bad: 1, want: "a0 r0 s0 f1 t0", conditions: gaveUp, patches: 1},
		{
			name: "too many failures, expectation outstanding", p: 2, c: 5, job: []func(*batchv1.Job){deleting}, bad: 1, unseen: true,
			active: 1, remove: 1, want: "a0 r0 s0 f1 t1", patches: 2,
		},
		{
			name: "fails with ready active pods", p: 2, c: 3, active: 2, ready: 2, bad: 1, remove: 2,
			want: "a0 r0 s0 f3 t2", conditions: giveUp, patches: 3,
		},
		{
			name: "suspend", p: 2, c: 4, l: 6, job: []func(*batchv1.Job){suspend}, active: 2, ready: 2, remove: 2,
			want: "a0 r0 s0 f0 t2", conditions: "Suspended(JobSuspended)", patches: 2,
		},
		{
			name: "suspend, expectations unsatisfied", p: 2, c: 4, l: 6, job: []func(*batchv1.Job){suspend}, active: 3, unseen: true,
			want: "a3 r0 s0 f0 t0",
		},
		{
			name: "resume", p: 2, c: 4, l: 6, job: []func(*batchv1.Job){wasSuspended}, create: 2,
			want: "a2 r0 s0 f0 t0", conditions: "!Suspended(JobResumed)",
		},
		{
			name: "suspended and deleting", p: 2, c: 4, l: 6, job: []func(*batchv1.Job){suspend, deleting}, active: 2,
			want: "a2 r0 s0 f0 t0", patches: 2,
		},
		{
			name: "FailureTarget=False set by hand", p: 1, c: 1, l: 6, job: []func(*batchv1.Job){condFalse(batchv1.JobFailureTarget)},
			active: 1, ready: 1, want: "a1 r1 s0 f0 t0", conditions: "!FailureTarget",
		},
		{
			name: "SuccessCriteriaMet=False set by hand", p: 1, c: 1, l: 6, job: []func(*batchv1.Job){condFalse(batchv1.JobSuccessCriteriaMet)},
			active: 1, ready: 1, want: "a1 r1 s0 f0 t0", conditions: "!SuccessCriteriaMet",
		},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			j := newJob(b.w, tc.p, tc.c, tc.l)
			for _, f := range tc.job {
				f(j)
			}
			b.w.putJob(j)
			b.w.addPods(j, tc.pending, inPhase(corev1.PodPending))
			for i := range tc.active {
				opts := []podOption{inPhase(corev1.PodRunning)}
				if i < tc.ready {
					opts = append(opts, isReady)
				}
				b.w.addPod(j, opts...)
			}
			b.w.addPods(j, tc.ok, inPhase(corev1.PodSucceeded))
			b.w.addPods(j, tc.bad, inPhase(corev1.PodFailed))
			b.w.addPods(j, tc.terming, inPhase(corev1.PodRunning), isDeleting)
			b.lease.state = fmt.Appendf(nil, `{"u":%q,"k":%d,"l":%d}`, j.UID, tc.failures, epoch.UnixNano())
			if tc.unseen {
				for _, p := range b.w.pods {
					if p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning {
						b.lease.expected = job.Expected{Owner: string(j.UID), Deletions: []string{string(p.UID)}}
					}
				}
			}
			podWrites := 0
			b.w.fault = func(op, _ string) fault {
				switch op {
				case "create":
					podWrites++
					if tc.limit > 0 && podWrites > tc.limit {
						return fault{before: refused}
					}
					return fault{before: tc.err}
				case "patch", "delete":
					return fault{before: tc.err}
				}
				return fault{}
			}
			before := len(b.w.pods)

			res := b.sync("default/work")

			if (res.Err != nil) != tc.wantErr {
				t.Errorf("sync error = %v, want one: %v", res.Err, tc.wantErr)
			}
			if wantSettle := res.Settle == job.RateLimited; wantSettle != tc.wantErr {
				t.Errorf("settled as %v", res.Settle)
			}
			if got := len(b.w.born); got != tc.create {
				t.Errorf("%d creations, want %d", got, tc.create)
			}
			if got, want := b.w.calls["create"], max(tc.calls, tc.create); got != want {
				t.Errorf("%d create calls, want %d", got, want)
			}
			if got := b.w.calls["delete"]; tc.err == nil && got != tc.remove {
				t.Errorf("%d deletions of %d pods, want %d", got, before, tc.remove)
			}
			st := b.status("work")
			if got := show(st); got != tc.want {
				t.Errorf("status %s, want %s", got, tc.want)
			}
			if got := summary(st); got != tc.conditions {
				t.Errorf("conditions %q, want %q", got, tc.conditions)
			}
			if got := b.w.calls["patch"]; got != tc.patches {
				t.Errorf("%d pod patches, want %d", got, tc.patches)
			}
			isSuspended := j.Spec.Suspend != nil && *j.Spec.Suspend
			if (st.StartTime == nil) != isSuspended {
				t.Errorf("startTime %v of a Job with suspend=%v", st.StartTime, isSuspended)
			}
			if tc.failures > 0 && (res.Settle != job.After || res.After != 10*time.Second) {
				t.Errorf("settled %v after %v, want after 10s", res.Settle, res.After)
			}
			for _, p := range b.w.born {
				pod := b.w.pods[p.name]
				if len(pod.Finalizers) != 1 || !strings.HasPrefix(p.name, "work-") || pod.OwnerReferences[0].UID != j.UID || !*pod.OwnerReferences[0].Controller {
					t.Errorf("created pod %+v", pod.ObjectMeta)
				}
			}
		})
	}
}

// TestSyncJobPastDeadline rows: deadline 10, started 15 s ago unless said.
func TestSyncJobPastDeadline(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name          string
		p, c, l       int32
		deadline      int64
		started       time.Duration
		active, ok    int
		bad           int
		suspend       bool
		want, conds   string
		afterTerminal string // conditions once nothing terminates
	}{
		{name: "one active", p: 1, c: 1, l: 6, deadline: 10, started: 15 * time.Second, active: 1, want: "a0 r0 s0 f1 t1", conds: tooLate, afterTerminal: tooLateDone},
		{name: "one active, one succeeded", p: 1, c: 2, l: 6, deadline: 10, started: 15 * time.Second, active: 1, ok: 1, want: "a0 r0 s1 f1 t1", conds: tooLate, afterTerminal: tooLateDone},
		{name: "exactly at the deadline, no pods", p: 1, c: 1, l: 6, deadline: 10, started: 10 * time.Second, want: "a0 r0 s0 f0 t0", conds: tooLateDone},
		{name: "the back-off limit wins", p: 1, c: 1, l: 0, deadline: 1, started: 10 * time.Second, bad: 1, want: "a0 r0 s0 f1 t0", conds: gaveUp},
		{name: "not while suspended", p: 1, c: 2, l: 6, deadline: 10, started: 15 * time.Second, suspend: true, want: "a0 r0 s0 f0 t0", conds: "Suspended(JobSuspended)"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			j := newJob(b.w, tc.p, tc.c, tc.l)
			j.Spec.ActiveDeadlineSeconds, j.Spec.Suspend = new(tc.deadline), new(tc.suspend)
			j.Status.StartTime = new(metav1.NewTime(epoch.Add(-tc.started)))
			b.w.putJob(j)
			b.w.addPods(j, tc.active, inPhase(corev1.PodRunning))
			b.w.addPods(j, tc.ok, inPhase(corev1.PodSucceeded))
			b.w.addPods(j, tc.bad, inPhase(corev1.PodFailed))
			if res := b.sync("default/work"); res.Err != nil {
				t.Fatal(res.Err)
			}
			st := b.status("work")
			if got := show(st); got != tc.want {
				t.Errorf("status %s, want %s", got, tc.want)
			}
			if got := summary(st); got != tc.conds {
				t.Errorf("conditions %q, want %q", got, tc.conds)
			}
			if tc.afterTerminal == "" {
				return
			}
			b.w.kubelet()
			if res := b.sync("default/work"); res.Err != nil {
				t.Fatal(res.Err)
			}
			if got := summary(b.status("work")); got != tc.afterTerminal {
				t.Errorf("conditions %q once nothing terminates, want %q", got, tc.afterTerminal)
			}
		})
	}
}

// kubelet lets every pod that is being deleted go.
func (w *world) kubelet() {
	for _, p := range w.pods {
		if p.DeletionTimestamp != nil {
			p = p.DeepCopy()
			if p.Status.Phase == corev1.PodRunning || p.Status.Phase == corev1.PodPending {
				p.Status.Phase = corev1.PodFailed
			}
			w.putPod(p, true)
		}
	}
}

func TestDeadline(t *testing.T) {
	t.Parallel()
	t.Run("TestPastDeadlineJobFinished: armed on every sync and never early", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		j := newJob(b.w, 1, 1, 6)
		j.Spec.ActiveDeadlineSeconds = new(int64(100))
		b.w.putJob(j)
		if res := b.sync("default/work"); res.Settle != job.After || res.After != 100*time.Second {
			t.Fatalf("settled %v after %v, want after 100s", res.Settle, res.After)
		}
		b.now = b.now.Add(99 * time.Second)
		if res := b.sync("default/work"); res.Settle != job.After || res.After != time.Second {
			t.Fatalf("settled %v after %v, want after 1s", res.Settle, res.After)
		}
		if got := summary(b.status("work")); got != "" {
			t.Fatalf("conditions %q before the deadline", got)
		}
		b.now = b.now.Add(time.Second)
		b.sync("default/work")
		if got := summary(b.status("work")); !strings.HasPrefix(got, tooLate) {
			t.Fatalf("conditions %q at the deadline", got)
		}
	})
	t.Run("TestSingleJobFailedCondition: a Failed=False from before is flipped, not doubled", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		j := newJob(b.w, 1, 1, 6)
		j.Spec.ActiveDeadlineSeconds = new(int64(10))
		j.Status.StartTime = new(metav1.NewTime(epoch.Add(-15 * time.Second)))
		j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionFalse}}
		b.w.putJob(j)
		b.sync("default/work")
		if got, want := summary(b.status("work")), "Failed(DeadlineExceeded) FailureTarget(DeadlineExceeded)"; got != want {
			t.Fatalf("conditions %q, want %q", got, want)
		}
	})
	t.Run("resuming starts the time again", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		j := newJob(b.w, 1, 1, 6)
		j.Spec.ActiveDeadlineSeconds, j.Spec.Suspend = new(int64(10)), new(true)
		b.w.putJob(j)
		if res := b.sync("default/work"); res.Settle != job.Forget {
			t.Fatalf("a suspended Job settled as %v", res.Settle)
		}
		b.now = b.now.Add(time.Hour)
		j = b.w.jobs["work"].DeepCopy()
		j.Spec.Suspend = new(false)
		b.w.putJob(j)
		if res := b.sync("default/work"); res.Settle != job.After || res.After != 10*time.Second {
			t.Fatalf("settled %v after %v, want after 10s", res.Settle, res.After)
		}
		if got := strings.Join(b.rec.events, "; "); !strings.Contains(got, "Normal Suspended Job suspended") || !strings.Contains(got, "Normal Resumed Job resumed") {
			t.Errorf("events %q", got)
		}
	})
}

// TestJobBackoffForOnFailure rows: restart counts and what they lead to.
func TestJobBackoffForOnFailure(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		limit    int32
		restarts []int32
		phase    corev1.PodPhase
		suspend  bool
		c        int32
		want     string
		conds    string
	}{
		{"limit 0, no restart", 0, []int32{0}, corev1.PodRunning, false, 1, "a1 r0 s0 f0 t0", ""},
		{"limit 1, no restart", 1, []int32{0}, corev1.PodRunning, false, 1, "a1 r0 s0 f0 t0", ""},
		{"limit 1, one restart", 1, []int32{1}, corev1.PodRunning, false, 1, "a0 r0 s0 f1 t1", giveUp},
		{"limit 1, one restart, pending", 1, []int32{1}, corev1.PodPending, false, 1, "a0 r0 s0 f1 t1", giveUp},
		{"limit 0, one restart", 0, []int32{1}, corev1.PodRunning, false, 1, "a0 r0 s0 f1 t1", giveUp},
		{"limit 2, two restarts", 2, []int32{2}, corev1.PodRunning, false, 1, "a0 r0 s0 f1 t1", giveUp},
		{"limit 2, two restarts, pending", 2, []int32{2}, corev1.PodPending, false, 5, "a0 r0 s0 f1 t1", giveUp},
		{"limit 2, restarts of two pods, pending", 2, []int32{1, 1}, corev1.PodPending, false, 5, "a0 r0 s0 f2 t2", giveUp},
		{"limit 2, restarts of two pods", 2, []int32{1, 1}, corev1.PodRunning, false, 2, "a0 r0 s0 f2 t2", giveUp},
		{"limit 3, restarts of two pods", 3, []int32{1, 1}, corev1.PodRunning, false, 2, "a2 r0 s0 f0 t0", ""},
		{"suspended", 3, []int32{1, 1}, corev1.PodRunning, true, 2, "a0 r0 s0 f0 t2", "Suspended(JobSuspended)"},
		{"finished although suspended", 5, []int32{1, 1, 2, 0}, corev1.PodSucceeded, true, 4, "a0 r0 s4 f0 t0", completed},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			j := newJob(b.w, int32(len(tc.restarts)), tc.c, tc.limit)
			j.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
			j.Spec.Suspend = new(tc.suspend)
			b.w.putJob(j)
			for _, n := range tc.restarts {
				b.w.addPod(j, restarted(n), func(p *corev1.Pod) { p.Status.Phase = tc.phase })
			}
			if res := b.sync("default/work"); res.Err != nil {
				t.Fatal(res.Err)
			}
			if got := show(b.status("work")); got != tc.want {
				t.Errorf("status %s, want %s", got, tc.want)
			}
			if got := summary(b.status("work")); got != tc.conds {
				t.Errorf("conditions %q, want %q", got, tc.conds)
			}
		})
	}
}

// TestJobBackoffOnRestartPolicyNever rows.
func TestJobBackoffOnRestartPolicyNever(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name        string
		p, l        int32
		active, bad int
		want, conds string
	}{
		{"limit 0, nothing failed", 1, 0, 1, 0, "a1 r0 s0 f0 t0", ""},
		{"limit 1, one failed", 1, 1, 0, 1, "a1 r0 s0 f1 t0", ""},
		{"limit 1, two failed", 1, 1, 0, 2, "a0 r0 s0 f2 t0", gaveUp},
		{"limit 6, six failed", 2, 6, 1, 6, "a2 r0 s0 f6 t0", ""},
		{"limit 6, seven failed", 2, 6, 0, 7, "a0 r0 s0 f7 t0", gaveUp},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			j := newJob(b.w, tc.p, 10, tc.l)
			b.w.putJob(j)
			b.w.addPods(j, tc.active, inPhase(corev1.PodRunning))
			b.w.addPods(j, tc.bad, inPhase(corev1.PodFailed))
			if res := b.sync("default/work"); res.Err != nil {
				t.Fatal(res.Err)
			}
			if got := show(b.status("work")); got != tc.want {
				t.Errorf("status %s, want %s", got, tc.want)
			}
			if got := summary(b.status("work")); got != tc.conds {
				t.Errorf("conditions %q, want %q", got, tc.conds)
			}
		})
	}
}

func TestWhatCannotBeSynced(t *testing.T) {
	t.Parallel()
	t.Run("a malformed key is set aside", func(t *testing.T) {
		t.Parallel()
		for _, key := range []string{"", "work", "a/b/c", "/work"} {
			if res := newBench(t).sync(key); res.Settle != job.Dead || res.Err == nil {
				t.Errorf("key %q settled as %v, %v", key, res.Settle, res.Err)
			}
		}
	})
	t.Run("a Job managed by somebody else is left alone", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		j := newJob(b.w, 1, 1, 6)
		j.Spec.ManagedBy = new("acme.io/controller")
		b.w.putJob(j)
		if res := b.sync("default/work"); res.Settle != job.Forget || len(b.w.born)+len(b.w.statuses) != 0 {
			t.Errorf("settled as %v, %d pods, %d status writes", res.Settle, len(b.w.born), len(b.w.statuses))
		}
	})
	t.Run("a Job with an unknown completion mode is never half-run, and the user is notified once", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		j := newJob(b.w, 1, 1, 6)
		j.Spec.CompletionMode = new(unknownMode)
		b.w.putJob(j)
		for range 3 {
			if res := b.sync("default/work"); res.Settle != job.Forget {
				t.Fatalf("settled as %v, %v", res.Settle, res.Err)
			}
		}
		if len(b.w.born)+len(b.w.statuses) != 0 || len(b.rec.events) != 1 || !strings.HasPrefix(b.rec.events[0], "Warning UnknownCompletionMode") {
			t.Errorf("%d pods, %d status writes, events %q", len(b.w.born), len(b.w.statuses), b.rec.events)
		}
	})
	t.Run("an indexed Job without completions is an error, not a panic", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		j := newJob(b.w, 1, -1, 6)
		j.Spec.CompletionMode = new(batchv1.IndexedCompletion)
		b.w.putJob(j)
		if res := b.sync("default/work"); res.Settle != job.RateLimited || !strings.Contains(res.Err.Error(), "spec.completions") {
			t.Errorf("settled as %v, %v", res.Settle, res.Err)
		}
	})
	t.Run("TestSyncJobUpdateRequeue: a conflict and any other status error are tried again", func(t *testing.T) {
		t.Parallel()
		for _, fail := range []error{kube.ErrConflict, errors.New("timeout")} {
			b := newBench(t)
			b.w.putJob(newJob(b.w, 2, 2, 6))
			b.w.fault = func(op, _ string) fault {
				if op == "status" {
					return fault{before: fail}
				}
				return fault{}
			}
			if res := b.sync("default/work"); res.Settle != job.RateLimited || !errors.Is(res.Err, fail) {
				t.Errorf("settled as %v, %v", res.Settle, res.Err)
			}
			if !strings.Contains(string(b.lease.state), `"x":true`) {
				t.Errorf("state %s does not make the next sync read live", b.lease.state)
			}
		}
	})
}
