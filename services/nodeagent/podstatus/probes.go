package podstatus

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/core/probe"
	"github.com/deltaplane/deltaplane/services/nodeagent/container"
	"github.com/deltaplane/deltaplane/services/nodeagent/podspec"
)

// probed sets whether a container has started and is ready, by its probes. Until those of this
// agent come to something, what was said of this very instance holds: an agent that is started
// again takes nobody's readiness away.
func (g *generator) probed(spec *corev1.Container, s, was *corev1.ContainerStatus, id string, init bool) {
	same := was != nil && was.ContainerID != "" && was.ContainerID == s.ContainerID
	running := s.State.Running != nil
	s.Started = new(running && holds(spec.StartupProbe, g.found(id, probe.Startup), same && was.Started != nil && *was.Started))
	if init && !podspec.Sidecar(spec) {
		s.Started = new(running)
		s.Ready = s.State.Terminated != nil && s.State.Terminated.ExitCode == 0
		return
	}
	s.Ready = *s.Started && holds(spec.ReadinessProbe, g.found(id, probe.Readiness), same && was.Ready)
}

func (g *generator) found(id string, kind probe.Kind) probe.Result {
	if g.Probed == nil {
		return probe.Unknown
	}
	return g.Probed(id, kind)
}

// holds reports whether a container is what a probe asks: without one it is.
func holds(p *corev1.Probe, r probe.Result, was bool) bool {
	switch {
	case p == nil || r == probe.Success:
		return true
	case r == probe.Failure:
		return false
	default:
		return was
	}
}

// SetReady changes whether the container with an ID, as the runtime has it, is ready, and with it
// the pod's conditions. It does nothing for a container that is not the one last reported, or does
// not run.
func (m *Manager) SetReady(uid types.UID, name, id string, ready bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.pods[uid]
	if e == nil || e.want == nil || e.live == nil {
		return
	}
	status := e.want.DeepCopy()
	var c *corev1.ContainerStatus
	for _, list := range [][]corev1.ContainerStatus{status.ContainerStatuses, status.InitContainerStatuses} {
		if i := slices.IndexFunc(list, func(s corev1.ContainerStatus) bool { return s.Name == name }); i >= 0 {
			c = &list[i]
		}
	}
	if c == nil || c.State.Running == nil || container.ID(c.ContainerID) != id || c.Started == nil || !*c.Started {
		return
	}
	c.Ready = ready
	g := generator{pod: e.live, old: e.want, Input: Input{Now: m.cfg.Now()}}
	all := g.containersReady(status)
	for _, made := range []corev1.PodCondition{all, g.ready(all, e.live.Status.Conditions)} {
		if was := condition(status, made.Type); was != nil {
			*was = g.timed(made)
		}
	}
	m.set(e, e.live, *status)
}

// timed is a condition with the time of its change: now, or what it was before when its status
// is the same.
func (g *generator) timed(c corev1.PodCondition) corev1.PodCondition {
	c.ObservedGeneration = g.pod.Generation
	c.LastTransitionTime = metav1.NewTime(g.Now)
	if was := condition(g.old, c.Type); was != nil && was.Status == c.Status && !was.LastTransitionTime.IsZero() {
		c.LastTransitionTime = was.LastTransitionTime
	}
	return c
}
