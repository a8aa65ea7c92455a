package podstatus

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/services/nodeagent/podspec"
)

// final is the last status of a pod of which nothing runs nor is left (TerminatePod):
// a container without an end is taken to have failed, unless the pod never got as far as to
// start it, and the phase becomes terminal.
func final(pod *corev1.Pod, s corev1.PodStatus) corev1.PodStatus {
	end := func(c *corev1.ContainerStatus) {
		if c.State.Terminated == nil {
			t := lost("The container could not be located when the pod was terminated")
			if c.State.Running != nil {
				t.StartedAt = c.State.Running.StartedAt
			}
			t.ContainerID = c.ContainerID
			c.State = corev1.ContainerState{Terminated: t}
		}
		c.Ready, c.Started = false, new(false)
	}
	if hasInitialized(pod, &s) {
		for i := range s.ContainerStatuses {
			end(&s.ContainerStatuses[i])
		}
	}
	for i := range begun(s.InitContainerStatuses) {
		if c := &s.InitContainerStatuses[i]; c.State.Terminated == nil {
			end(c)
		}
	}
	if !terminal(s.Phase) {
		s.Phase = corev1.PodFailed
	}
	return s
}

// hasInitialized reports whether there is evidence that the pod's regular containers were, or
// could have been, started (hasPodInitialized).
func hasInitialized(pod *corev1.Pod, s *corev1.PodStatus) bool {
	if len(pod.Spec.InitContainers) == 0 {
		return true
	}
	for _, c := range s.ContainerStatuses {
		if c.LastTerminationState.Terminated != nil || c.State.Waiting == nil {
			return true
		}
	}
	if len(s.InitContainerStatuses) == 0 {
		return false
	}
	last := s.InitContainerStatuses[len(s.InitContainerStatuses)-1]
	spec := find(pod.Spec.InitContainers, last.Name)
	switch {
	case spec == nil:
		return false
	case podspec.Sidecar(spec):
		return last.State.Running != nil && last.Started != nil && *last.Started
	}
	for _, t := range []*corev1.ContainerStateTerminated{last.State.Terminated, last.LastTerminationState.Terminated} {
		if t != nil && t.ExitCode == 0 {
			return true
		}
	}
	return false
}

// begun are the init containers up to the last that was ever started, at least one of any
// (initializedContainers).
func begun(list []corev1.ContainerStatus) []corev1.ContainerStatus {
	for i, c := range slices.Backward(list) {
		if c.State.Waiting == nil || c.LastTerminationState.Terminated != nil {
			return list[:i+1]
		}
	}
	return list[:min(len(list), 1)]
}

// revived names a container that is not to run again and yet would leave its end
// (checkContainerStateTransition); "" when there is none.
func revived(pod *corev1.Pod, old, s *corev1.PodStatus) string {
	for _, list := range []struct {
		specs    []corev1.Container
		old, now []corev1.ContainerStatus
	}{
		{pod.Spec.Containers, old.ContainerStatuses, s.ContainerStatuses},
		{pod.Spec.InitContainers, old.InitContainerStatuses, s.InitContainerStatuses},
	} {
		for _, was := range list.old {
			spec := find(list.specs, was.Name)
			if spec == nil || was.State.Terminated == nil || podspec.ShouldRestart(pod, spec, was.State.Terminated.ExitCode) {
				continue
			}
			for _, now := range list.now {
				if now.Name == was.Name && now.State.Terminated == nil {
					return now.Name
				}
			}
		}
	}
	return ""
}
