package podstatus

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/services/nodeagent/container"
	"github.com/deltaplane/deltaplane/services/nodeagent/podspec"
)

// The reasons of containers that do not run, and how one ended of which nothing is left.
const (
	ContainerCreating      = "ContainerCreating"
	PodInitializing        = "PodInitializing"
	ContainerStatusUnknown = "ContainerStatusUnknown"
	lostCode               = 137
)

func lost(message string) *corev1.ContainerStateTerminated {
	return &corev1.ContainerStateTerminated{Reason: ContainerStatusUnknown, Message: message, ExitCode: lostCode}
}

// containers are the statuses of specs, as the runtime has them, or had them.
func (g *generator) containers(specs []corev1.Container, old []corev1.ContainerStatus, init bool) []corev1.ContainerStatus {
	out := make([]corev1.ContainerStatus, 0, len(specs))
	for i := range specs {
		var was *corev1.ContainerStatus
		if j := slices.IndexFunc(old, func(s corev1.ContainerStatus) bool { return s.Name == specs[i].Name }); j >= 0 {
			was = &old[j]
		}
		s := g.container(&specs[i], was, init)
		g.probed(&specs[i], &s, was, container.ID(s.ContainerID), init)
		out = append(out, s)
	}
	return out
}

// container is one's status; was, when not nil, the one before.
func (g *generator) container(spec *corev1.Container, was *corev1.ContainerStatus, init bool) corev1.ContainerStatus {
	now, before := g.instances(spec.Name)
	var s corev1.ContainerStatus
	if now == nil {
		s = g.absent(spec, was)
	} else {
		s = g.present(now, before, was)
	}
	if init && !podspec.Sidecar(spec) {
		if now != nil && now.State == container.Exited && now.ExitCode == 0 {
			return s // done permanently
		}
		if now == nil && s.State.Waiting != nil && g.anyRegular() {
			// Its remains are gone, but the containers after it exist.
			s.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				Reason:  "Completed",
				Message: "Unable to get init container status from container runtime and pod has been initialized, treat it as exited normally",
			}}
			return s
		}
	}
	if reason, ok := g.Waiting[spec.Name]; ok && g.shouldRun(spec, now) {
		if s.State.Terminated != nil {
			s.LastTerminationState = s.State
		}
		s.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason.Reason, Message: reason.Message}}
	}
	return s
}

// instances are the newest instance of a container and the one before it.
func (g *generator) instances(name string) (now, before *container.Status) {
	var all []*container.Status
	for i := range g.runtime.Containers {
		if g.runtime.Containers[i].Name == name {
			all = append(all, &g.runtime.Containers[i])
		}
	}
	slices.SortStableFunc(all, func(a, b *container.Status) int {
		return cmp.Or(cmp.Compare(b.Attempt, a.Attempt), b.CreatedAt.Compare(a.CreatedAt))
	})
	switch len(all) {
	case 0:
		return nil, nil
	case 1:
		return all[0], nil
	default:
		return all[0], all[1]
	}
}

func (g *generator) anyRegular() bool {
	return slices.ContainsFunc(g.pod.Spec.Containers, func(c corev1.Container) bool {
		now, _ := g.instances(c.Name)
		return now != nil && now.State != container.Unknown
	})
}

// shouldRun reports whether a container is to be started (ShouldContainerBeRestarted).
func (g *generator) shouldRun(spec *corev1.Container, now *container.Status) bool {
	switch {
	case g.pod.DeletionTimestamp != nil || g.Terminal:
		return false
	case now == nil:
		return true
	case now.State == container.Exited:
		return podspec.ShouldRestart(g.pod, spec, now.ExitCode)
	default:
		return now.State != container.Running
	}
}

// absent is the status of a container of which the runtime has nothing: not made
// yet, or gone with all its remains.
func (g *generator) absent(spec *corev1.Container, was *corev1.ContainerStatus) corev1.ContainerStatus {
	reason := ContainerCreating
	if len(g.pod.Spec.InitContainers) > 0 {
		reason = PodInitializing
	}
	s := corev1.ContainerStatus{
		Name: spec.Name, Image: spec.Image,
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}},
	}
	switch {
	case was == nil:
		return s
	case was.State.Terminated != nil:
		return *was.DeepCopy()
	}
	s.RestartCount, s.LastTerminationState = was.RestartCount, *was.LastTerminationState.DeepCopy()
	if was.State.Running == nil {
		return s
	}
	// It ran, and nobody knows how it ended. It must not look as if it never ran, or a
	// pod that runs once would run twice.
	s.LastTerminationState.Terminated = lost("The container could not be located when the pod was deleted.  The container used to be Running")
	s.LastTerminationState.Terminated.StartedAt = was.State.Running.StartedAt
	s.LastTerminationState.Terminated.ContainerID = was.ContainerID
	if g.pod.DeletionTimestamp == nil {
		s.RestartCount++
	}
	return s
}

// present is the status of a container of which the runtime has instances.
func (g *generator) present(now, before *container.Status, was *corev1.ContainerStatus) corev1.ContainerStatus {
	s := corev1.ContainerStatus{
		Name: now.Name, RestartCount: int32(now.RestartCount), Image: now.Image, ImageID: now.ImageRef, ContainerID: g.id(now.ID),
		State: g.state(now),
	}
	if before != nil {
		s.LastTerminationState = g.state(before)
	}
	if was == nil {
		return s
	}
	s.RestartCount = max(s.RestartCount, was.RestartCount)
	if before == nil {
		switch {
		case was.ContainerID != s.ContainerID && was.State.Terminated != nil:
			s.LastTerminationState = *was.State.DeepCopy()
		case was.LastTerminationState.Terminated != nil:
			s.LastTerminationState = *was.LastTerminationState.DeepCopy()
		}
	}
	if now.State == container.Unknown {
		switch {
		case was.State.Running != nil:
			s.State = corev1.ContainerState{Terminated: lost("The container could not be located when the pod was terminated")}
			s.State.Terminated.ContainerID = s.ContainerID
		case was.State.Terminated != nil && was.ContainerID == s.ContainerID:
			s.State = *was.State.DeepCopy() // said once, it stays said
		}
	}
	return s
}

func (g *generator) id(id string) string {
	if id == "" {
		return ""
	}
	return cmp.Or(g.RuntimeName, "cri") + "://" + id
}

func (g *generator) state(c *container.Status) corev1.ContainerState {
	switch c.State {
	case container.Running:
		return corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(c.StartedAt)}}
	case container.Exited:
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: c.ExitCode, Reason: c.Reason, Message: c.Message,
			StartedAt: metav1.NewTime(c.StartedAt), FinishedAt: metav1.NewTime(c.FinishedAt), ContainerID: g.id(c.ID),
		}}
	default:
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}
	}
}
