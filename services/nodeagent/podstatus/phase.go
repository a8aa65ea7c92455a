package podstatus

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/services/nodeagent/podspec"
)

// tally counts containers by what they are doing.
type tally struct {
	pendingInit, pendingSidecars, failedInit      int
	unknown, running, waiting, stopped, succeeded int
	final                                         int // stopped and not to be restarted
}

// Phase is the phase of a pod by its containers' statuses, init and regular ones (upstream's
// getPhase). Ended says that no container will be started again, whatever the
// policies say; started that regular containers run or ran in the present sandbox.
func Phase(pod *corev1.Pod, statuses []corev1.ContainerStatus, ended, started bool) corev1.PodPhase {
	var n tally
	byName := make(map[string]*corev1.ContainerStatus, len(statuses))
	for i := range statuses {
		byName[statuses[i].Name] = &statuses[i]
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if podspec.Sidecar(c) {
			n.sidecar(byName[c.Name])
		} else {
			n.init(pod, c, byName[c.Name])
		}
	}
	for i := range pod.Spec.Containers {
		n.regular(pod, &pod.Spec.Containers[i], byName[pod.Spec.Containers[i].Name])
	}
	switch {
	case n.failedInit > 0:
		return corev1.PodFailed
	case n.pendingInit > 0, n.pendingSidecars > 0 && !started, n.waiting > 0:
		return corev1.PodPending
	case n.running > 0 && n.unknown == 0:
		return corev1.PodRunning
	case n.running > 0 || n.stopped == 0 || n.unknown > 0:
		return corev1.PodPending
	case !ended && n.stopped != n.final:
		return corev1.PodRunning // some are about to run again
	case n.stopped == n.succeeded:
		return corev1.PodSucceeded
	default:
		return corev1.PodFailed
	}
}

// ending is how a container that does not run ended last, nil when it never did.
func ending(s *corev1.ContainerStatus) *corev1.ContainerStateTerminated {
	if s.State.Terminated != nil {
		return s.State.Terminated
	}
	return s.LastTerminationState.Terminated
}

func (n *tally) init(pod *corev1.Pod, c *corev1.Container, s *corev1.ContainerStatus) {
	if s == nil || s.State.Running != nil || s.State.Waiting == nil && s.State.Terminated == nil || ending(s) == nil {
		n.pendingInit++
		return
	}
	if code := ending(s).ExitCode; code != 0 && !podspec.ShouldRestart(pod, c, code) {
		n.failedInit++
	}
}

// sidecar counts one; ended ones do not matter to the phase.
func (n *tally) sidecar(s *corev1.ContainerStatus) {
	switch {
	case s == nil:
		n.unknown++
	case s.State.Running != nil:
		n.running++
		if s.Started == nil || !*s.Started {
			n.pendingSidecars++
		}
	case s.State.Terminated != nil:
	case s.State.Waiting != nil:
		if s.LastTerminationState.Terminated == nil {
			n.pendingSidecars++
			n.waiting++
		}
	default:
		n.pendingSidecars++
		n.unknown++
	}
}

func (n *tally) regular(pod *corev1.Pod, c *corev1.Container, s *corev1.ContainerStatus) {
	switch {
	case s == nil || s.State == corev1.ContainerState{}:
		n.unknown++
	case s.State.Running != nil:
		n.running++
	case ending(s) == nil:
		n.waiting++
	default:
		n.stopped++
		if !podspec.ShouldRestart(pod, c, ending(s).ExitCode) {
			n.final++
		}
		if s.State.Terminated != nil && s.State.Terminated.ExitCode == 0 {
			n.succeeded++
		}
	}
}
