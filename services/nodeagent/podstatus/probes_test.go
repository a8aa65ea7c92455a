package podstatus_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/core/probe"
	"github.com/deltaplane/deltaplane/services/nodeagent/podstatus"
)

// found is what probes came to by container ID, written "r+ l- s?" in any order.
func found(results map[string]string) func(string, probe.Kind) probe.Result {
	return func(id string, kind probe.Kind) probe.Result {
		letter := strings.ToLower(kind.String()[:1])
		switch {
		case strings.Contains(results[id], letter+"+"):
			return probe.Success
		case strings.Contains(results[id], letter+"-"):
			return probe.Failure
		default:
			return probe.Unknown
		}
	}
}

func TestStartAndReadinessOfAContainerAreWhatItsProbesFound(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, has, found string // kinds of probes it has, and what they found
		before           string // the same of the status before; "" was none
		other            bool   // the status before is that of another instance
		started, ready   bool
	}{
		{name: "no probes", started: true, ready: true},
		{name: "readiness not known", has: "r", started: true},
		{name: "ready", has: "r", found: "r+", started: true, ready: true},
		{name: "not ready", has: "r", found: "r-", started: true},
		{name: "liveness has no part in it", has: "l", found: "l-", started: true, ready: true},
		{name: "start not known", has: "s"},
		{name: "started", has: "s", found: "s+", started: true, ready: true},
		{name: "not started", has: "s", found: "s-"},
		{name: "ready before the start does not count", has: "rs", found: "r+"},
		{name: "started, readiness not known", has: "rs", found: "s+", started: true},
		{name: "ready before the agent was started again", has: "rs", before: "r+ s+", started: true, ready: true},
		{name: "ready before, and no longer", has: "rs", found: "r-", before: "r+ s+", started: true},
		{name: "another instance was ready", has: "rs", before: "r+ s+", other: true},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			pod := spec(corev1.RestartPolicyAlways, "+A", "B")
			for kind, p := range map[string]**corev1.Probe{
				"r": &pod.Spec.InitContainers[0].ReadinessProbe, "l": &pod.Spec.InitContainers[0].LivenessProbe, "s": &pod.Spec.InitContainers[0].StartupProbe,
			} {
				if strings.Contains(row.has, kind) {
					*p = new(corev1.Probe)
				}
			}
			pod.Spec.InitContainers[0].DeepCopyInto(&pod.Spec.Containers[0])
			pod.Spec.Containers[0].Name, pod.Spec.Containers[0].RestartPolicy = "B", nil
			in := podstatus.Input{Pod: pod, Runtime: observed("ready A:run B:run"), Now: epoch}
			if row.before != "" {
				in.Probed = found(map[string]string{"A0": row.before, "B0": row.before})
				last := podstatus.Generate(in)
				in.Last = &last
				if row.other {
					in.Runtime = observed("ready A:run A:exit1 B:run B:exit1")
				}
			}
			in.Probed = found(map[string]string{"A0": row.found, "B0": row.found})
			s := podstatus.Generate(in)
			for _, c := range append(s.ContainerStatuses, s.InitContainerStatuses...) {
				if *c.Started != row.started || c.Ready != row.ready {
					t.Errorf("%s: started %v, ready %v, want %v and %v", c.Name, *c.Started, c.Ready, row.started, row.ready)
				}
			}
			for _, c := range s.Conditions {
				if ready := c.Status == corev1.ConditionTrue; c.Type == corev1.PodReady && ready != row.ready {
					t.Errorf("the pod is ready: %v, want %v", ready, row.ready)
				}
			}
		})
	}
}

func TestReadinessOfAContainerIsWrittenAtOnceWithThePodsConditions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pod := spec(corev1.RestartPolicyAlways, "", "A")
		pod.Spec.Containers[0].ReadinessProbe = &corev1.Probe{}
		s := newServer(pod)
		m := run(t, s, podstatus.Config{})
		m.SetReady(pod.UID, "A", "A0", true) // nothing is known of the pod yet
		m.Set(pod, running(pod))
		synctest.Wait()
		ready := func() string {
			synctest.Wait()
			status := s.pod("pod").Status
			out := []string{short(status)}
			for _, c := range status.Conditions {
				if c.Type == corev1.PodReady || c.Type == corev1.ContainersReady {
					out = append(out, string(c.Type)+"="+string(c.Status)+c.LastTransitionTime.UTC().Format("@5"))
				}
			}
			return strings.Join(out, " ")
		}
		second := func() string { return time.Now().UTC().Format("@5") }
		first := second()
		if got, want := ready(), "Running, A:run/-/0 Ready=False"+first+" ContainersReady=False"+first; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		time.Sleep(3 * time.Second)
		for _, wrong := range []struct{ name, id string }{{"A", "A1"}, {"B", "A0"}} {
			m.SetReady(pod.UID, wrong.name, wrong.id, true)
		}
		m.SetReady("another", "A", "A0", true)
		if got, want := ready(), "Running, A:run/-/0 Ready=False"+first+" ContainersReady=False"+first; got != want {
			t.Errorf("after news of others: %q, want %q", got, want)
		}
		m.SetReady(pod.UID, "A", "A0", true)
		then := second()
		if got, want := ready(), "Running, A:run/-/0 ready Ready=True"+then+" ContainersReady=True"+then; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		time.Sleep(3 * time.Second)
		m.SetReady(pod.UID, "A", "A0", false)
		if got := ready(); !strings.Contains(got, " Ready=False"+second()) {
			t.Errorf("%q, want the pod not to be ready", got)
		}
		status, _ := m.Get(pod.UID)
		m.Set(pod, ended(pod, status))
		m.SetReady(pod.UID, "A", "A0", true)
		if got := ready(); strings.Contains(got, " ready") || strings.Contains(got, "True") {
			t.Errorf("a container that ended is ready: %q", got)
		}
	})
}
