package job_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/services/controllers/job"
)

// TestGetNewFinshedPods rows: what a sync adds to the counters. The UIDs of pods begin with uid-2.
func TestNewFinishedPods(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name          string
		ok, bad       int32
		uncounted     batchv1.UncountedTerminatedPods
		stripped      []string // finalizers that are known to be gone
		pods          string
		wantOK, wants int32
	}{
		{
			name: "some counted", ok: 2, bad: 1, wantOK: 4, wants: 2,
			pods: "-:ok:untracked -:ok -:ok -:failed:untracked -:failed -:running:untracked",
		},
		{
			name: "some uncounted", ok: 1, bad: 1, wantOK: 4, wants: 4,
			uncounted: batchv1.UncountedTerminatedPods{Succeeded: uids("uid-2", "uid-4"), Failed: uids("uid-6", "uid-7")},
			pods:      "-:ok:untracked -:ok:untracked -:ok -:ok -:failed:untracked -:failed -:failed",
		},
		{
			name: "with expected removed finalizers", ok: 2, bad: 2, wantOK: 4, wants: 5,
			uncounted: batchv1.UncountedTerminatedPods{Succeeded: uids("uid-2"), Failed: uids("uid-5")}, stripped: []string{"finalizer:uid-3", "finalizer:uid-7"},
			pods: "-:ok:untracked -:ok -:ok -:failed:untracked -:failed -:failed -:failed",
		},
		{
			name: "deleted pods", ok: 1, bad: 1, wantOK: 2, wants: 4,
			pods: "-:ok:deleting -:failed:deleting -:running:deleting -:pending:deleting -:running:deleting:untracked -:pending:deleting:untracked",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			j := newJob(b.w, 0, 100, 100)
			j.Status = batchv1.JobStatus{Succeeded: tc.ok, Failed: tc.bad, UncountedTerminatedPods: &tc.uncounted}
			b.w.putJob(j)
			b.w.addIndexed(t, j, tc.pods)
			b.lease.state = fmt.Appendf(nil, `{"u":%q}`, j.UID)
			b.lease.expected = job.Expected{Owner: string(j.UID), Deletions: tc.stripped}
			if res := b.sync("default/work"); res.Err != nil {
				t.Fatal(res.Err)
			}
			if st := b.status("work"); st.Succeeded != tc.wantOK || st.Failed != tc.wants {
				t.Errorf("%d succeeded and %d failed, want %d and %d", st.Succeeded, st.Failed, tc.wantOK, tc.wants)
			}
		})
	}
}

// TestGetFinishedTime rows: when a pod failed, from which its back-off of ten seconds counts.
func TestFinishedTime(t *testing.T) {
	t.Parallel()
	at := func(ago time.Duration) metav1.Time { return metav1.NewTime(epoch.Add(-ago)) }
	ended := func(name string, ago time.Duration) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: at(ago)}}}
	}
	containers := func(all ...corev1.ContainerStatus) podOption {
		return func(p *corev1.Pod) { p.Status.ContainerStatuses = all }
	}
	deleted := func(ago time.Duration, grace int64) podOption {
		return func(p *corev1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = new(at(ago)), &grace
		}
	}
	readyIs := func(status corev1.ConditionStatus, ago time.Duration) podOption {
		return func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status, LastTransitionTime: at(ago)}}
		}
	}
	running := corev1.ContainerStatus{Name: "running", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	unknown := corev1.ContainerStatus{Name: "x", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}
	sidecar := func(ago time.Duration) podOption {
		return func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "side", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)}, {Name: "init"}}
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{ended("side", ago), ended("init", 0)}
		}
	}
	const s = time.Second
	for _, tc := range []struct {
		name  string
		pod   []podOption
		after time.Duration
	}{
		{"all containers terminated", []podOption{containers(ended("a", 5*s), ended("b", 4*s), ended("c", 6*s))}, 6 * s},
		{"one container still runs; fallback to deletionTimestamp", []podOption{containers(ended("a", 5*s), running, ended("c", 6*s)), deleted(3*s, 0)}, 7 * s},
		{"fallback to deletionTimestamp", []podOption{containers(running), deleted(3*s, 0)}, 7 * s},
		{"fallback to deletionTimestamp, decremented by grace period", []podOption{containers(running), deleted(0, 4)}, 6 * s},
		{"fallback to PodReady when it is False", []podOption{containers(unknown), readyIs(corev1.ConditionFalse, 2*s), deleted(s, 0)}, 8 * s},
		{"skip fallback to PodReady when it is True", []podOption{containers(unknown), readyIs(corev1.ConditionTrue, 2*s), deleted(3*s, 0)}, 7 * s},
		{"fallback to creationTimestamp", []podOption{containers(unknown), func(p *corev1.Pod) { p.CreationTimestamp = at(7 * s) }}, 3 * s},
		{"a sidecar ends last", []podOption{containers(ended("a", 5*s)), sidecar(4 * s)}, 6 * s},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			j := newJob(b.w, 1, 1, 6)
			b.w.putJob(j)
			b.w.addPod(j, append([]podOption{inPhase(corev1.PodFailed)}, tc.pod...)...)
			if res := b.sync("default/work"); res.Settle != job.After || res.After != tc.after {
				t.Errorf("settled %v after %v, want after %v; %v", res.Settle, res.After, tc.after, res.Err)
			}
		})
	}
}

// TestEnsureJobConditions rows, by the condition Suspended.
func TestAConditionIsBroughtUpToDate(t *testing.T) {
	t.Parallel()
	const yes, no = corev1.ConditionTrue, corev1.ConditionFalse
	for _, tc := range []struct {
		name    string
		status  corev1.ConditionStatus
		reason  string
		suspend bool
		want    string
		event   string
	}{
		{"append true condition", "", "", true, "Suspended(JobSuspended)", "Suspended"},
		{"append false condition", "", "", false, "", ""},
		{"update true condition reason", yes, "foo", true, "Suspended(JobSuspended)", "Suspended"},
		{"update true condition status", yes, "JobSuspended", false, "!Suspended(JobResumed)", "Resumed"},
		{"update false condition status", no, "JobResumed", true, "Suspended(JobSuspended)", "Suspended"},
		{"condition already exists", yes, "JobSuspended", true, "Suspended(JobSuspended)", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			j := newJob(b.w, 0, 1, 6)
			j.Spec.Suspend = &tc.suspend
			if tc.status != "" {
				j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobSuspended, Status: tc.status, Reason: tc.reason, Message: "Job suspended"}}
			}
			b.w.putJob(j)
			if res := b.sync("default/work"); res.Err != nil {
				t.Fatal(res.Err)
			}
			events := strings.Join(b.rec.events, "; ")
			if got := summary(b.status("work")); got != tc.want || (events == "") != (tc.event == "") || !strings.Contains(events, "Normal "+tc.event) && tc.event != "" {
				t.Errorf("conditions %q, events %q; want %q, %q", got, events, tc.want, tc.event)
			}
		})
	}
}

// TestSyncJobComplete, TestSyncJobDeleted and TestSyncJobWhenManagedBy rows.
func TestWhichJobsAreSynced(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		gone   bool
		job    func(*batchv1.Job)
		synced bool
	}{
		{name: "a complete Job is not", job: func(j *batchv1.Job) {
			j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
		}},
		{name: "a Job that is gone is not", gone: true},
		{name: "a Job with another managedBy is not", job: func(j *batchv1.Job) { j.Spec.ManagedBy = new("acme.io/c") }},
		{name: "a Job with the well known managedBy is", job: func(j *batchv1.Job) { j.Spec.ManagedBy = new(batchv1.JobControllerName) }, synced: true},
		{name: "a Job without managedBy is", synced: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			j := newJob(b.w, 1, 1, 6)
			if tc.job != nil {
				tc.job(j)
			}
			if !tc.gone {
				b.w.putJob(j)
			}
			if res := b.sync("default/work"); res.Err != nil {
				t.Fatal(res.Err)
			}
			if (len(b.w.born) == 1) != tc.synced || (len(b.w.statuses) == 1) != tc.synced {
				t.Errorf("%d pods made, %d writes of the status, want it synced: %v", len(b.w.born), len(b.w.statuses), tc.synced)
			}
		})
	}
}
