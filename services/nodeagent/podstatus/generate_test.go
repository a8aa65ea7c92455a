package podstatus_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/deltaplane/deltaplane/services/nodeagent/container"
	"github.com/deltaplane/deltaplane/services/nodeagent/podstatus"
)

// observed reads "A:run B:exit1 A:exit0": instances of containers in sandbox s0, newest first, the
// attempts counted down per name; new is a created one, lost an unknown one. The words "ready" and
// "dead" are sandboxes.
func observed(words string) *container.PodStatus {
	s := &container.PodStatus{UID: "u1", At: epoch}
	attempts := map[string]int{}
	for word := range strings.FieldsSeq(words) {
		if name, _, ok := strings.Cut(word, ":"); ok {
			attempts[name]++
		}
	}
	for i, word := range strings.Fields(words) {
		name, state, ok := strings.Cut(word, ":")
		if !ok {
			sandbox := container.Sandbox{ID: fmt.Sprintf("s%d", len(s.Sandboxes)), Ready: word == "ready"}
			s.Sandboxes = append(s.Sandboxes, container.SandboxStatus{Sandbox: sandbox})
			if word == "ready" && s.IPs == nil {
				s.IPs = []string{"10.0.0.7"}
				s.Sandboxes[len(s.Sandboxes)-1].IPs = s.IPs
			}
			continue
		}
		attempts[name]--
		n := attempts[name]
		c := container.Status{Container: container.Container{
			ID: fmt.Sprintf("%s%d", name, n), Name: name, SandboxID: "s0", Image: "img", ImageRef: "img@1", Attempt: uint32(n), CreatedAt: epoch.Add(-time.Duration(i) * time.Minute),
		}, RestartCount: n, StartedAt: epoch}
		switch state {
		case "run":
			c.State = container.Running
		case "new":
			c.State = container.Created
		case "lost":
			c.State = container.Unknown
		default:
			c.State, c.FinishedAt = container.Exited, epoch.Add(time.Second)
			c.Reason = "Error"
			_, _ = fmt.Sscanf(state, "exit%d", &c.ExitCode)
			if c.ExitCode == 0 {
				c.Reason = "Completed"
			}
		}
		s.Containers = append(s.Containers, c)
	}
	return s
}

// short tells a status in words: the phase, then each container as state/last termination/restarts.
func short(s corev1.PodStatus) string {
	state := func(c corev1.ContainerState) string {
		switch {
		case c.Running != nil:
			return "run"
		case c.Terminated != nil:
			return fmt.Sprintf("%s%d", c.Terminated.Reason, c.Terminated.ExitCode)
		case c.Waiting != nil:
			return "wait=" + c.Waiting.Reason
		default:
			return "-"
		}
	}
	out := []string{string(s.Phase)}
	for _, list := range [][]corev1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses} {
		for _, c := range list {
			ready := ""
			if c.Ready {
				ready = " ready"
			}
			out = append(out, fmt.Sprintf("%s:%s/%s/%d%s", c.Name, state(c.State), state(c.LastTerminationState), c.RestartCount, ready))
		}
	}
	return strings.Join(out, ", ")
}

func TestConvertToAPIContainerStatuses(t *testing.T) {
	t.Parallel()
	const always, never, onFailure = corev1.RestartPolicyAlways, corev1.RestartPolicyNever, corev1.RestartPolicyOnFailure
	for _, tc := range []struct {
		name          string
		policy        corev1.RestartPolicy
		init, regular string
		last          string // statuses before
		seen          string // what the runtime has
		waiting       map[string]podstatus.Reason
		deleted       bool
		want          string
	}{
		{"nothing yet", always, "", "A B", "", "", nil, false, "Pending, A:wait=ContainerCreating/-/0, B:wait=ContainerCreating/-/0"},
		{"nothing yet, with init containers", always, "X", "A", "", "ready", nil, false, "Pending, X:wait=PodInitializing/-/0, A:wait=PodInitializing/-/0"},
		{"all run", always, "", "A B", "", "ready A:run B:run", nil, false, "Running, A:run/-/0 ready, B:run/-/0 ready"},
		{"created but not started", always, "", "A", "", "ready A:new", nil, false, "Pending, A:wait=/-/0"},
		{"an init container runs", always, "X", "A", "", "ready X:run", nil, false, "Pending, X:run/-/0, A:wait=PodInitializing/-/0"},
		{"init container done", always, "X", "A", "", "ready A:run X:exit0", nil, false, "Running, X:Completed0/-/0 ready, A:run/-/0 ready"},
		{"init container failed permanently", never, "X", "A", "", "ready X:exit3", nil, false, "Failed, X:Error3/-/0, A:wait=PodInitializing/-/0"},
		{"init container failed and waits", always, "X", "A", "", "ready X:exit3", map[string]podstatus.Reason{"X": {"CrashLoopBackOff", "back-off 10s"}}, false, "Pending, X:wait=CrashLoopBackOff/Error3/0, A:wait=PodInitializing/-/0"},
		{"no current status, with previous statuses and deletion", always, "", "A B", "A:run B:run", "ready", nil, true, "Running, A:wait=ContainerCreating/ContainerStatusUnknown137/0, B:wait=ContainerCreating/ContainerStatusUnknown137/0"},
		{"no current status, with previous statuses and no deletion", always, "", "A B", "A:run B:run", "ready", nil, false, "Running, A:wait=ContainerCreating/ContainerStatusUnknown137/1, B:wait=ContainerCreating/ContainerStatusUnknown137/1"},
		{"vanished while it ran, and never to run twice", never, "", "A", "A:run", "", nil, false, "Failed, A:wait=ContainerCreating/ContainerStatusUnknown137/1"},
		{"ended before and gone since", never, "", "A", "A:ok", "", nil, false, "Succeeded, A:0/-/0"},
		{"a crash loop", always, "", "A", "", "ready A:exit1 A:exit2 A:exit3", map[string]podstatus.Reason{"A": {"CrashLoopBackOff", "back-off 20s"}}, false, "Running, A:wait=CrashLoopBackOff/Error1/2"},
		{"about to be restarted, no reason known", always, "", "A", "", "ready A:exit1", nil, false, "Running, A:Error1/-/0"},
		{"runs again", always, "", "A", "", "ready A:run A:exit2 A:exit3", nil, false, "Running, A:run/Error2/2 ready"},
		{"runs again, the dead one was collected", always, "", "A", "A:fail", "ready A:run", nil, false, "Running, A:run/-1/0 ready"},
		{"an image cannot be pulled", always, "", "A B", "", "ready B:run", map[string]podstatus.Reason{"A": {"ErrImagePull", "no such image"}}, false, "Pending, A:wait=ErrImagePull/-/0, B:run/-/0 ready"},
		{"a reason of before does not hide a container that runs", always, "", "A", "", "ready A:run", map[string]podstatus.Reason{"A": {"CrashLoopBackOff", ""}}, false, "Running, A:run/-/0 ready"},
		{"a reason does not hide one that is done", onFailure, "", "A", "", "ready A:exit0", map[string]podstatus.Reason{"A": {"CrashLoopBackOff", ""}}, false, "Succeeded, A:Completed0/-/0"},
		{"a reason does not hide one that is being deleted", always, "", "A", "", "ready A:exit1", map[string]podstatus.Reason{"A": {"CrashLoopBackOff", ""}}, true, "Running, A:Error1/-/0"},
		{"unknown to the runtime while it ran", always, "", "A", "A:run", "ready A:lost", nil, false, "Running, A:ContainerStatusUnknown137/-/0"},
		{"unknown to the runtime from the start", always, "", "A", "", "ready A:lost", nil, false, "Pending, A:wait=/-/0"},
		{"init status lost, the pod has been initialized", always, "X", "A", "", "ready A:run", nil, false, "Running, X:Completed0/-/0 ready, A:run/-/0 ready"},
		{"sidecar status lost, the pod has been initialized", always, "+X", "A", "", "ready A:run", nil, false, "Pending, X:wait=PodInitializing/-/0, A:run/-/0 ready"},
		{"a sidecar runs", always, "+X", "A", "", "ready A:run X:run", nil, false, "Running, X:run/-/0 ready, A:run/-/0 ready"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			pod := spec(tc.policy, tc.init, tc.regular)
			pod.Status.ContainerStatuses = statuses(t, tc.last)
			if tc.deleted {
				pod.DeletionTimestamp = new(at(0))
			}
			before := pod.DeepCopy()
			got := podstatus.Generate(podstatus.Input{Pod: pod, Runtime: observed(tc.seen), Waiting: tc.waiting, Now: epoch})
			if s := short(got); s != tc.want {
				t.Errorf("status is\n%s, want\n%s", s, tc.want)
			}
			if diff := cmp.Diff(before, pod); diff != "" {
				t.Errorf("Generate changed its input: %s", diff)
			}
			again := podstatus.Generate(podstatus.Input{Pod: pod, Last: &got, Runtime: observed(tc.seen), Waiting: tc.waiting, Now: epoch.Add(time.Hour)})
			if diff := cmp.Diff(got, again); diff != "" {
				t.Errorf("the same observation made another status (-first +second):\n%s", diff)
			}
		})
	}
}

func TestRestartCountsNeverGoBack(t *testing.T) {
	t.Parallel()
	pod := spec(corev1.RestartPolicyAlways, "", "A")
	last := corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "A", RestartCount: 5, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, ContainerID: "cri://old"}}}
	for _, seen := range []string{"ready A:run", "ready A:exit1", "ready", ""} {
		got := podstatus.Generate(podstatus.Input{Pod: pod, Last: &last, Runtime: observed(seen), Now: epoch})
		if n := got.ContainerStatuses[0].RestartCount; n < 5 {
			t.Errorf("observation %q: %d restarts, want at least the 5 of before", seen, n)
		}
	}
}

func TestGenerateAPIPodStatusPhases(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name              string
		api, last         corev1.PodStatus
		seen              string
		terminal          bool
		failed            *podstatus.Reason
		phase             corev1.PodPhase
		reason, condition string
	}{
		{"terminal phase cannot be changed (apiserver previous is succeeded)", corev1.PodStatus{Phase: "Succeeded"}, corev1.PodStatus{}, "ready A:run", false, nil, "Succeeded", "", "PodReadyToStartContainers=True Initialized=True!PodCompleted Ready=False!PodCompleted ContainersReady=False!PodCompleted PodScheduled=True"},
		{"terminal phase from previous status must remain terminal", corev1.PodStatus{Phase: "Running"}, corev1.PodStatus{Phase: "Failed", Reason: "Test"}, "ready A:run", false, nil, "Failed", "Test", ""},
		{"running can revert to pending", corev1.PodStatus{Phase: "Running"}, corev1.PodStatus{Phase: "Running"}, "ready", false, nil, "Pending", "", "PodReadyToStartContainers=True Initialized=True Ready=False!ContainersNotReady ContainersReady=False!ContainersNotReady PodScheduled=True"},
		{"reason and message are preserved when phase doesn't change", corev1.PodStatus{Phase: "Pending", Reason: "Test"}, corev1.PodStatus{Phase: "Pending", Reason: "Test"}, "", false, nil, "Pending", "Test", ""},
		{"reason and message are cleared when phase changes", corev1.PodStatus{Phase: "Pending", Reason: "Test"}, corev1.PodStatus{Phase: "Pending", Reason: "Test"}, "ready A:run", false, nil, "Running", "", "PodReadyToStartContainers=True Initialized=True Ready=True ContainersReady=True PodScheduled=True"},
		{"refused before anything began", corev1.PodStatus{Phase: "Pending"}, corev1.PodStatus{}, "", false, &podstatus.Reason{Reason: "UnsupportedPodSpec", Message: "spec.hostUsers"}, "Failed", "UnsupportedPodSpec", "PodReadyToStartContainers=False Initialized=True Ready=False!UnknownContainerStatuses ContainersReady=False!UnknownContainerStatuses PodScheduled=True"},
		{"evicted while it ran", corev1.PodStatus{Phase: "Running"}, corev1.PodStatus{}, "ready A:run", false, &podstatus.Reason{Reason: "Evicted"}, "Failed", "Evicted", "PodReadyToStartContainers=True Initialized=True Ready=False!PodFailed ContainersReady=False!PodFailed PodScheduled=True"},
		{"evicted after it had succeeded", corev1.PodStatus{Phase: "Succeeded"}, corev1.PodStatus{}, "A:exit0", true, &podstatus.Reason{Reason: "Evicted"}, "Succeeded", "", ""},
		{"ended by the worker", corev1.PodStatus{Phase: "Running"}, corev1.PodStatus{}, "dead A:exit137", true, nil, "Failed", "", ""},
		{"the conditions of others stay", corev1.PodStatus{Phase: "Running", Conditions: conditions("DisruptionTarget=True!Eviction gate=False")}, corev1.PodStatus{}, "ready A:run", false, nil, "Running", "", "DisruptionTarget=True!Eviction gate=False PodReadyToStartContainers=True Initialized=True Ready=True ContainersReady=True PodScheduled=True"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			pod := spec(corev1.RestartPolicyAlways, "", "A")
			pod.Status = tc.api
			in := podstatus.Input{Pod: pod, Runtime: observed(tc.seen), Terminal: tc.terminal, Failed: tc.failed, Now: epoch}
			if tc.last.Phase != "" {
				in.Last = &tc.last
			}
			got := podstatus.Generate(in)
			if got.Phase != tc.phase || got.Reason != tc.reason {
				t.Errorf("phase %s, reason %q; want %s, %q", got.Phase, got.Reason, tc.phase, tc.reason)
			}
			if c := told(got.Conditions); tc.condition != "" && c != tc.condition {
				t.Errorf("conditions are\n%s, want\n%s", c, tc.condition)
			}
		})
	}
}

func TestGeneratePodReadyCondition(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, conditions, want string }{
		{"no gate's condition is there", "", "ReadinessGatesNotReady"},
		{"one is false", "gate1=True gate2=False", "ReadinessGatesNotReady"},
		{"all are true", "gate1=True gate2=True", ""},
	} {
		pod := spec(corev1.RestartPolicyAlways, "", "A")
		pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "gate1"}, {ConditionType: "gate2"}}
		pod.Status.Conditions = conditions(tc.conditions)
		s := podstatus.Generate(podstatus.Input{Pod: pod, Runtime: observed("ready A:run"), Now: epoch})
		for _, c := range s.Conditions {
			if c.Type == corev1.PodReady && (c.Reason != tc.want || (c.Status == corev1.ConditionTrue) != (tc.want == "")) {
				t.Errorf("%s: Ready is %s, %q; want reason %q", tc.name, c.Status, c.Reason, tc.want)
			}
		}
	}
}

func TestGeneratePodReadyToStartContainersCondition(t *testing.T) {
	t.Parallel()
	for seen, want := range map[string]corev1.ConditionStatus{
		"": "False", "dead": "False", "ready": "True", "ready dead": "True", "dead ready": "False", "ready ready": "False",
	} {
		s := podstatus.Generate(podstatus.Input{Pod: spec(corev1.RestartPolicyAlways, "", "A"), Runtime: observed(seen), Now: epoch})
		if got := s.Conditions[0]; got.Type != corev1.PodReadyToStartContainers || got.Status != want {
			t.Errorf("sandboxes %q: %s is %s, want %s", seen, got.Type, got.Status, want)
		}
	}
}

func TestTransitionTimesMoveWithTheStatusOnly(t *testing.T) {
	t.Parallel()
	pod := spec(corev1.RestartPolicyAlways, "", "A")
	pod.Generation = 3
	first := podstatus.Generate(podstatus.Input{Pod: pod, Runtime: observed("ready"), Now: epoch})
	second := podstatus.Generate(podstatus.Input{Pod: pod, Last: &first, Runtime: observed("ready A:run"), Now: epoch.Add(time.Minute)})
	for i, c := range second.Conditions {
		moved := !c.LastTransitionTime.Equal(&first.Conditions[i].LastTransitionTime)
		if changed := c.Status != first.Conditions[i].Status; moved != changed || c.ObservedGeneration != 3 {
			t.Errorf("%s: changed %v, its time moved %v, generation %d", c.Type, changed, moved, c.ObservedGeneration)
		}
	}
	if !second.StartTime.Equal(first.StartTime) || second.ObservedGeneration != 3 {
		t.Errorf("start %v after %v, observed generation %d", second.StartTime, first.StartTime, second.ObservedGeneration)
	}
}

func TestGenerateAPIPodStatusPodIPs(t *testing.T) {
	t.Parallel()
	hosts := []string{"192.168.0.1", "fd01::1"}
	ips := func(s corev1.PodStatus) string {
		var out []string
		for _, ip := range s.PodIPs {
			out = append(out, ip.IP)
		}
		return s.PodIP + "|" + strings.Join(out, ",")
	}
	pod := spec(corev1.RestartPolicyAlways, "", "A")
	s := podstatus.Generate(podstatus.Input{Pod: pod, Runtime: observed("ready A:run"), HostIPs: hosts, Now: epoch})
	if got := ips(s); got != "10.0.0.7|10.0.0.7" || s.HostIP != hosts[0] || len(s.HostIPs) != 2 {
		t.Errorf("addresses %s, host %s %v", got, s.HostIP, s.HostIPs)
	}
	// A sandbox that ended does not take the addresses with it, not even over a restart of the
	// agent.
	pod.Status = s
	s = podstatus.Generate(podstatus.Input{Pod: pod, Runtime: observed("dead A:exit0"), HostIPs: hosts, Now: epoch})
	if got := ips(s); got != "10.0.0.7|10.0.0.7" {
		t.Errorf("addresses %s after the sandbox's end, want those of before", got)
	}
	pod.Spec.HostNetwork = true
	s = podstatus.Generate(podstatus.Input{Pod: pod, Runtime: observed("ready A:run"), HostIPs: hosts, Now: epoch})
	if got := ips(s); got != "192.168.0.1|192.168.0.1,fd01::1" {
		t.Errorf("addresses %s on the node's network, want the node's", got)
	}
}

func TestQOS(t *testing.T) {
	t.Parallel()
	list := func(cpu, memory string) corev1.ResourceList {
		out := corev1.ResourceList{}
		for name, q := range map[corev1.ResourceName]string{corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory} {
			if q != "" {
				out[name] = resource.MustParse(q)
			}
		}
		return out
	}
	for _, tc := range []struct {
		requests, limits corev1.ResourceList
		want             corev1.PodQOSClass
	}{
		{nil, nil, corev1.PodQOSBestEffort},
		{list("1", ""), nil, corev1.PodQOSBurstable},
		{list("1", "1Gi"), list("1", "1Gi"), corev1.PodQOSGuaranteed},
		{nil, list("1", "1Gi"), corev1.PodQOSGuaranteed},
		{list("1", "1Gi"), list("2", "1Gi"), corev1.PodQOSBurstable},
		{list("0", ""), nil, corev1.PodQOSBestEffort},
	} {
		pod := spec(corev1.RestartPolicyAlways, "", "A")
		pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: tc.requests, Limits: tc.limits}
		if got := podstatus.Generate(podstatus.Input{Pod: pod, Now: epoch}).QOSClass; got != tc.want {
			t.Errorf("requests %v, limits %v: %s, want %s", tc.requests, tc.limits, got, tc.want)
		}
	}
}

// Whatever is observed in whatever order: counts grow, ended phases stay, a status is normal.
func TestRandomObservationsKeepTheRules(t *testing.T) {
	t.Parallel()
	states := []string{"run", "new", "lost", "exit0", "exit1", "exit137"}
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 1))
		policy := []corev1.RestartPolicy{corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever}[r.IntN(3)]
		pod := spec(policy, []string{"", "X", "+X", "X +Y"}[r.IntN(4)], "A B")
		var last *corev1.PodStatus
		for step := range 12 {
			words := []string{[]string{"ready", "dead", "ready dead", ""}[r.IntN(4)]}
			for _, name := range []string{"A", "B", "X", "Y", "other"} {
				for range r.IntN(3) {
					words = append(words, name+":"+states[r.IntN(len(states))])
				}
			}
			in := podstatus.Input{Pod: pod, Last: last, Runtime: observed(strings.Join(words, " ")), Now: epoch.Add(time.Duration(step) * time.Minute)}
			if r.IntN(3) == 0 {
				in.Waiting = map[string]podstatus.Reason{"A": {Reason: "CrashLoopBackOff"}, "X": {Reason: "ErrImagePull"}}
			}
			got := podstatus.Generate(in)
			if last != nil {
				if ended := last.Phase == "Failed" || last.Phase == "Succeeded"; ended && got.Phase != last.Phase {
					t.Fatalf("seed %d: phase %s after %s", seed, got.Phase, last.Phase)
				}
				for i, c := range got.ContainerStatuses {
					if c.RestartCount < last.ContainerStatuses[i].RestartCount {
						t.Fatalf("seed %d: restarts of %s fell from %d to %d", seed, c.Name, last.ContainerStatuses[i].RestartCount, c.RestartCount)
					}
				}
			}
			for _, c := range append(got.InitContainerStatuses, got.ContainerStatuses...) {
				if (c.State == corev1.ContainerState{}) {
					t.Fatalf("seed %d: %s has no state", seed, c.Name)
				}
			}
			normal := *got.DeepCopy()
			podstatus.Normalize(pod, &normal)
			if diff := cmp.Diff(got, normal); diff != "" {
				t.Fatalf("seed %d: not normal: %s", seed, diff)
			}
			last = &got
			if r.IntN(4) == 0 { // the agent was started again
				pod.Status, last = got, nil
			}
		}
	}
}
