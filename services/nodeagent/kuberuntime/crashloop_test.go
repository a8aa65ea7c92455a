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
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/internal/criruntime"
	"github.com/deltaplane/deltaplane/services/nodeagent/container"
	"github.com/deltaplane/deltaplane/services/nodeagent/kuberuntime"
)

// crasher is a pod whose container ends after a second with code 3.
func crasher() *corev1.Pod {
	return with(newPod("p", corev1.RestartPolicyAlways, "c"), criruntime.RunSecondsAnnotation, "1", criruntime.ExitCodeAnnotation, "3")
}

// offsets syncs a pod whenever its container ended or its wait is over, until n instances have
// started, and says how long after the end of its predecessor each was started. Before each sync it
// calls before.
func (n *node) offsets(pod *corev1.Pod, instances int, before func(attempt int)) []time.Duration {
	n.t.Helper()
	var out []time.Duration
	var ended time.Time
	for attempt := 0; attempt < instances; {
		before(attempt)
		r := n.sync(pod)
		s := n.status(pod).Latest("c")
		if b, ok := errors.AsType[*kuberuntime.BackoffError](r.Err); ok {
			if left := time.Until(b.Expiry); left > 0 {
				pause(n.t.Context(), left/2)
				if r := n.sync(pod); r.Changed || n.status(pod).Latest("c").ID != s.ID {
					n.t.Fatalf("started in the middle of its back-off: %+v", r)
				}
				pause(n.t.Context(), time.Until(b.Expiry)-time.Nanosecond)
				if r := n.sync(pod); r.Changed {
					n.t.Fatalf("started a nanosecond early: %+v", r)
				}
				pause(n.t.Context(), time.Nanosecond)
				continue
			}
		}
		if r.Err != nil || s == nil || int(s.Attempt) != attempt {
			n.t.Fatalf("attempt %d: %v, container %+v", attempt, r.Err, s)
		}
		if !ended.IsZero() {
			out = append(out, s.StartedAt.Sub(ended))
		}
		run, err := time.ParseDuration(strings.TrimSuffix(pod.Annotations[criruntime.RunSecondsAnnotation], "s") + "s")
		if err != nil {
			n.t.Fatal(err)
		}
		for pause(n.t.Context(), run); s.State != container.Exited; {
			pause(n.t.Context(), 10*time.Millisecond)
			s = n.status(pod).Latest("c")
		}
		ended = s.FinishedAt
		attempt++
	}
	return out
}

func seconds(in []time.Duration) []int {
	out := make([]int, len(in))
	for i, d := range in {
		out[i] = int((d + 200*time.Millisecond) / time.Second)
	}
	return out
}

func TestRestartsFollowTheSchedule(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, kuberuntime.Config{RootDir: t.TempDir()})
		pod := crasher()
		got := seconds(n.offsets(pod, 10, func(int) {}))
		if diff := cmp.Diff(got, []int{0, 10, 20, 40, 80, 160, 300, 300, 300}); diff != "" {
			t.Errorf("restarts after each end (-got +want):\n%s", diff)
		}
		if !n.rec.has("Warning BackOff Back-off restarting failed container c in pod p_ns(uid-p)") {
			t.Error("no BackOff Event")
		}
		if c := n.status(pod).Latest("c"); c.RestartCount != 9 {
			t.Errorf("restart count %d, want 9", c.RestartCount)
		}
	})
}

func TestOffsetsFromTheFirstStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, kuberuntime.Config{})
		pod := with(crasher(), criruntime.RunSecondsAnnotation, "0")
		offsets, at := []int{0}, time.Duration(0)
		for _, after := range n.offsets(pod, 7, func(int) {}) {
			at += after
			offsets = append(offsets, seconds([]time.Duration{at})...)
		}
		if diff := cmp.Diff(offsets, []int{0, 0, 10, 30, 70, 150, 310}); diff != "" {
			t.Errorf("starts of a container that ends at once (-got +want):\n%s", diff)
		}
	})
}

func TestTheScheduleSurvivesAgentsThatAreKilled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, kuberuntime.Config{RootDir: t.TempDir()})
		got := seconds(n.offsets(crasher(), 9, func(int) { n.restart() }))
		if diff := cmp.Diff(got, []int{0, 10, 20, 40, 80, 160, 300, 300}); diff != "" {
			t.Errorf("with a new agent at every sync (-got +want):\n%s", diff)
		}
	})
}

func TestWithoutItsFileTheScheduleIsRebuilt(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(t *testing.T, file string){
		"the file is gone": func(t *testing.T, file string) {
			t.Helper()
			if err := os.Remove(file); err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
		},
		"the file is corrupt": func(t *testing.T, file string) {
			t.Helper()
			if err := os.WriteFile(file, []byte("\x00\x00"), 0o600); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				dir := t.TempDir()
				n := newNode(t, kuberuntime.Config{RootDir: dir})
				got := seconds(n.offsets(crasher(), 8, func(attempt int) {
					if attempt == 3 || attempt == 5 {
						damage(t, filepath.Join(dir, "crashloop.json"))
						n.restart()
					}
				}))
				if diff := cmp.Diff(got, []int{0, 10, 20, 40, 80, 160, 300}); diff != "" {
					t.Errorf("(-got +want):\n%s", diff)
				}
			})
		})
	}
}

func TestALongRunResets(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, kuberuntime.Config{RootDir: t.TempDir()})
		pod := with(newPod("p", corev1.RestartPolicyAlways, "c"), criruntime.RunSecondsAnnotation, "599s")
		if got := seconds(n.offsets(pod, 4, func(int) {})); !cmp.Equal(got, []int{0, 10, 20}) {
			t.Errorf("runs of 599 s: %v, want 0 10 20", got)
		}
		pod = with(newPod("q", corev1.RestartPolicyAlways, "c"), criruntime.RunSecondsAnnotation, "601s")
		if got := seconds(n.offsets(pod, 4, func(int) {})); !cmp.Equal(got, []int{0, 0, 0}) {
			t.Errorf("runs of 601 s: %v, want 0 0 0", got)
		}
	})
}

func TestTheNodesMaximumCapsTheDelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, kuberuntime.Config{CrashLoop: kuberuntime.Backoff{Max: 2 * time.Second}})
		if got := seconds(n.offsets(crasher(), 5, func(int) {})); !cmp.Equal(got, []int{0, 2, 2, 2}) {
			t.Errorf("%v, want 0 2 2 2", got)
		}
	})
}

func TestANewImageResetsTheDelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, kuberuntime.Config{RootDir: t.TempDir()})
		pod := crasher()
		n.offsets(pod, 4, func(int) {})
		if r := n.sync(pod); r.Waiting["c"].Reason != kuberuntime.ReasonCrashLoopBackOff {
			t.Fatalf("not in back-off: %+v", r)
		}
		pod.Spec.Containers[0].Image = "app:2"
		if r := n.sync(pod); r.Err != nil || !r.Changed {
			t.Errorf("with another image: %+v", r)
		}
	})
}

// Upstream's three rows of TestDoBackOff; each wait is told by its expiry and an Event.
func TestDoBackOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, kuberuntime.Config{CrashLoop: kuberuntime.Backoff{Initial: time.Second, Max: time.Minute}})
		pod := crasher()
		n.mustSync(pod)
		if r := n.sync(pod); r.Err != nil || r.Changed {
			t.Errorf("running: %+v, want nothing", r)
		}
		pause(t.Context(), 1500*time.Millisecond)
		if r := n.sync(pod); r.Err != nil || !r.Changed {
			t.Errorf("exited, no entry: %+v, want a restart", r)
		}
		pause(t.Context(), 1500*time.Millisecond)
		r := n.sync(pod)
		b, ok := errors.AsType[*kuberuntime.BackoffError](r.Err)
		ended := n.status(pod).Latest("c").FinishedAt
		if !ok || !b.Expiry.Equal(ended.Add(time.Second)) || !b.BackoffUntil().Equal(b.Expiry) {
			t.Fatalf("exited, entry: %v, want back-off until the exit + 1 s", r.Err)
		}
		n.sync(pod)
		if told := n.rec.count("Warning BackOff"); told != 2 {
			t.Errorf("%d BackOff Events after two syncs that waited", told)
		}
		want := kuberuntime.WaitReason{
			Reason: "CrashLoopBackOff", Message: "back-off 1s restarting failed container=c pod=p_ns(uid-p)",
		}
		if got := n.m.WaitReasons(pod.UID)["c"]; got != want {
			t.Errorf("waits as %+v, want %+v", got, want)
		}
		seen := n.status(pod)
		n.rt.SetDown(true)
		if r := n.m.SyncPod(t.Context(), pod, seen, kuberuntime.Inputs{}); r.Err == nil || n.m.WaitReasons(pod.UID)["c"] != want {
			t.Errorf("with the runtime away: %v, waits as %v", r.Err, n.m.WaitReasons(pod.UID))
		}
		n.rt.SetDown(false)
		pause(t.Context(), time.Second)
		n.mustSync(pod)
		if got := n.m.WaitReasons(pod.UID); len(got) != 0 {
			t.Errorf("waits as %v after it was started", got)
		}
	})
}

// A Reset below the maximum, as tests shorten it, must not end a wait.
func TestCollectionKeepsADelayThatIsWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, kuberuntime.Config{})
		pod := with(newPod("p", corev1.RestartPolicyAlways, "c"), criruntime.RunSecondsAnnotation, "400s")
		n.offsets(pod, 8, func(int) {})
		pause(t.Context(), 250*time.Second) // 650 s after the last start, in a wait of 300 s
		if err := n.m.CollectGarbage(t.Context(), func(types.UID) bool { return true }, false); err != nil {
			t.Fatal(err)
		}
		if r := n.sync(pod); r.Waiting["c"].Reason != kuberuntime.ReasonCrashLoopBackOff || !strings.Contains(r.Waiting["c"].Message, "back-off 5m0s") {
			t.Errorf("%+v, want the wait to go on", r)
		}
	})
}
