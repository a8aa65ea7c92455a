package podstatus_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/services/nodeagent/podstatus"
)

// running is the status of a pod whose container A runs.
func running(pod *corev1.Pod) corev1.PodStatus {
	return podstatus.Generate(podstatus.Input{Pod: pod, Runtime: observed("ready A:run"), Now: time.Now()})
}

func ended(pod *corev1.Pod, last corev1.PodStatus) corev1.PodStatus {
	return podstatus.Generate(podstatus.Input{Pod: pod, Last: &last, Runtime: observed("dead A:exit0"), Terminal: true, Now: time.Now()})
}

func wantCalls(t *testing.T, s *server, want ...string) {
	t.Helper()
	if got := s.took(); !slices.Equal(got, want) {
		t.Errorf("calls were %v, want %v", got, want)
	}
}

func TestSyncPod(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pod := spec(corev1.RestartPolicyAlways, "", "A")
		s := newServer(pod)
		m := run(t, s, podstatus.Config{})
		status := running(pod)
		m.Set(pod, status)
		synctest.Wait()
		wantCalls(t, s, "patch") // the version that is known spares the read
		if got := short(s.pod("pod").Status); got != "Running, A:run/-/0 ready" {
			t.Errorf("status is %s", got)
		}
		m.Set(pod, status)
		m.Observe(s.pod("pod"))
		synctest.Wait()
		wantCalls(t, s) // nothing changed, nothing is written
		if got, ok := m.Get(pod.UID); !ok || got.Phase != corev1.PodRunning {
			t.Errorf("Get() = %s, %v", got.Phase, ok)
		}
	})
}

func TestSyncPodIgnoresNotFound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pod := spec(corev1.RestartPolicyAlways, "", "A")
		s := newServer()
		m := run(t, s, podstatus.Config{})
		m.Set(pod, running(pod))
		pass(time.Hour)
		wantCalls(t, s, "patch")
	})
}

func TestSyncPodChecksMismatchedUID(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pod := spec(corev1.RestartPolicyAlways, "", "A")
		other := pod.DeepCopy()
		other.UID = "u2"
		s := newServer(other)
		m := run(t, s, podstatus.Config{})
		m.Set(pod, running(pod))
		m.Finish(pod)
		pass(time.Hour)
		wantCalls(t, s, "patch", "get")
		if got := s.pod("pod"); got.Status.Phase != "" {
			t.Errorf("the pod of the same name has phase %s", got.Status.Phase)
		}
	})
}

func TestStaleUpdates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pod := spec(corev1.RestartPolicyAlways, "", "A")
		s := newServer(pod)
		s.slow = time.Second
		m := run(t, s, podstatus.Config{})
		status := running(pod)
		for i := range 100 {
			status.Message = fmt.Sprint(i)
			m.Set(pod, status)
			if i == 0 {
				synctest.Wait() // the first is being written
			}
		}
		pass(time.Minute)
		wantCalls(t, s, "patch", "patch")
		if got := s.pod("pod").Status.Message; got != "99" {
			t.Errorf("message %s was written last, want the latest", got)
		}
	})
}

func TestConflictIsMerged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pod := spec(corev1.RestartPolicyAlways, "", "A")
		s := newServer(pod)
		m := run(t, s, podstatus.Config{})
		s.change("pod", func(p *corev1.Pod) { p.Status.Conditions = conditions("DisruptionTarget=True!Eviction") })
		m.Set(pod, running(pod))
		synctest.Wait()
		wantCalls(t, s, "patch", "get", "patch")
		got := s.pod("pod").Status
		if !strings.HasPrefix(told(got.Conditions), "DisruptionTarget=True!Eviction ") || got.Phase != corev1.PodRunning {
			t.Errorf("phase %s, conditions %s", got.Phase, told(got.Conditions))
		}
	})
}

func TestLostAnswerIsNotWrittenTwice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pod := spec(corev1.RestartPolicyAlways, "", "A")
		s := newServer(pod)
		s.fault = func(string) (error, bool) { s.fault = nil; return errDown, true }
		m := run(t, s, podstatus.Config{})
		m.Set(pod, running(pod))
		pass(time.Minute)
		wantCalls(t, s, "patch", "get")
	})
}

func TestReconcilePodStatus(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pod := spec(corev1.RestartPolicyAlways, "", "A")
		s := newServer(pod)
		m := run(t, s, podstatus.Config{})
		m.Set(pod, running(pod))
		synctest.Wait()
		s.took()
		// While the node was silent its pods were marked.
		changed := s.change("pod", func(p *corev1.Pod) {
			for i, c := range p.Status.Conditions {
				if c.Type == corev1.PodReady {
					p.Status.Conditions[i].Status = corev1.ConditionFalse
				}
			}
		})
		m.Observe(changed)
		synctest.Wait()
		wantCalls(t, s, "patch")
		if got := told(s.pod("pod").Status.Conditions); !strings.Contains(got, " Ready=True") {
			t.Errorf("conditions %s, want Ready again", got)
		}
		old := changed.DeepCopy()
		old.ResourceVersion = "1"
		m.Observe(old)
		synctest.Wait()
		wantCalls(t, s) // an older version says nothing
	})
}

func TestWritesAreRetriedUntilTheServerIsBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pod := spec(corev1.RestartPolicyAlways, "", "A")
		s := newServer(pod)
		s.fault = func(string) (error, bool) { return errDown, false }
		m := run(t, s, podstatus.Config{})
		m.Set(pod, running(pod))
		pass(time.Hour)
		if n := len(s.took()); n < 100 || n > 140 {
			t.Errorf("%d calls in an hour without an API server, want about one in 30 s", n)
		}
		s.failing(nil)
		pass(30 * time.Second)
		if got := s.pod("pod").Status.Phase; got != corev1.PodRunning {
			t.Errorf("phase %q half a minute after the API server came back", got)
		}
	})
}

func TestTerminalPhaseWaitsForTheContainers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pod := spec(corev1.RestartPolicyNever, "", "A")
		s := newServer(pod)
		m := run(t, s, podstatus.Config{})
		m.Set(pod, running(pod))
		synctest.Wait()
		status, _ := m.Get(pod.UID)
		m.Set(pod, ended(pod, status))
		synctest.Wait()
		if got := s.pod("pod").Status; got.Phase != corev1.PodRunning || got.ContainerStatuses[0].State.Terminated == nil {
			t.Errorf("%s, want the container's end and the phase of before", short(got))
		}
		m.Stopped(pod)
		synctest.Wait()
		if got := s.pod("pod").Status; got.Phase != corev1.PodSucceeded {
			t.Errorf("phase %s after everything stopped", got.Phase)
		}
		m.Set(pod, running(pod))
		synctest.Wait()
		if got := s.pod("pod").Status; got.Phase != corev1.PodSucceeded {
			t.Errorf("phase %s, a pod that ended came back", got.Phase)
		}
	})
}

func TestDeletePod(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name                string
		finished, finalizer bool
		calls               []string
	}{
		{"DeletePodBeforeFinished", false, false, []string{"patch"}},
		{"DeletePodFinished", true, false, []string{"patch", "delete"}},
		{"a finalizer holds it, it is deleted once", true, true, []string{"patch", "delete"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				pod := spec(corev1.RestartPolicyNever, "", "A")
				s := newServer(pod)
				m := run(t, s, podstatus.Config{})
				m.Set(pod, running(pod))
				synctest.Wait()
				s.took()
				deleted := s.change("pod", func(p *corev1.Pod) {
					p.DeletionTimestamp, p.DeletionGracePeriodSeconds = new(at(30)), new(int64(30))
					if tc.finalizer {
						p.Finalizers = []string{"batch.kubernetes.io/job-tracking"}
					}
				})
				m.Observe(deleted)
				status, _ := m.Get(pod.UID)
				m.Set(deleted, ended(deleted, status))
				if tc.finished {
					m.Finish(deleted)
				}
				synctest.Wait()
				if p := s.pod("pod"); p != nil {
					m.Observe(p)
				}
				pass(time.Minute)
				wantCalls(t, s, tc.calls...)
				if gone := s.pod("pod") == nil; gone != (tc.finished && !tc.finalizer) {
					t.Errorf("gone is %v", gone)
				}
			})
		})
	}
}

func TestPodDeletedAfterItFinishedIsDeletedForGood(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pod := spec(corev1.RestartPolicyNever, "", "A")
		s := newServer(pod)
		m := run(t, s, podstatus.Config{})
		m.Set(pod, running(pod))
		m.Finish(pod)
		synctest.Wait()
		s.took()
		s.failing(func(string) (error, bool) {
			s.fault = nil
			return refusal(http.StatusInternalServerError, "InternalError"), false
		})
		m.Observe(s.change("pod", func(p *corev1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = new(at(30)), new(int64(30))
		}))
		pass(time.Minute)
		wantCalls(t, s, "delete", "get", "delete")
	})
}

func TestTerminatePodDefaultUnknownStatus(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, init, last, want string }{
		{"last termination state set", "", "A:waitok", "Failed, A:ContainerStatusUnknown137/0/0"},
		{"no previous state", "", "A:run", "Failed, A:ContainerStatusUnknown137/-/0"},
		{"never started, no init containers", "", "A:wait", "Failed, A:ContainerStatusUnknown137/-/0"},
		{"uninitialized pod defaults the first init container", "X", "X:wait A:wait", "Failed, X:ContainerStatusUnknown137/-/0, A:wait=whatever/-/0"},
		{"uninitialized pod defaults only the first init container", "X Y", "X:wait Y:wait A:wait", "Failed, X:ContainerStatusUnknown137/-/0, Y:wait=whatever/-/0, A:wait=whatever/-/0"},
		{"uninitialized pod defaults gaps", "X Y Z", "X:wait Y:waitfail Z:wait A:wait", "Failed, X:ContainerStatusUnknown137/-/0, Y:ContainerStatusUnknown137/-1/0, Z:wait=whatever/-/0, A:wait=whatever/-/0"},
		{"failed last container is uninitialized", "X", "X:waitfail A:wait", "Failed, X:ContainerStatusUnknown137/-1/0, A:wait=whatever/-/0"},
		{"successful last container is initialized", "X", "X:ok A:wait", "Failed, X:0/-/0, A:ContainerStatusUnknown137/-/0"},
		{"running container proves initialization", "X", "X:wait A:run", "Failed, X:ContainerStatusUnknown137/-/0, A:ContainerStatusUnknown137/-/0"},
		{"evidence of terminated container proves initialization", "X", "X:wait A:ok", "Failed, X:ContainerStatusUnknown137/-/0, A:0/-/0"},
		{"a sidecar that runs proves initialization", "+X", "X:started A:wait", "Failed, X:ContainerStatusUnknown137/-/0, A:ContainerStatusUnknown137/-/0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				pod := spec(corev1.RestartPolicyAlways, tc.init, "A")
				for _, c := range statuses(t, tc.last) {
					if c.Name != "A" {
						pod.Status.InitContainerStatuses = append(pod.Status.InitContainerStatuses, c)
					} else {
						pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, c)
					}
				}
				pod.Status.Phase = corev1.PodRunning
				s := newServer(pod)
				m := run(t, s, podstatus.Config{})
				m.Finish(pod)
				synctest.Wait()
				if got := short(s.pod("pod").Status); got != tc.want {
					t.Errorf("status is\n%s, want\n%s", got, tc.want)
				}
			})
		})
	}
}

func TestContainersDoNotLeaveTheirEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pod := spec(corev1.RestartPolicyNever, "", "A B")
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: statuses(t, "A:ok B:run")}
		s := newServer(pod)
		m := run(t, s, podstatus.Config{})
		m.Set(pod, corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: statuses(t, "A:run B:run")})
		synctest.Wait()
		wantCalls(t, s)
	})
}

func TestCallsAreBoundedByTheKubeletsLimits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		var pods []*corev1.Pod
		for i := range 500 {
			pod := spec(corev1.RestartPolicyAlways, "", "A")
			pod.Name, pod.UID = fmt.Sprintf("pod-%d", i), types.UID(fmt.Sprint(i))
			pods = append(pods, pod)
			s.pods[pod.Name] = pod.DeepCopy()
		}
		m := run(t, s, podstatus.Config{})
		for _, pod := range pods {
			m.Set(pod, running(pod))
		}
		synctest.Wait()
		if n := len(s.took()); n > 101 {
			t.Errorf("%d calls at once, want a burst of 100", n)
		}
		pass(4 * time.Second)
		if n := len(s.took()); n < 195 || n > 205 {
			t.Errorf("%d calls in 4 s, want 50 a second", n)
		}
		pass(10 * time.Second)
		for _, pod := range pods {
			if s.pod(pod.Name).Status.Phase != corev1.PodRunning {
				t.Fatalf("pod %s has no status", pod.Name)
			}
		}
	})
}

func TestWhatWaitsIsWrittenBeforeTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.slow = 100 * time.Millisecond
		m, err := podstatus.New(podstatus.Config{Writers: 1}, s, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		for i := range 10 {
			pod := spec(corev1.RestartPolicyAlways, "", "A")
			pod.Name, pod.UID = fmt.Sprintf("pod-%d", i), types.UID(fmt.Sprint(i))
			s.pods[pod.Name] = pod.DeepCopy()
			m.Set(pod, running(pod))
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := m.Run(ctx); err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
		if got := len(s.took()); got != 10 {
			t.Errorf("%d of 10 statuses were written before the end", got)
		}
	})
}

func TestAnAbortedManagerWritesNothingMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first, second := spec(corev1.RestartPolicyAlways, "", "A"), spec(corev1.RestartPolicyAlways, "", "A")
		second.Name, second.UID = "second", "uid-second"
		s := newServer(first, second)
		s.slow = time.Second
		m := run(t, s, podstatus.Config{Writers: 1})
		m.Set(first, running(first))
		m.Set(second, running(second))
		synctest.Wait()
		m.Abort()
		m.Set(first, podstatus.Generate(podstatus.Input{Pod: first, Now: time.Now()}))
		pass(time.Minute)
		if got := s.took(); len(got) > 1 {
			t.Errorf("calls %q, want at most the one that was under way", got)
		}
		m.Finish(second)
		pass(time.Minute)
		wantCalls(t, s)
	})
}

func TestForgottenPodsAreNotWritten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pod := spec(corev1.RestartPolicyAlways, "", "A")
		s := newServer(pod)
		s.fault = func(string) (error, bool) { return errDown, false }
		m := run(t, s, podstatus.Config{})
		m.Set(pod, running(pod))
		synctest.Wait()
		m.Forget(pod.UID)
		s.took()
		m.Retain(func(uid types.UID) bool { return false })
		pass(time.Hour)
		wantCalls(t, s)
		if _, ok := m.Get(pod.UID); ok {
			t.Error("a forgotten pod has a status")
		}
	})
}

func TestFaultsOfTheConfigurationAreReportedTogether(t *testing.T) {
	t.Parallel()
	_, err := podstatus.New(podstatus.Config{QPS: -1, Writers: -1, Timeout: -1}, newServer(), slog.New(slog.DiscardHandler))
	for _, want := range []string{"qps", "writers", "timeout"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New() = %v, want it to name %s", err, want)
		}
	}
}
