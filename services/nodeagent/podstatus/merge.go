package podstatus

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// messageLimit is how many bytes the termination messages of a pod may have together.
const messageLimit = 12 << 10

// Normalize brings a status to the form in which the API server keeps it, so that two
// can be compared: times of whole seconds, container statuses in the order of their names,
// init containers in that of the spec, termination messages within 12 KiB a pod.
func Normalize(pod *corev1.Pod, s *corev1.PodStatus) {
	limit := messageLimit / max(len(pod.Spec.Containers)+len(pod.Spec.InitContainers)+len(pod.Spec.EphemeralContainers), 1)
	second := func(t *metav1.Time) { *t = t.Rfc3339Copy() }
	if s.StartTime != nil {
		s.StartTime = new(s.StartTime.Rfc3339Copy())
	}
	s.Conditions = slices.Clone(s.Conditions)
	for i := range s.Conditions {
		second(&s.Conditions[i].LastProbeTime)
		second(&s.Conditions[i].LastTransitionTime)
	}
	state := func(c *corev1.ContainerState) {
		if c.Running != nil {
			second(&c.Running.StartedAt)
		}
		if c.Terminated != nil {
			second(&c.Terminated.StartedAt)
			second(&c.Terminated.FinishedAt)
			if len(c.Terminated.Message) > limit {
				c.Terminated.Message = strings.ToValidUTF8(c.Terminated.Message[:limit], "")
			}
		}
	}
	for _, list := range []*[]corev1.ContainerStatus{&s.ContainerStatuses, &s.InitContainerStatuses, &s.EphemeralContainerStatuses} {
		copied := make([]corev1.ContainerStatus, len(*list))
		for i := range *list {
			(*list)[i].DeepCopyInto(&copied[i])
			state(&copied[i].State)
			state(&copied[i].LastTerminationState)
		}
		if *list = copied; len(copied) == 0 {
			*list = nil
		}
	}
	byName := func(a, b corev1.ContainerStatus) int { return strings.Compare(a.Name, b.Name) }
	slices.SortStableFunc(s.ContainerStatuses, byName)
	slices.SortStableFunc(s.EphemeralContainerStatuses, byName)
	place := func(s corev1.ContainerStatus) int {
		return slices.IndexFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == s.Name })
	}
	slices.SortStableFunc(s.InitContainerStatuses, func(a, b corev1.ContainerStatus) int { return place(a) - place(b) })
}

// Merge is what the API server should have for want, given what it has (mergePodStatus):
// conditions of other writers stay, as do the pod's start and everything the agent does
// not own; a terminal phase is not left, and not entered while containers may run; restart
// counts do not fall. Neither argument is changed.
func Merge(pod *corev1.Pod, want corev1.PodStatus, mayRun bool, now metav1.Time) corev1.PodStatus {
	live := &pod.Status
	out := *want.DeepCopy()
	out.Conditions = mergeConditions(live.Conditions, want.Conditions, now)
	if !live.StartTime.IsZero() {
		out.StartTime = live.StartTime.DeepCopy()
	}
	out.ObservedGeneration = max(out.ObservedGeneration, live.ObservedGeneration)
	out.ResourceClaimStatuses, out.ExtendedResourceClaimStatus = live.ResourceClaimStatuses, live.ExtendedResourceClaimStatus
	out.NodeAllocatableResourceClaimStatuses = live.NodeAllocatableResourceClaimStatuses
	out.NominatedNodeName, out.EphemeralContainerStatuses = live.NominatedNodeName, live.EphemeralContainerStatuses
	out.Resize, out.Resources, out.AllocatedResources = live.Resize, live.Resources, live.AllocatedResources
	if live.QOSClass != "" {
		out.QOSClass = live.QOSClass // immutable
	}
	if terminal(live.Phase) && out.Phase != live.Phase || !terminal(live.Phase) && terminal(out.Phase) && mayRun {
		out.Phase, out.Reason, out.Message = live.Phase, live.Reason, live.Message
	}
	if terminal(out.Phase) {
		unready(&out, live, now)
	}
	keepCounts(out.ContainerStatuses, live.ContainerStatuses)
	keepCounts(out.InitContainerStatuses, live.InitContainerStatuses)
	return out
}

// mergeConditions keeps live's order and other writers' entries, and puts ours in.
func mergeConditions(live, want []corev1.PodCondition, now metav1.Time) []corev1.PodCondition {
	out := slices.Clone(live)
	for _, c := range want {
		if !slices.Contains(ours, c.Type) {
			continue
		}
		i := slices.IndexFunc(out, func(was corev1.PodCondition) bool { return was.Type == c.Type })
		if i < 0 {
			out = append(out, c)
			continue
		}
		was := out[i]
		switch {
		case was.Status == c.Status:
			c.LastTransitionTime, c.LastProbeTime = was.LastTransitionTime, was.LastProbeTime
		case c.LastTransitionTime.Before(&was.LastTransitionTime):
			c.LastTransitionTime = now // somebody else changed it in between
		}
		out[i] = c
	}
	return out
}

// unready makes sure that a pod that ended does not say that it is ready.
func unready(s, live *corev1.PodStatus, now metav1.Time) {
	reason := "PodFailed"
	if s.Phase == corev1.PodSucceeded {
		reason = "PodCompleted"
	}
	for _, t := range []corev1.PodConditionType{corev1.PodReady, corev1.ContainersReady} {
		c := condition(s, t)
		if c == nil || c.Status != corev1.ConditionTrue {
			continue
		}
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, reason, ""
		if was := condition(live, t); was == nil || was.Status != corev1.ConditionFalse {
			c.LastTransitionTime = now
		}
	}
}

func keepCounts(out, live []corev1.ContainerStatus) {
	for i := range out {
		for _, was := range live {
			if was.Name == out[i].Name {
				out[i].RestartCount = max(out[i].RestartCount, was.RestartCount)
			}
		}
	}
}
