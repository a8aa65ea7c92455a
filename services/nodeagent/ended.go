package nodeagent

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/services/nodeagent/container"
	"github.com/deltaplane/deltaplane/services/nodeagent/podspec"
	"github.com/deltaplane/deltaplane/services/nodeagent/podstatus"
)

// withEnded adds to what was seen of a pod the containers that are reported as ended and of which
// the runtime has nothing any more: what may run once, or once with success, must not run again
// because its remains were lost. The kubelet starts such a container again. Containers that always
// restart are as they were seen, and so are init containers, which may run again.
func withEnded(pod *corev1.Pod, seen *container.PodStatus, told *corev1.PodStatus) *container.PodStatus {
	if seen == nil {
		return seen
	}
	always := map[string]bool{}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		always[c.Name] = podspec.RestartPolicy(pod, c) == corev1.RestartPolicyAlways
	}
	var ended []container.Status
	for _, s := range told.ContainerStatuses {
		if always[s.Name] {
			continue
		}
		end, restarts := s.State.Terminated, s.RestartCount
		if last := s.LastTerminationState.Terminated; end == nil && s.State.Waiting != nil && last != nil && last.Reason == podstatus.ContainerStatusUnknown {
			end, restarts = last, restarts-1 // its loss was counted as a restart
		}
		if end == nil || seen.Latest(s.Name) != nil {
			continue
		}
		ended = append(ended, container.Status{
			Container:    container.Container{Name: s.Name, State: container.Exited, CreatedAt: end.StartedAt.Time, Attempt: uint32(max(restarts, 0))},
			StartedAt:    end.StartedAt.Time,
			FinishedAt:   end.FinishedAt.Time,
			ExitCode:     end.ExitCode,
			Reason:       end.Reason,
			RestartCount: int(max(restarts, 0)),
		})
	}
	if len(ended) == 0 {
		return seen
	}
	full := *seen
	full.Containers = slices.Concat(seen.Containers, ended)
	return &full
}
