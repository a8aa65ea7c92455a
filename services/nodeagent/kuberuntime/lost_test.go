package kuberuntime_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/internal/criruntime"
	"github.com/deltaplane/deltaplane/services/nodeagent/container"
	"github.com/deltaplane/deltaplane/services/nodeagent/kuberuntime"
)

func TestALostAnswerMakesNoSecondInstance(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"RunPodSandbox", "PodSandboxStatus", "CreateContainer", "StartContainer", "ImageStatus"} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, agent killed after it: %v", method, restart), func(t *testing.T) {
				t.Parallel()
				n := newNode(t, kuberuntime.Config{RootDir: t.TempDir(), LogRoot: t.TempDir()})
				pod := newPod("p", corev1.RestartPolicyNever, "c")
				before := n.status(pod)
				defer n.rt.Inject(method, criruntime.Fault{Lost: true, Times: 1})()
				if r := n.m.SyncPod(t.Context(), pod, before, kuberuntime.Inputs{}); r.Err == nil {
					t.Fatal("the fault did not strike")
				}
				if restart {
					n.restart()
				}
				if method != "ImageStatus" {
					r := n.m.SyncPod(t.Context(), pod, before, kuberuntime.Inputs{})
					if !errors.Is(r.Err, kuberuntime.ErrStale) {
						t.Errorf("a sync on the status of before: %v, want ErrStale", r.Err)
					}
				}
				n.mustSync(pod)
				if got := n.state(pod); got != "c/0:running" {
					t.Errorf("containers %q, want one", got)
				}
				if s := n.status(pod); len(s.Sandboxes) != 1 {
					t.Errorf("%d sandboxes", len(s.Sandboxes))
				}
			})
		}
	}
}

func TestARefusedStartIsMadeAgainFromTheSpecOfThen(t *testing.T) {
	t.Parallel()
	n := newNode(t, kuberuntime.Config{})
	pod := newPod("p", corev1.RestartPolicyNever, "c")
	defer n.rt.Inject("StartContainer", criruntime.Fault{Err: status.Error(codes.Unknown, "no room"), Times: 1})()
	r := n.sync(pod)
	if w := r.Waiting["c"]; w.Reason != kuberuntime.ReasonRunContainerError || w.Message != "no room" {
		t.Errorf("waiting %+v", w)
	}
	if got := n.state(pod); got != "" {
		t.Errorf("what was refused is left: %q", got)
	}
	n.mustSync(pod)
	n.eventually(pod, "c/0:running")
}

func TestAContainerCreatedByAnotherDefinitionIsReplaced(t *testing.T) {
	t.Parallel()
	n := newNode(t, kuberuntime.Config{})
	pod := newPod("p", corev1.RestartPolicyNever, "c")
	defer n.rt.Inject("CreateContainer", criruntime.Fault{Lost: true, Times: 1})()
	n.sync(pod)
	if got := n.state(pod); got != "c/0:created" {
		t.Fatalf("%q", got)
	}
	pod.Spec.Containers[0].Image = "app:2"
	n.mustSync(pod)
	if got := n.state(pod); got != "c/0:running" || n.status(pod).Latest("c").Image != "app:2" {
		t.Errorf("%q of image %q", got, n.status(pod).Latest("c").Image)
	}
}

// A start whose answer was lost ends after the pod was looked at, and then the image is changed.
func TestAContainerThatRanMeanwhileIsNotReplacedAsIfItHadNot(t *testing.T) {
	t.Parallel()
	n := newNode(t, kuberuntime.Config{})
	pod := newPod("p", corev1.RestartPolicyNever, "c")
	defer n.rt.Inject("CreateContainer", criruntime.Fault{Lost: true, Times: 1})()
	n.sync(pod)
	before := n.status(pod) // created
	n.mustSync(pod)
	id := n.status(pod).Latest("c").ID
	if err := n.rt.Kill(id, 3); err != nil {
		t.Fatal(err)
	}
	pod.Spec.Containers[0].Image = "app:2"
	if r := n.m.SyncPod(t.Context(), pod, before, kuberuntime.Inputs{}); !errors.Is(r.Err, kuberuntime.ErrStale) {
		t.Errorf("a sync on the status of before: %v, want ErrStale", r.Err)
	}
	n.mustSync(pod)
	if got := n.state(pod); got != "c/0:exited(3)" || n.status(pod).Latest("c").ID != id {
		t.Errorf("%q, want what ran once and nothing else", got)
	}
}

func TestKillingAPodTakesWhatTheCallerDoesNotKnowOf(t *testing.T) {
	t.Parallel()
	n := newNode(t, kuberuntime.Config{})
	pod := newPod("p", corev1.RestartPolicyNever, "a", "b")
	created := n.rt.Inject("CreateContainer", criruntime.Fault{Lost: true, Times: 1})
	defer created()
	n.sync(pod) // a is created, its answer lost; b runs
	if got := n.state(pod); got != "a/0:created b/0:running" {
		t.Fatalf("%q", got)
	}
	if err := n.m.KillPod(t.Context(), pod, container.Pod{}, nil); err != nil {
		t.Fatal(err)
	}
	if got := n.state(pod); got != "b/0:exited(143)" {
		t.Errorf("%q", got)
	}
	if n.pod(pod).Running() {
		t.Error("something of it runs")
	}
}

// TestRandomHistoriesNeverRunAContainerTwice lets agents with lost answers, refusals, kills and old
// observations at pods, and looks after every step.
func TestRandomHistoriesNeverRunAContainerTwice(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { history(t, rand.New(rand.NewPCG(seed, 5)), 150) })
		})
	}
}

func history(t *testing.T, rng *rand.Rand, steps int) {
	n := newNode(t, kuberuntime.Config{RootDir: t.TempDir(), LogRoot: t.TempDir()})
	var pods []*corev1.Pod
	observed := map[types.UID]*container.PodStatus{}
	for i, policy := range []corev1.RestartPolicy{always, onFailure, never} {
		p := newPod(fmt.Sprint("p", i), policy, "a", "b")
		p.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "app:1"}}
		with(p, criruntime.RunSecondsAnnotation+".a", "20", criruntime.ExitCodeAnnotation+".a", "1")
		pods = append(pods, p)
	}
	highest := map[string]uint32{}
	methods := []string{"RunPodSandbox", "CreateContainer", "StartContainer", "StopContainer", "ContainerStatus", "ListContainers", "PodSandboxStatus", "RemoveContainer"}
	for step := range steps {
		pod := pods[rng.IntN(len(pods))]
		var undo func()
		if rng.IntN(3) == 0 {
			f := criruntime.Fault{Times: 1, Lost: true}
			if rng.IntN(3) == 0 {
				f = criruntime.Fault{Times: 1, Err: status.Error(codes.Unknown, "refused")}
			}
			undo = n.rt.Inject(methods[rng.IntN(len(methods))], f)
		}
		switch op := rng.IntN(10); {
		case op < 6:
			if s, err := n.m.PodStatus(t.Context(), pod.UID, pod.Namespace, pod.Name); err == nil && rng.IntN(4) > 0 {
				observed[pod.UID] = s
			}
			n.m.SyncPod(t.Context(), pod, observed[pod.UID], kuberuntime.Inputs{})
		case op == 6:
			n.restart()
		case op == 7:
			_ = n.m.CollectGarbage(t.Context(), func(types.UID) bool { return true }, rng.IntN(5) == 0) // a fault may have struck
		case op == 8 && rng.IntN(6) == 0:
			_ = n.m.KillPod(t.Context(), pod, container.Pod{}, new(int64(1))) // as after a reboot
		default:
			pause(t.Context(), time.Duration(rng.IntN(8000))*time.Millisecond)
		}
		if undo != nil {
			undo()
		}
		for _, pod := range pods {
			n.oncePerName(step, pod, highest)
		}
		if t.Failed() {
			t.Fatalf("step %d", step)
		}
	}
	for range 40 { // left alone, every pod gets where it should
		for _, pod := range pods {
			n.sync(pod)
		}
		pause(t.Context(), 10*time.Second)
	}
	for _, pod := range pods {
		s := n.status(pod)
		b := s.Latest("b")
		over := pod.Spec.RestartPolicy == never // its init container or b itself may have been ended
		if init := s.Latest("init"); b == nil && !(over && init != nil && init.ExitCode != 0) || b != nil && b.State != container.Running && !(over && b.State == container.Exited) {
			t.Errorf("pod %s ends as %s", pod.Name, n.state(pod))
		}
	}
}

// oncePerName checks that of a name at most one instance is alive, that numbers are not used twice,
// and that what is not restarted ran once.
func (n *node) oncePerName(step int, pod *corev1.Pod, highest map[string]uint32) {
	n.t.Helper()
	alive, numbers, instances := map[string]int{}, map[string]bool{}, map[string]int{}
	ready := 0
	s := n.status(pod)
	for _, b := range s.Sandboxes {
		if b.Ready {
			ready++
		}
	}
	for _, c := range s.Containers {
		if c.State == container.Running || c.State == container.Created {
			alive[c.Name]++
		}
		number := fmt.Sprintf("%s/%d", c.Name, c.Attempt)
		if numbers[number] {
			n.t.Errorf("step %d: number %s of pod %s is used twice: %s", step, number, pod.Name, n.state(pod))
		}
		numbers[number] = true
		instances[c.Name]++
		if key := pod.Name + "/" + c.Name; c.Attempt > highest[key] {
			highest[key] = c.Attempt
		}
	}
	for name, count := range alive {
		if count > 1 {
			n.t.Errorf("step %d: %d instances of %s are alive in pod %s: %s", step, count, name, pod.Name, n.state(pod))
		}
	}
	if ready > 1 {
		n.t.Errorf("step %d: pod %s has %d ready sandboxes", step, pod.Name, ready)
	}
	if pod.Spec.RestartPolicy == never {
		for name, count := range instances {
			if name != "init" && (count > 1 || highest[pod.Name+"/"+name] > 0) {
				n.t.Errorf("step %d: %s of pod %s was started again: %s", step, name, pod.Name, strings.TrimSpace(n.state(pod)))
			}
		}
	}
}
