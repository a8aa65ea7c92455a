package job_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/services/controllers/job"
)

func uid(u string) podOption {
	return func(p *corev1.Pod) { p.UID, p.Name = types.UID(u), "pod-"+u }
}

// write is what one status write said about the counters.
type write struct {
	OK, Bad      []types.UID
	Succ, Fail   int32
	Conditions   string
	HasCompleted bool
}

func writes(w *world) []write {
	var out []write
	for _, st := range w.statuses {
		out = append(out, write{
			OK: st.UncountedTerminatedPods.Succeeded, Bad: st.UncountedTerminatedPods.Failed,
			Succ: st.Succeeded, Fail: st.Failed, Conditions: summary(st), HasCompleted: st.CompletionTime != nil,
		})
	}
	return out
}

// The non-indexed rows of TestTrackJobStatusAndRemoveFinalizers: the sequence
// of status writes and the finalizers removed.
func TestTrackJobStatusAndRemoveFinalizers(t *testing.T) {
	t.Parallel()
	failing := func(j *batchv1.Job) {
		j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailureTarget, Status: corev1.ConditionTrue, Reason: "X"}}
	}
	succeeding := func(j *batchv1.Job) {
		j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobSuccessCriteriaMet, Status: corev1.ConditionTrue, Reason: "X"}}
	}
	uncounted := func(ok, bad string, succ, fail int32) func(*batchv1.Job) {
		return func(j *batchv1.Job) {
			split := func(s string) (out []types.UID) {
				for u := range strings.FieldsSeq(s) {
					out = append(out, types.UID(u))
				}
				return out
			}
			j.Status.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{Succeeded: split(ok), Failed: split(bad)}
			j.Status.Succeeded, j.Status.Failed = succ, fail
		}
	}
	succ, fail := inPhase(corev1.PodSucceeded), inPhase(corev1.PodFailed)
	pod := func(opts ...podOption) []podOption { return opts }
	unknown := errors.New("mock error")
	tests := []struct {
		name      string
		setup     []func(*batchv1.Job)
		active    int32 // in the status before, so that only what is tracked makes it change
		pods      [][]podOption
		ignored   string // UIDs whose finalizers are expected to be gone
		statusErr error
		patchErr  func(name string) error
		want      []write
		wantPatch int
		wantErr   bool
	}{
		{name: "no updates"},
		{
			name: "track finished pods",
			pods: [][]podOption{
				pod(uid("a"), succ), pod(uid("b"), fail), pod(uid("c"), succ, isDeleting), pod(uid("d"), fail, isDeleting),
				pod(uid("e"), inPhase(corev1.PodPending), isDeleting),
			},
			want: []write{
				{OK: uids("a", "c"), Bad: uids("b", "d", "e")},
				{Succ: 2, Fail: 3},
			},
			wantPatch: 5,
		},
		{
			name:  "past and new finished pods",
			setup: []func(*batchv1.Job){uncounted("a e", "b f", 2, 3)},
			pods: [][]podOption{
				pod(uid("e"), succ, untracked), pod(uid("x"), fail, untracked),
				pod(uid("a"), succ), pod(uid("b"), fail), pod(uid("c"), succ), pod(uid("d"), fail),
			},
			want: []write{
				{OK: uids("a", "c"), Bad: uids("b", "d"), Succ: 3, Fail: 4},
				{Succ: 5, Fail: 6},
			},
			wantPatch: 4,
		},
		{
			name:    "a finalizer known to be gone is not counted again",
			setup:   []func(*batchv1.Job){uncounted("a g", "b h", 2, 3)},
			ignored: "c d g h",
			pods: [][]podOption{
				pod(uid("a"), succ), pod(uid("b"), fail), pod(uid("c"), succ), pod(uid("d"), fail),
				pod(uid("e"), succ), pod(uid("f"), fail), pod(uid("g"), succ), pod(uid("h"), fail),
			},
			want: []write{
				{OK: uids("a", "e"), Bad: uids("b", "f"), Succ: 3, Fail: 4},
				{Succ: 5, Fail: 6},
			},
			wantPatch: 4,
		},
		{
			name:  "succeeding, a pod that has not ended is not counted",
			setup: []func(*batchv1.Job){succeeding},
			pods:  [][]podOption{pod(uid("a"), succ), pod(uid("b"), fail), pod(uid("c"), inPhase(corev1.PodPending))},
			want: []write{
				{OK: uids("a"), Bad: uids("b"), Conditions: "SuccessCriteriaMet(X)"},
				{Succ: 1, Fail: 1, Conditions: "SuccessCriteriaMet(X)"},
			},
			wantPatch: 3,
		},
		{
			name:  "completing",
			setup: []func(*batchv1.Job){succeeding},
			pods:  [][]podOption{pod(uid("a"), succ), pod(uid("b"), fail)},
			want: []write{
				{OK: uids("a"), Bad: uids("b"), Conditions: "SuccessCriteriaMet(X)"},
				{Succ: 1, Fail: 1, Conditions: "SuccessCriteriaMet(X) Complete(X)", HasCompleted: true},
			},
			wantPatch: 2,
		},
		{
			name:  "failing, a running pod counts as failed",
			setup: []func(*batchv1.Job){failing},
			pods:  [][]podOption{pod(uid("a"), succ), pod(uid("b"), fail), pod(uid("c"), inPhase(corev1.PodRunning))},
			want: []write{
				{OK: uids("a"), Bad: uids("b", "c"), Conditions: "FailureTarget(X)"},
				{Succ: 1, Fail: 2, Conditions: "FailureTarget(X)"},
			},
			wantPatch: 3,
		},
		{
			name:   "a deleted job: finalizers off running pods, which are not counted",
			setup:  []func(*batchv1.Job){func(j *batchv1.Job) { j.DeletionTimestamp = new(metav1.NewTime(epoch)) }},
			active: 1,
			pods:   [][]podOption{pod(uid("a"), succ), pod(uid("b"), fail), pod(uid("c"), inPhase(corev1.PodRunning))},
			want: []write{
				{OK: uids("a"), Bad: uids("b")},
				{Succ: 1, Fail: 1},
			},
			wantPatch: 3,
		},
		{
			name:      "a status that cannot be written leaves the finalizers alone",
			pods:      [][]podOption{pod(uid("a"), succ), pod(uid("b"), fail)},
			statusErr: unknown, wantErr: true,
		},
		{
			name:      "no finalizer could be removed, the lists stay",
			pods:      [][]podOption{pod(uid("a"), succ), pod(uid("b"), fail)},
			patchErr:  func(string) error { return unknown },
			want:      []write{{OK: uids("a"), Bad: uids("b")}},
			wantPatch: 2, wantErr: true,
		},
		{
			name:  "some finalizers could be removed, the counters move that far",
			setup: []func(*batchv1.Job){uncounted("a", "b", 0, 0)},
			pods:  [][]podOption{pod(uid("a"), succ, untracked), pod(uid("c"), succ), pod(uid("d"), fail)},
			patchErr: func(name string) error {
				if name == "pod-d" {
					return unknown
				}
				return nil
			},
			want: []write{
				{OK: uids("c"), Bad: uids("d"), Succ: 1, Fail: 1},
				{Bad: uids("d"), Succ: 2, Fail: 1},
			},
			wantPatch: 2, wantErr: true,
		},
		{
			name:      "a pod listed as failed that has succeeded after all counts as failed, once",
			setup:     []func(*batchv1.Job){failing, uncounted("", "a b", 0, 0)},
			pods:      [][]podOption{pod(uid("a"), fail), pod(uid("b"), succ)},
			want:      []write{{Fail: 2, Conditions: "FailureTarget(X) Failed(X)"}},
			wantPatch: 2,
		},
		{
			name:      "a pod that has ended does not hold Failed back",
			setup:     []func(*batchv1.Job){failing, uncounted("", "a", 0, 0)},
			pods:      [][]podOption{pod(uid("a"), fail)},
			want:      []write{{Fail: 1, Conditions: "FailureTarget(X) Failed(X)"}},
			wantPatch: 1,
		},
		{
			name:  "a terminating pod holds Failed back",
			setup: []func(*batchv1.Job){failing, uncounted("", "a", 0, 0)},
			pods:  [][]podOption{pod(uid("a"), inPhase(corev1.PodRunning), isDeleting, untracked)},
			want:  []write{{Fail: 1, Conditions: "FailureTarget(X)"}},
		},
		{
			name:  "a terminating pod holds Complete back",
			setup: []func(*batchv1.Job){succeeding, uncounted("a", "", 0, 0)},
			pods:  [][]podOption{pod(uid("a"), inPhase(corev1.PodRunning), isDeleting, untracked)},
			want:  []write{{Succ: 1, Conditions: "SuccessCriteriaMet(X)"}},
		},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			j := newJob(b.w, 0, 100, 100)
			j.Status = batchv1.JobStatus{StartTime: new(metav1.NewTime(epoch)), Active: tc.active, Ready: new(int32(0)), Terminating: new(int32(0))}
			for _, f := range tc.setup {
				f(j)
			}
			b.w.putJob(j)
			for _, opts := range tc.pods {
				p := b.w.addPod(j, opts...)
				if p.DeletionTimestamp != nil && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
					*b.w.jobs["work"].Status.Terminating++
				}
			}
			b.w.putJob(b.w.jobs["work"])
			b.lease.state = fmt.Appendf(nil, `{"u":%q}`, j.UID)
			b.lease.expected = job.Expected{Owner: string(j.UID)}
			for u := range strings.FieldsSeq(tc.ignored) {
				b.lease.expected.Deletions = append(b.lease.expected.Deletions, "finalizer:"+u)
			}
			b.w.fault = func(op, name string) fault {
				switch {
				case op == "status" && tc.statusErr != nil:
					return fault{before: tc.statusErr}
				case op == "patch" && tc.patchErr != nil:
					return fault{before: tc.patchErr(name)}
				}
				return fault{}
			}
			res := b.sync("default/work")
			if (res.Err != nil) != tc.wantErr {
				t.Errorf("sync error = %v", res.Err)
			}
			if diff := cmp.Diff(writes(b.w), tc.want); diff != "" {
				t.Errorf("status writes (-got +want):\n%s", diff)
			}
			if got := b.w.calls["patch"]; got != tc.wantPatch {
				t.Errorf("%d patches, want %d", got, tc.wantPatch)
			}
		})
	}
}

func uids(u ...types.UID) []types.UID { return u }

func TestAtMost500AreCountedInOneSync(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	j := newJob(b.w, 1, 501, 6)
	j.Status.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{Failed: uids("gone", "b")}
	b.w.putJob(j)
	for i := range 500 {
		b.w.addPod(j, uid(strconv.Itoa(i)), inPhase(corev1.PodSucceeded))
	}
	b.w.addPod(j, uid("b"), inPhase(corev1.PodFailed))
	b.lease.state = fmt.Appendf(nil, `{"u":%q}`, j.UID)
	if res := b.sync("default/work"); res.Err != nil {
		t.Fatal(res.Err)
	}
	got := b.w.statuses
	if n := len(got); n != 2 {
		t.Fatalf("%d status writes, want 2", n)
	}
	if un := got[0].UncountedTerminatedPods; len(un.Succeeded) != 499 || !slices.Equal(un.Failed, uids("b")) || got[0].Failed != 1 {
		t.Errorf("first write: %d succeeded, %v failed uncounted, %d failed", len(un.Succeeded), un.Failed, got[0].Failed)
	}
	if got[1].Succeeded != 499 || b.w.calls["patch"] != 499 {
		t.Errorf("%d counted, %d patches, want 499 of both", got[1].Succeeded, b.w.calls["patch"])
	}
	// The rest follows, and only then may the Job end.
	for range 3 {
		b.sync("default/work")
	}
	if st := b.status("work"); st.Succeeded != 500 || st.Failed != 2 || summary(st) != "" {
		t.Errorf("in the end %s %s", show(st), summary(st))
	}
}

// A large Job is created and counted 500 at a time.
func TestCapsOfOneSync(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	j := newJob(b.w, 1200, 1200, 6)
	b.w.putJob(j)
	for i, want := range []int{500, 1000, 1200, 1200} {
		if res := b.sync("default/work"); res.Err != nil {
			t.Fatal(res.Err)
		}
		if got := len(b.w.born); got != want {
			t.Fatalf("%d pods after sync %d, want %d", got, i+1, want)
		}
	}
	next := b.w.jobs["work"].DeepCopy()
	next.Spec.Parallelism = new(int32(100))
	b.w.putJob(next)
	for _, want := range []int{500, 1000, 1100, 1100} {
		b.sync("default/work")
		if got := b.w.calls["delete"]; got != want {
			t.Fatalf("%d pods deleted, want %d", got, want)
		}
	}
	next = b.w.jobs["work"].DeepCopy()
	next.Spec.Suspend = new(true)
	b.w.putJob(next)
	b.sync("default/work")
	if st := b.status("work"); st.Active != 0 || st.Failed != 0 {
		t.Errorf("suspended with %s", show(st))
	}
}

func TestFailureBackoff(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	j := newJob(b.w, 1, 1, 6)
	b.w.putJob(j)
	b.sync("default/work")
	end := func(phase corev1.PodPhase) {
		for _, p := range b.w.pods {
			if p.Status.Phase == corev1.PodPending {
				p = p.DeepCopy()
				inPhase(phase)(p)
				p.Status.ContainerStatuses[0].State.Terminated.FinishedAt = metav1.NewTime(b.now)
				b.w.putPod(p, false)
			}
		}
	}
	for i, want := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second} {
		end(corev1.PodFailed)
		res := b.sync("default/work")
		if res.Settle != job.After || res.After != want || b.status("work").Active != 0 {
			t.Fatalf("after failure %d settled %v after %v, %s; want after %v", i+1, res.Settle, res.After, show(b.status("work")), want)
		}
		b.now = b.now.Add(want - 500*time.Millisecond)
		if res := b.sync("default/work"); res.After != time.Second {
			t.Fatalf("the wait is %v, at least 1 s", res.After)
		}
		b.now = b.now.Add(500 * time.Millisecond)
		if res := b.sync("default/work"); res.Settle != job.Forget || len(b.w.born) != i+2 {
			t.Fatalf("%d pods born, settled %v after %v", len(b.w.born), res.Settle, res.After)
		}
	}
	t.Run("114650: the record outlives the process and ends with the Job", func(t *testing.T) {
		if !strings.Contains(string(b.lease.state), `"k":3`) {
			t.Errorf("state %s", b.lease.state)
		}
		end(corev1.PodSucceeded)
		b.sync("default/work")
		if len(b.lease.state) != 0 || summary(b.status("work")) != completed {
			t.Errorf("state %s of a Job that is %s", b.lease.state, summary(b.status("work")))
		}
	})
}
