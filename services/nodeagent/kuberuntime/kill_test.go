package kuberuntime_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/internal/criruntime"
	"github.com/deltaplane/deltaplane/services/nodeagent/container"
	"github.com/deltaplane/deltaplane/services/nodeagent/kuberuntime"
)

// stubborn is a pod of two containers that do not mind a TERM.
func stubborn(name string) *corev1.Pod {
	return with(newPod(name, corev1.RestartPolicyAlways, "a", "b"), criruntime.IgnoreTermAnnotation, "true")
}

func TestGraceOfAKill(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name     string
		grace    *int64
		pod      func(*corev1.Pod)
		orphan   bool
		min      time.Duration
		want     time.Duration
		wantCode int32
	}{
		{name: "the pod's", want: 30 * time.Second},
		{name: "the deletion's", pod: func(p *corev1.Pod) { p.DeletionGracePeriodSeconds = new(int64(7)) }, want: 7 * time.Second},
		{name: "the deletion's, below the least", pod: func(p *corev1.Pod) { p.DeletionGracePeriodSeconds = new(int64(0)) }, want: 2 * time.Second},
		{name: "another least", pod: func(p *corev1.Pod) { p.DeletionGracePeriodSeconds = new(int64(1)) }, min: 5 * time.Second, want: 5 * time.Second},
		{name: "the caller's", grace: new(int64(3)), want: 3 * time.Second},
		{name: "the caller's, below the least", grace: new(int64(1)), want: time.Second},
		{name: "at once", grace: new(int64(0)), want: 0},
		{name: "of a pod nobody knows: as written down at its creation", orphan: true, want: 30 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, kuberuntime.Config{MinimumGrace: tc.min})
				pod := stubborn("p")
				pod.Spec.TerminationGracePeriodSeconds = new(int64(30))
				n.mustSync(pod)
				if tc.pod != nil {
					tc.pod(pod)
				}
				killed := pod
				if tc.orphan {
					killed = nil
				}
				start := time.Now()
				if err := n.m.KillPod(t.Context(), killed, n.pod(pod), tc.grace); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(start).Truncate(100 * time.Millisecond); took != tc.want {
					t.Errorf("took %v, want %v: containers end side by side", took, tc.want)
				}
				if got := n.state(pod); got != "a/0:exited(137) b/0:exited(137)" || n.pod(pod).Running() {
					t.Errorf("%q, running %v", got, n.pod(pod).Running())
				}
				if err := n.m.KillPod(t.Context(), killed, n.pod(pod), tc.grace); err != nil {
					t.Errorf("killed again: %v", err)
				}
			})
		})
	}
}

func TestSidecarsStopAfterTheOthersAndInReverse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, kuberuntime.Config{})
		pod := newPod("p", corev1.RestartPolicyAlways, "main")
		pod.Spec.TerminationGracePeriodSeconds = new(int64(10))
		side := corev1.ContainerRestartPolicyAlways
		pod.Spec.InitContainers = []corev1.Container{{Name: "s1", Image: "app:1", RestartPolicy: &side}, {Name: "s2", Image: "app:1", RestartPolicy: &side}}
		with(pod, criruntime.IgnoreTermAnnotation, "true")
		for range 3 {
			n.mustSync(pod)
		}
		if got := n.state(pod); got != "main/0:running s1/0:running s2/0:running" {
			t.Fatalf("%q", got)
		}
		start := time.Now()
		if err := n.m.KillPod(t.Context(), pod, n.pod(pod), new(int64(4))); err != nil {
			t.Fatal(err)
		}
		ended := func(name string) time.Duration {
			return n.status(pod).Latest(name).FinishedAt.Sub(start).Truncate(100 * time.Millisecond)
		}
		if ended("main") != 4*time.Second || ended("s2") < ended("main") || ended("s1") < ended("s2") || ended("s1") > 5*time.Second {
			t.Errorf("ended after %v, s2 %v, s1 %v: want the sidecars last and no grace beyond the pod's", ended("main"), ended("s2"), ended("s1"))
		}
	})
}

func TestAKillThatFailsSaysSoAndEndsTheOthers(t *testing.T) {
	t.Parallel()
	n := newNode(t, kuberuntime.Config{})
	pod := newPod("p", corev1.RestartPolicyAlways, "a", "b")
	n.mustSync(pod)
	a := n.status(pod).Latest("a").ID
	undo := n.rt.Inject("StopContainer", criruntime.Fault{
		Match: func(r any) bool { return idOf(r) == a }, Err: status.Error(codes.Unknown, "stuck in the kernel"),
	})
	if err := n.m.KillPod(t.Context(), pod, n.pod(pod), nil); err == nil {
		t.Error("no error")
	}
	if got := n.state(pod); got != "a/0:running b/0:exited(143)" {
		t.Errorf("%q, want a alone to run", got)
	}
	if !n.pod(pod).Sandboxes[0].Ready {
		t.Error("the sandbox was stopped under a container that runs")
	}
	undo()
	if err := n.m.KillPod(t.Context(), pod, n.pod(pod), nil); err != nil || n.pod(pod).Running() {
		t.Errorf("second try: %v", err)
	}
}

func TestAKillEndsThePodThoughSomethingCreatedCannotBeRemoved(t *testing.T) {
	t.Parallel()
	n := newNode(t, kuberuntime.Config{})
	pod := newPod("p", corev1.RestartPolicyAlways, "a", "b")
	defer n.rt.Inject("CreateContainer", criruntime.Fault{Lost: true, Times: 1})()
	n.sync(pod) // a is created, its answer lost; b runs
	undo := n.rt.Inject("RemoveContainer", criruntime.Fault{Err: status.Error(codes.Unknown, "device busy")})
	if err := n.m.KillPod(t.Context(), pod, n.pod(pod), nil); err == nil {
		t.Error("no error")
	}
	if got := n.state(pod); got != "a/0:created b/0:exited(143)" || n.pod(pod).Running() {
		t.Errorf("%q, running %v: want nothing to run", got, n.pod(pod).Running())
	}
	undo()
	if err := n.m.KillPod(t.Context(), pod, n.pod(pod), nil); err != nil {
		t.Errorf("second try: %v", err)
	}
}

func TestAGraceBeyondAllMeasureIsNoneThatIsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, kuberuntime.Config{})
		pod := stubborn("p")
		pod.Spec.TerminationGracePeriodSeconds = new(int64(1<<63 - 1))
		pod.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 1<<63 - 1}}}
		n.mustSync(pod)
		ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
		defer cancel()
		if err := n.m.KillPod(ctx, pod, n.pod(pod), nil); err == nil {
			t.Error("the pod ended within a day")
		}
		if got := n.state(pod); got != "a/0:running b/0:running" {
			t.Errorf("%q, want both to have their grace", got)
		}
	})
}

func TestAKillOfWhatIsGoneIsDone(t *testing.T) {
	t.Parallel()
	n := newNode(t, kuberuntime.Config{})
	ghost := container.Pod{
		UID: "ghost", Sandboxes: []container.Sandbox{{ID: "no-such-sandbox", Ready: true}},
		Containers: []container.Container{{ID: "no-such-container", Name: "c", State: container.Running}},
	}
	if err := n.m.KillPod(t.Context(), nil, ghost, nil); err != nil {
		t.Error(err)
	}
	if err := n.m.KillPod(t.Context(), nil, container.Pod{}, nil); err == nil {
		t.Error("a pod without a UID is killed: that would be every pod")
	}
}

func TestHooksRunInTheContainer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, kuberuntime.Config{})
		pod := newPod("p", corev1.RestartPolicyAlways, "c")
		pod.Spec.TerminationGracePeriodSeconds = new(int64(30))
		pod.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{
			PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 5}},
		}
		n.mustSync(pod)
		start := time.Now()
		if err := n.m.KillPod(t.Context(), pod, n.pod(pod), nil); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start).Truncate(time.Second); took != 5*time.Second {
			t.Errorf("took %v, want the hook's 5 s", took)
		}
		pod = newPod("q", corev1.RestartPolicyAlways, "c")
		pod.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}}
		defer n.rt.Inject("ExecSync", criruntime.Fault{Err: status.Error(codes.Unknown, "no such command")})()
		r := n.sync(pod)
		if w := r.Waiting["c"]; w.Reason != kuberuntime.ReasonPostStartHookError {
			t.Errorf("waiting %+v", w)
		}
		if got := n.state(pod); got != "c/0:exited(143)" {
			t.Errorf("%q, want the container ended", got)
		}
	})
}

func TestACancelledKillReturns(t *testing.T) {
	t.Parallel()
	n := newNode(t, kuberuntime.Config{})
	pod := stubborn("p")
	pod.Spec.TerminationGracePeriodSeconds = new(int64(3600))
	n.mustSync(pod)
	running := n.pod(pod)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- n.m.KillPod(ctx, pod, running, nil) }()
	cancel()
	if err := <-done; err == nil {
		t.Error("no error")
	}
	if err := n.m.KillPod(t.Context(), pod, running, new(int64(0))); err != nil || n.pod(pod).Running() {
		t.Errorf("with a shorter grace: %v", err)
	}
}
