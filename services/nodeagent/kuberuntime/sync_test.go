package kuberuntime_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/internal/criruntime"
	"github.com/deltaplane/deltaplane/services/nodeagent/kuberuntime"
)

func TestAPodIsMadeOnceAndLeftAlone(t *testing.T) {
	t.Parallel()
	n := newNode(t, kuberuntime.Config{RootDir: t.TempDir(), LogRoot: t.TempDir()})
	pod := newPod("p", corev1.RestartPolicyAlways, "a", "b")
	r := n.sync(pod)
	if r.Err != nil || !r.Changed || len(r.Waiting) != 0 {
		t.Fatalf("first sync: %+v", r)
	}
	n.eventually(pod, "a/0:running b/0:running")
	before := n.status(pod)
	if r := n.sync(pod); r.Err != nil || r.Changed {
		t.Fatalf("second sync: %+v, want nothing done", r)
	}
	after := n.status(pod)
	after.At = before.At
	if diff := cmp.Diff(after, before); diff != "" {
		t.Errorf("a sync of a pod that is well changed it (-got +want):\n%s", diff)
	}
	if len(before.Sandboxes) != 1 || !before.Sandboxes[0].Ready {
		t.Errorf("sandboxes %+v, want one, ready", before.Sandboxes)
	}
	n.restart()
	if r := n.sync(pod); r.Err != nil || r.Changed {
		t.Errorf("sync of a new agent: %+v, want the pod adopted as it is", r)
	}
}

func TestInitContainersRunInOrderBeforeTheOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, kuberuntime.Config{})
		pod := newPod("p", corev1.RestartPolicyOnFailure, "main")
		for _, name := range []string{"i1", "i2"} {
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, corev1.Container{Name: name, Image: "app:1"})
			with(pod, criruntime.RunSecondsAnnotation+"."+name, "1")
		}
		for _, want := range []string{
			"i1/0:running", "i1/0:exited(0) i2/0:running", "i1/0:exited(0) i2/0:exited(0) main/0:running",
		} {
			n.mustSync(pod)
			if got := n.state(pod); got != want {
				t.Fatalf("after a sync: %q, want %q", got, want)
			}
			if r := n.sync(pod); r.Changed {
				t.Fatalf("%q: another sync changed something: %+v", want, r)
			}
			pause(t.Context(), 1500*time.Millisecond)
		}
	})
}

func TestSidecarsStartInTurnAndAreStartedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, kuberuntime.Config{})
		pod := newPod("p", corev1.RestartPolicyNever, "main")
		always := corev1.ContainerRestartPolicyAlways
		pod.Spec.InitContainers = []corev1.Container{{Name: "side", Image: "app:1", RestartPolicy: &always}, {Name: "init", Image: "app:1"}}
		with(pod, criruntime.RunSecondsAnnotation+".init", "1", criruntime.RunSecondsAnnotation+".main", "8", criruntime.RunSecondsAnnotation+".side", "4")
		n.mustSync(pod)
		n.mustSync(pod)
		if got := n.state(pod); got != "init/0:running side/0:running" {
			t.Fatalf("the sidecar goes first and does not hold up: %q", got)
		}
		pause(t.Context(), 2*time.Second)
		n.mustSync(pod)
		if got := n.state(pod); got != "init/0:exited(0) main/0:running side/0:running" {
			t.Fatalf("after the init container: %q", got)
		}
		pause(t.Context(), 3*time.Second)
		n.mustSync(pod)
		if got := n.state(pod); got != "init/0:exited(0) main/0:running side/0:exited(0) side/1:running" {
			t.Fatalf("a sidecar that ended is started again, with the pod's policy Never: %q", got)
		}
		pause(t.Context(), 6*time.Second)
		n.mustSync(pod)
		if got := n.state(pod); !strings.Contains(got, "main/0:exited(0)") || strings.Contains(got, "running") {
			t.Fatalf("sidecars end with the containers: %q", got)
		}
	})
}

func TestRestartPoliciesDecideWhoComesBack(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		policy corev1.RestartPolicy
		code   string
		want   string
	}{
		{corev1.RestartPolicyAlways, "0", "c/0:exited(0) c/1:running"},
		{corev1.RestartPolicyAlways, "3", "c/0:exited(3) c/1:running"},
		{corev1.RestartPolicyOnFailure, "0", "c/0:exited(0)"},
		{corev1.RestartPolicyOnFailure, "3", "c/0:exited(3) c/1:running"},
		{corev1.RestartPolicyNever, "0", "c/0:exited(0)"},
		{corev1.RestartPolicyNever, "3", "c/0:exited(3)"},
	} {
		t.Run(string(tc.policy)+" after exit code "+tc.code, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, kuberuntime.Config{})
				pod := with(newPod("p", tc.policy, "c"), criruntime.RunSecondsAnnotation, "1", criruntime.ExitCodeAnnotation, tc.code)
				n.mustSync(pod)
				pause(t.Context(), 1500*time.Millisecond)
				n.mustSync(pod)
				if got := n.state(pod); got != tc.want {
					t.Errorf("%q, want %q", got, tc.want)
				}
			})
		})
	}
}

func TestAChangedImageReplacesTheContainer(t *testing.T) {
	t.Parallel()
	n := newNode(t, kuberuntime.Config{})
	pod := newPod("p", corev1.RestartPolicyNever, "a", "b")
	n.mustSync(pod)
	pod = pod.DeepCopy()
	pod.Spec.Containers[1].Image = "app:2"
	n.mustSync(pod)
	n.eventually(pod, "a/0:running b/0:exited(143) b/1:running")
	if !n.rec.has("Killing Container b definition changed, will be restarted") {
		t.Errorf("no Event says why: %v", n.rec.events)
	}
}

func TestADeadSandboxIsReplacedWithItsContainers(t *testing.T) {
	t.Parallel()
	n := newNode(t, kuberuntime.Config{})
	pod := newPod("p", corev1.RestartPolicyAlways, "c")
	pod.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "app:1"}}
	n.mustSync(pod)
	n.eventually(pod, "init/0:exited(0)")
	n.mustSync(pod)
	n.eventually(pod, "c/0:running init/0:exited(0)")
	if err := n.m.KillPod(t.Context(), pod, n.pod(pod), nil); err != nil {
		t.Fatal(err)
	}
	n.mustSync(pod)
	n.eventually(pod, "c/0:exited(143) init/0:exited(0) init/1:exited(0)")
	n.mustSync(pod)
	n.eventually(pod, "c/0:exited(143) c/1:running init/0:exited(0) init/1:exited(0)")
	s := n.status(pod)
	if len(s.Sandboxes) != 2 || s.Sandboxes[0].Attempt != 1 || !s.Sandboxes[0].Ready || s.Sandboxes[1].Ready {
		t.Errorf("sandboxes %+v, want attempt 1 ready and 0 not", s.Sandboxes)
	}
}

func TestImagesThatAreNotThere(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, image     string
		policy          corev1.PullPolicy
		reason, message string
	}{
		{"never pulled", "missing/app:1", corev1.PullNever, kuberuntime.ReasonErrImageNeverPull, `Container image "missing/app:1" is not present with pull policy of Never`},
		{"no such image", "missing/app:1", corev1.PullIfNotPresent, kuberuntime.ReasonErrImagePull, `failed to pull image "missing/app:1"`},
		{"no name at all", "UPPER/App:1", corev1.PullIfNotPresent, kuberuntime.ReasonInvalidImageName, `couldn't parse image name "UPPER/App:1"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, kuberuntime.Config{})
			pod := newPod("p", corev1.RestartPolicyAlways, "bad", "good")
			pod.Spec.Containers[0].Image, pod.Spec.Containers[0].ImagePullPolicy = tc.image, tc.policy
			r := n.sync(pod)
			w := r.Waiting["bad"]
			if w.Reason != tc.reason || !strings.Contains(w.Message, tc.message) || len(r.Waiting) != 1 {
				t.Errorf("waiting %+v, want %s: ...%s...", r.Waiting, tc.reason, tc.message)
			}
			if got := n.m.WaitReasons(pod.UID)["bad"]; got != w {
				t.Errorf("WaitReasons say %+v", got)
			}
			n.eventually(pod, "good/0:running")
		})
	}
}

func TestFailedPullsAreTriedAfterTenSecondsDoubling(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, kuberuntime.Config{})
		pod := newPod("p", corev1.RestartPolicyAlways, "c")
		pod.Spec.Containers[0].Image = "missing/app:1"
		start := time.Now()
		var tries []int
		for time.Since(start) < 20*time.Minute {
			r := n.sync(pod)
			b, ok := errors.AsType[*kuberuntime.BackoffError](r.Err)
			if !ok {
				t.Fatalf("%v names no time to try again", r.Err)
			}
			if r.Waiting["c"].Reason == kuberuntime.ReasonErrImagePull {
				tries = append(tries, int(time.Since(start).Seconds()))
				if shown := time.Until(b.Expiry); shown > 10*time.Second {
					t.Fatalf("ErrImagePull is to be shown for %v", shown)
				}
				pause(t.Context(), time.Until(b.Expiry))
				r = n.sync(pod)
				if b, ok = errors.AsType[*kuberuntime.BackoffError](r.Err); !ok || r.Waiting["c"].Reason != kuberuntime.ReasonImagePullBackOff || r.Waiting["c"].Message != `Back-off pulling image "missing/app:1"` {
					t.Fatalf("a sync in between: %+v", r)
				}
			}
			pause(t.Context(), time.Until(b.Expiry))
		}
		if diff := cmp.Diff(tries, []int{0, 10, 30, 70, 150, 310, 610, 910}); diff != "" {
			t.Errorf("pulls at (-got +want):\n%s", diff)
		}
	})
}

func TestContainersThatCannotStartSayWhy(t *testing.T) {
	t.Parallel()
	n := newNode(t, kuberuntime.Config{})
	pod := with(newPod("p", corev1.RestartPolicyAlways, "c"), criruntime.StartErrorAnnotation, `exec: "nope": executable file not found in $PATH`)
	r := n.sync(pod)
	if w := r.Waiting["c"]; w.Reason != kuberuntime.ReasonRunContainerError || !strings.Contains(w.Message, `"nope": executable file not found`) {
		t.Errorf("waiting %+v", w)
	}
	s := n.status(pod).Latest("c")
	if s == nil || s.ExitCode != 128 || s.Reason != "StartError" {
		t.Errorf("container %+v, want exited with 128, StartError", s)
	}
	r = n.sync(pod) // the first restart is at once
	if w := r.Waiting["c"]; w.Reason != kuberuntime.ReasonRunContainerError {
		t.Errorf("second try: %+v", w)
	}
	r = n.sync(pod)
	if w := r.Waiting["c"]; w.Reason != kuberuntime.ReasonCrashLoopBackOff {
		t.Errorf("third try: %+v", w)
	}
	if got := n.state(pod); got != "c/0:exited(128) c/1:exited(128)" {
		t.Errorf("containers %q", got)
	}
}

func TestAnUnwritableLogRootIsAnErrorThatNamesIt(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n := newNode(t, kuberuntime.Config{LogRoot: filepath.Join(file, "logs")})
	r := n.sync(newPod("p", corev1.RestartPolicyAlways, "c"))
	e, ok := errors.AsType[*kuberuntime.ContainerError](r.Err)
	if !ok || e.Reason != kuberuntime.ReasonCreatePodSandboxError || !strings.Contains(e.Message, file) {
		t.Errorf("error %v", r.Err)
	}
	if !n.rec.has("Warning FailedCreatePodSandBox") {
		t.Errorf("no Event: %v", n.rec.events)
	}
}

func TestARuntimeThatIsDownFailsTheSyncAndNothingElse(t *testing.T) {
	t.Parallel()
	n := newNode(t, kuberuntime.Config{})
	pod := newPod("p", corev1.RestartPolicyAlways, "c")
	n.rt.SetDown(true)
	if r := n.m.SyncPod(t.Context(), pod, nil, kuberuntime.Inputs{}); r.Err == nil || r.Changed {
		t.Errorf("sync: %+v", r)
	}
	if _, err := n.m.Pods(t.Context(), true); err == nil {
		t.Error("a runtime that is down lists pods")
	}
	n.rt.SetDown(false)
	n.mustSync(pod)
	n.eventually(pod, "c/0:running")
}
