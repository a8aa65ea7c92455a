package kuberuntime_test

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/core/probe"
	"github.com/deltaplane/deltaplane/services/nodeagent/container"
	"github.com/deltaplane/deltaplane/services/nodeagent/kuberuntime"
)

func TestDecisionsOfComputePodActionsWithProbes(t *testing.T) {
	t.Parallel()
	type found = map[string]kuberuntime.Verdict
	dead, late, fine := kuberuntime.Verdict{Started: true, Failed: probe.Liveness}, kuberuntime.Verdict{Failed: probe.Startup}, kuberuntime.Verdict{Started: true}
	own := func(policy corev1.ContainerRestartPolicy) func(*corev1.Pod) { return ruled(policy, "") }
	starts := func(pod *corev1.Pod) {
		for i := range pod.Spec.InitContainers {
			pod.Spec.InitContainers[i].StartupProbe = &corev1.Probe{}
		}
	}
	check(t, []decision{
		{name: "failed liveness, Always", policy: always, observed: "a=R b=R c=R", probes: found{"a": fine, "b": dead}, want: "stop[b] start[1]"},
		{name: "failed liveness, OnFailure", policy: onFailure, observed: "a=R b=R c=R", probes: found{"b": dead}, want: "stop[b] start[1]"},
		{name: "failed liveness, Never", policy: never, observed: "a=R b=R c=R", probes: found{"b": dead}, want: "stop[b]"},
		{name: "failed liveness, Never, alone", policy: never, observed: "a=E0 b=R c=E0", probes: found{"b": dead}, want: "kill-pod"},
		{name: "failed liveness, Never but Always of its own", policy: never, pod: own("Always"), observed: "a=R b=R c=R", probes: found{"a": dead}, want: "stop[a] start[0]"},
		{name: "failed liveness, Always but Never of its own", policy: always, pod: own("Never"), observed: "a=R b=R c=R", probes: found{"a": dead}, want: "stop[a]"},
		{name: "failed startup", policy: always, observed: "a=R b=R c=R", probes: found{"a": late}, want: "stop[a] start[0]"},
		{name: "failed, and ended since", policy: never, observed: "a=E1 b=R c=R", probes: found{"a": dead}, want: ""},
		{name: "failed, and its definition changed: it starts whatever the policy", policy: never, observed: "a=R! b=R c=R", probes: found{"a": dead}, want: "stop[a] start[0]"},
		{name: "a sidecar that has not started holds up the next", policy: always, inits: "i0* i1*", pod: starts, observed: "i0=R", want: ""},
		{name: "a sidecar that has started", policy: always, inits: "i0* i1*", pod: starts, observed: "i0=R", probes: found{"i0": fine}, want: "init[1]"},
		{name: "the last sidecar has not started: no container is", policy: always, inits: "i0* i1*", pod: starts, observed: "i1=R i0=R", probes: found{"i0": fine}, want: ""},
		{name: "a sidecar failed its startup", policy: always, inits: "i0* i1*", pod: starts, observed: "i0=R", probes: found{"i0": late}, want: "stop[i0] init[0]"},
		{name: "a sidecar failed its liveness", policy: never, inits: "i0*", observed: "i0=R a=R b=R c=R", probes: found{"i0": dead}, want: "stop[i0] init[0]"},
	})
}

func TestAContainerThatFailsAProbeEndsWithinTheProbesGrace(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		kind probe.Kind
		mod  func(*corev1.Container)
		want time.Duration
		text string
	}{
		{"the liveness probe's", probe.Liveness, func(c *corev1.Container) { c.LivenessProbe.TerminationGracePeriodSeconds = new(int64(5)) }, 5 * time.Second, "Container a failed liveness probe, will be restarted"},
		{"the startup probe's", probe.Startup, func(c *corev1.Container) { c.StartupProbe.TerminationGracePeriodSeconds = new(int64(7)) }, 7 * time.Second, "Container a failed startup probe, will be restarted"},
		{"the pod's", probe.Liveness, func(c *corev1.Container) { c.StartupProbe.TerminationGracePeriodSeconds = new(int64(7)) }, 30 * time.Second, "Container a failed liveness probe"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, kuberuntime.Config{})
				pod := stubborn("p")
				pod.Spec.TerminationGracePeriodSeconds = new(int64(30))
				c := &pod.Spec.Containers[0]
				c.LivenessProbe, c.StartupProbe = &corev1.Probe{}, &corev1.Probe{}
				tc.mod(c)
				n.mustSync(pod)
				status, start := n.status(pod), time.Now()
				r := n.m.SyncPod(t.Context(), pod, status, kuberuntime.Inputs{Probes: kuberuntime.Probes{status.Latest("a").ID: {Failed: tc.kind}}})
				if took := time.Since(start).Truncate(100 * time.Millisecond); r.Err != nil || took != tc.want {
					t.Errorf("the restart took %v, %v: want %v", took, r.Err, tc.want)
				}
				if got := n.state(pod); got != "a/0:exited(137) a/1:running b/0:running" {
					t.Errorf("%q, want a alone to be restarted", got)
				}
				if !n.rec.has("Killing " + tc.text) {
					t.Errorf("no Event says %q: %q", tc.text, n.rec.events)
				}
				if n.status(pod).Latest("a").State != container.Running {
					t.Error("a does not run")
				}
			})
		})
	}
}
