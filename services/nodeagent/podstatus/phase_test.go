package podstatus_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/services/nodeagent/podstatus"
)

// statuses reads "X:run A:ok": the statuses of containers, by their names. The words are upstream's
// helpers: run (runningState), started (startedState), ok (succeededState, stoppedState), fail
// (failedState), wait, waitok and waitfail (waiting with a last termination), empty (no state at
// all).
func statuses(t *testing.T, words string) []corev1.ContainerStatus {
	t.Helper()
	var out []corev1.ContainerStatus
	for word := range strings.FieldsSeq(words) {
		name, state, _ := strings.Cut(word, ":")
		s := corev1.ContainerStatus{Name: name}
		ended := func(code int32) *corev1.ContainerStateTerminated {
			return &corev1.ContainerStateTerminated{ExitCode: code}
		}
		waiting := &corev1.ContainerStateWaiting{Reason: "whatever"}
		switch state {
		case "run":
			s.State.Running = &corev1.ContainerStateRunning{}
		case "started":
			s.State.Running, s.Started = &corev1.ContainerStateRunning{}, new(true)
		case "ok":
			s.State.Terminated = ended(0)
		case "fail":
			s.State.Terminated = ended(-1)
		case "wait":
			s.State.Waiting = waiting
		case "waitok":
			s.State.Waiting, s.LastTerminationState.Terminated = waiting, ended(0)
		case "waitfail":
			s.State.Waiting, s.LastTerminationState.Terminated = waiting, ended(-1)
		case "empty":
		default:
			t.Fatalf("state %q", state)
		}
		out = append(out, s)
	}
	return out
}

// spec is a pod of init containers (in capitals sidecars have a plus sign) and containers.
func spec(policy corev1.RestartPolicy, init, regular string) *corev1.Pod {
	pod := &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: policy}}
	pod.Name, pod.Namespace, pod.UID, pod.ResourceVersion = "pod", "ns", "u1", "1"
	for name := range strings.FieldsSeq(init) {
		c := corev1.Container{Name: strings.TrimPrefix(name, "+")}
		if name != c.Name {
			c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		}
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
	}
	for name := range strings.FieldsSeq(regular) {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: name})
	}
	return pod
}

func TestPodPhase(t *testing.T) {
	t.Parallel()
	const (
		pending, running, succeeded, failed = corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed
	)
	type row struct {
		name, statuses string
		ended, started bool
		want           corev1.PodPhase
	}
	for _, table := range []struct {
		name          string
		policy        corev1.RestartPolicy
		init, regular string
		rows          []row
	}{
		{"PodPhaseWithRestartAlways", corev1.RestartPolicyAlways, "", "A B", []row{
			{"waiting", "", false, false, pending},
			{"all running", "A:run B:run", false, false, running},
			{"all stopped with restart always", "A:ok B:ok", false, false, running},
			{"all succeeded with restart always, but the pod is terminal", "A:ok B:ok", true, false, succeeded},
			{"all stopped with restart always, but the pod is terminal", "A:ok B:fail", true, false, failed},
			{"mixed state #1 with restart always", "A:run B:ok", false, false, running},
			{"mixed state #2 with restart always", "A:run", false, false, pending},
			{"mixed state #3 with restart always", "A:run B:wait", false, false, pending},
			{"backoff crashloop container with restart always", "A:run B:waitok", false, false, running},
			{"a container without any state", "A:run B:empty", false, false, pending},
		}},
		{"PodPhaseWithRestartAlwaysInitContainers", corev1.RestartPolicyAlways, "X", "A B", []row{
			{"empty, waiting", "", false, false, pending},
			{"init container running", "X:run", false, false, pending},
			{"init container terminated non-zero", "X:fail", false, false, pending},
			{"init container waiting, terminated zero", "X:waitok", false, false, pending},
			{"init container waiting, terminated non-zero", "X:waitfail", false, false, pending},
			{"init container waiting, not terminated", "X:wait", false, false, pending},
			{"init container succeeded", "X:ok A:run B:run", false, false, running},
		}},
		{"PodPhaseWithRestartAlwaysRestartableInitContainers", corev1.RestartPolicyAlways, "+X", "A B", []row{
			{"empty, waiting", "", false, false, pending},
			{"restartable init container running", "X:run", false, false, pending},
			{"restartable init container stopped", "X:ok", false, false, pending},
			{"restartable init container waiting, terminated zero", "X:waitok", false, false, pending},
			{"restartable init container waiting, terminated non-zero", "X:waitfail", false, false, pending},
			{"restartable init container waiting, not terminated", "X:wait", false, false, pending},
			{"restartable init container started, 1/2 regular container running", "X:started A:run", false, true, pending},
			{"restartable init container started, all regular containers running", "X:started A:run B:run", false, true, running},
			{"restartable init container running, all regular containers running", "X:run A:run B:run", false, true, running},
			{"restartable init container stopped, all regular containers running", "X:ok A:run B:run", false, true, running},
			{"backoff crashloop restartable init container, all regular containers running", "X:waitok A:run B:run", false, true, running},
			{"all regular containers succeeded and restartable init container failed, but the pod is terminal", "X:fail A:ok B:ok", true, true, succeeded},
			{"all regular containers succeeded and restartable init container succeeded, but the pod is terminal", "X:ok A:ok B:ok", true, true, succeeded},
			{"re-initializing the pod after the sandbox is recreated", "X:run A:run B:run", false, false, pending},
		}},
		{"PodPhaseWithRestartAlwaysAndPodHasRun", corev1.RestartPolicyAlways, "X +Y", "A", []row{
			{"all are running", "X:run Y:run A:run", false, false, pending},
			{"regular container is stopped, init containers run", "X:run Y:run A:ok", false, false, pending},
			{"re-created sandbox: init container done, sidecar runs, old regular container stopped", "X:ok Y:run A:ok", false, false, pending},
			{"regular container stopped in this sandbox", "X:ok Y:run A:ok", false, true, running},
			{"all run", "X:ok Y:run A:run", false, true, running},
		}},
		{"PodPhaseWithRestartNever", corev1.RestartPolicyNever, "", "A B", []row{
			{"waiting", "", false, false, pending},
			{"all running with restart never", "A:run B:run", false, false, running},
			{"all succeeded with restart never", "A:ok B:ok", false, false, succeeded},
			{"all failed with restart never", "A:fail B:fail", false, false, failed},
			{"mixed state #1 with restart never", "A:run B:ok", false, false, running},
			{"mixed state #2 with restart never", "A:run", false, false, pending},
			{"one vanished while it ran", "A:ok B:waitfail", false, false, failed},
		}},
		{"PodPhaseWithRestartNeverInitContainers", corev1.RestartPolicyNever, "X", "A B", []row{
			{"empty, waiting", "", false, false, pending},
			{"init container running", "X:run", false, false, pending},
			{"init container terminated non-zero", "X:fail", false, false, failed},
			{"init container waiting, terminated zero", "X:waitok", false, false, pending},
			{"init container waiting, terminated non-zero", "X:waitfail", false, false, failed},
			{"init container waiting, not terminated", "X:wait", false, false, pending},
			{"init container succeeded", "X:ok A:run B:run", false, false, running},
		}},
		{"PodPhaseWithRestartNeverRestartableInitContainers", corev1.RestartPolicyNever, "+X", "A B", []row{
			{"restartable init container failed", "X:fail", false, false, pending},
			{"all regular containers succeeded, restartable init container runs", "X:run A:ok B:ok", false, true, running},
			{"all regular containers succeeded, restartable init container succeeded", "X:ok A:ok B:ok", false, true, succeeded},
			{"all regular containers succeeded, restartable init container failed", "X:fail A:ok B:ok", false, true, succeeded},
			{"a regular container failed", "X:ok A:ok B:fail", false, true, failed},
		}},
		{"PodPhaseWithRestartOnFailure", corev1.RestartPolicyOnFailure, "", "A B", []row{
			{"waiting", "", false, false, pending},
			{"all running with restart onfailure", "A:run B:run", false, false, running},
			{"all succeeded with restart onfailure", "A:ok B:ok", false, false, succeeded},
			{"all failed with restart never", "A:fail B:fail", false, false, running},
			{"all failed, but the pod is terminal", "A:fail B:fail", true, false, failed},
			{"mixed state #1 with restart onfailure", "A:run B:ok", false, false, running},
			{"mixed state #2 with restart onfailure", "A:run", false, false, pending},
			{"mixed state #3 with restart onfailure", "A:run B:wait", false, false, pending},
			{"backoff crashloop container with restart onfailure", "A:run B:waitfail", false, false, running},
		}},
	} {
		for _, r := range table.rows {
			t.Run(table.name+"/"+r.name, func(t *testing.T) {
				t.Parallel()
				pod := spec(table.policy, table.init, table.regular)
				if got := podstatus.Phase(pod, statuses(t, r.statuses), r.ended, r.started); got != r.want {
					t.Errorf("Phase(%s) = %s, want %s", r.statuses, got, r.want)
				}
			})
		}
	}
}
