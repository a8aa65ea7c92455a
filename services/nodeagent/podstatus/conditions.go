package podstatus

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/services/nodeagent/podspec"
)

// ours are the conditions that the agent of a pod's node writes; all others are kept
// as they are found. DisruptionTarget is never written here.
var ours = []corev1.PodConditionType{
	corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady, corev1.PodScheduled,
}

// conditions are the pod's. The time of one that changes is now, of one that does not
// what it was.
func (g *generator) conditions(s *corev1.PodStatus) []corev1.PodCondition {
	var out []corev1.PodCondition
	for _, c := range g.pod.Status.Conditions {
		if !slices.Contains(ours, c.Type) {
			out = append(out, c)
		}
	}
	containersReady := g.containersReady(s)
	made := []corev1.PodCondition{
		g.readyToStart(), g.initialized(s), g.ready(containersReady, out), containersReady,
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
	}
	for _, c := range made {
		out = append(out, g.timed(c))
	}
	return out
}

func condition(s *corev1.PodStatus, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range s.Conditions {
		if s.Conditions[i].Type == t {
			return &s.Conditions[i]
		}
	}
	return nil
}

func is(t corev1.PodConditionType, ok bool) corev1.PodCondition {
	c := corev1.PodCondition{Type: t, Status: corev1.ConditionFalse}
	if ok {
		c.Status = corev1.ConditionTrue
	}
	return c
}

func not(t corev1.PodConditionType, reason, message string) corev1.PodCondition {
	return corev1.PodCondition{Type: t, Status: corev1.ConditionFalse, Reason: reason, Message: message}
}

// readyToStart says that there is one ready sandbox, the newest, with a network.
func (g *generator) readyToStart() corev1.PodCondition {
	var ready int
	for _, s := range g.runtime.Sandboxes {
		if s.Ready {
			ready++
		}
	}
	ok := ready == 1 && g.runtime.Sandboxes[0].Ready
	if ok {
		newest := g.runtime.Sandboxes[0]
		ok = g.pod.Spec.HostNetwork || newest.HostNetwork || len(newest.IPs) > 0
	}
	return is(corev1.PodReadyToStartContainers, ok)
}

// judge sorts the containers that count into those without a status and those not good.
func judge(specs []corev1.Container, statuses []corev1.ContainerStatus, counts func(*corev1.Container) bool, good func(*corev1.Container, *corev1.ContainerStatus) bool) (unknown, bad []string) {
	for i := range specs {
		c := &specs[i]
		if !counts(c) {
			continue
		}
		j := slices.IndexFunc(statuses, func(s corev1.ContainerStatus) bool { return s.Name == c.Name })
		switch {
		case j < 0:
			unknown = append(unknown, c.Name)
		case !good(c, &statuses[j]):
			bad = append(bad, c.Name)
		}
	}
	return unknown, bad
}

func conditionMessage(unknown, bad []string, word string) string {
	var parts []string
	if len(unknown) > 0 {
		parts = append(parts, fmt.Sprintf("containers with unknown status: %s", unknown))
	}
	if len(bad) > 0 {
		parts = append(parts, fmt.Sprintf("containers with %s status: %s", word, bad))
	}
	return strings.Join(parts, ", ")
}

func everyContainer(*corev1.Container) bool { return true }

func (g *generator) containersReady(s *corev1.PodStatus) corev1.PodCondition {
	const t = corev1.ContainersReady
	if len(s.ContainerStatuses)+len(s.InitContainerStatuses) == 0 {
		return not(t, "UnknownContainerStatuses", "")
	}
	ready := func(_ *corev1.Container, s *corev1.ContainerStatus) bool { return s.Ready }
	unknown, bad := judge(g.pod.Spec.InitContainers, s.InitContainerStatuses, podspec.Sidecar, ready)
	u, b := judge(g.pod.Spec.Containers, s.ContainerStatuses, everyContainer, ready)
	unknown, bad = append(unknown, u...), append(bad, b...)
	switch {
	case s.Phase == corev1.PodSucceeded && len(unknown) == 0:
		return not(t, "PodCompleted", "")
	case s.Phase == corev1.PodFailed:
		return not(t, "PodFailed", "")
	case len(unknown)+len(bad) > 0:
		return not(t, "ContainersNotReady", conditionMessage(unknown, bad, "unready"))
	}
	return is(t, true)
}

// ready is ContainersReady and the pod's readiness gates, which others set.
func (g *generator) ready(containersReady corev1.PodCondition, others []corev1.PodCondition) corev1.PodCondition {
	const t = corev1.PodReady
	if containersReady.Status != corev1.ConditionTrue {
		return not(t, containersReady.Reason, containersReady.Message)
	}
	var missing []string
	all := &corev1.PodStatus{Conditions: others}
	for _, gate := range g.pod.Spec.ReadinessGates {
		switch c := condition(all, gate.ConditionType); {
		case c == nil:
			missing = append(missing, fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.", gate.ConditionType))
		case c.Status != corev1.ConditionTrue:
			missing = append(missing, fmt.Sprintf("the status of pod readiness gate %q is not \"True\", but %v", gate.ConditionType, c.Status))
		}
	}
	if len(missing) > 0 {
		return not(t, "ReadinessGatesNotReady", strings.Join(missing, ", "))
	}
	return is(t, true)
}

func (g *generator) initialized(s *corev1.PodStatus) corev1.PodCondition {
	const t = corev1.PodInitialized
	if len(s.InitContainerStatuses) == 0 && len(g.pod.Spec.InitContainers) > 0 {
		return not(t, "UnknownContainerStatuses", "")
	}
	unknown, bad := judge(g.pod.Spec.InitContainers, s.InitContainerStatuses, everyContainer, func(c *corev1.Container, s *corev1.ContainerStatus) bool {
		if podspec.Sidecar(c) {
			return s.Started != nil && *s.Started
		}
		return s.Ready
	})
	if s.Phase == corev1.PodSucceeded && len(unknown) == 0 {
		c := is(t, true)
		c.Reason = "PodCompleted"
		return c
	}
	begun := slices.ContainsFunc(s.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.State.Running != nil || s.State.Terminated != nil })
	if !begun && len(unknown)+len(bad) > 0 {
		return not(t, "ContainersNotInitialized", conditionMessage(unknown, bad, "incomplete"))
	}
	return is(t, true)
}
