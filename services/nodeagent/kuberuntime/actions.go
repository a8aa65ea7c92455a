package kuberuntime

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/core/probe"
	"github.com/deltaplane/deltaplane/services/nodeagent/container"
	"github.com/deltaplane/deltaplane/services/nodeagent/podspec"
)

// Actions are what a pod needs done, in the order of the fields.
type Actions struct {
	// KillPod stops everything of the pod, instead of Kill.
	KillPod bool
	// Kill are containers to stop.
	Kill []Kill
	// CreateSandbox asks for a new sandbox, as the Attempt-th; otherwise SandboxID is the one to
	// use, or the one that is given up.
	CreateSandbox bool
	SandboxID     string
	Attempt       uint32
	// StartInit and Start are indices of the spec's init containers and containers, ascending.
	StartInit, Start []int
}

// Kill is a container to stop, and why. Probe is the kind that it failed; zero for none.
type Kill struct {
	ID, Name, Message string
	Probe             probe.Kind
}

// Decide says what a pod needs, given what was observed of it and what its probes found; nil is a
// pod of which nothing was. It is the kubelet's computePodActions without resizing and ephemeral
// containers, and reads neither clock nor runtime. Back-off is not its matter. It differs from it
// so:
//   - Of two instances of a container that run, the older is stopped.
//   - With restartPolicy Never a container of unknown state is stopped and not started again,
//     because it may have run.
//   - With restartPolicy Never a dead sandbox is replaced for containers that never ran; the
//     kubelet leaves such a pod Pending.
//   - An init container counts as done only in the current sandbox, so nothing has to be removed
//     for it to run in a new one.
//   - A sandbox without an address is kept.
func Decide(pod *corev1.Pod, status *container.PodStatus, probes Probes) Actions {
	if status == nil {
		status = &container.PodStatus{}
	}
	a := decide(pod, status, probes)
	if pod.DeletionTimestamp != nil {
		a.CreateSandbox, a.StartInit, a.Start = false, nil, nil
	}
	if a.KillPod {
		a.Kill = nil
		return a
	}
	for i := range status.Containers {
		c := &status.Containers[i]
		if alive := c.State == container.Running || c.State == container.Unknown; alive && status.Latest(c.Name) != c {
			a.Kill = append(a.Kill, Kill{ID: c.ID, Name: c.Name, Message: fmt.Sprintf("Container %s has a newer instance", c.Name)})
		}
	}
	return a
}

func decide(pod *corev1.Pod, status *container.PodStatus, probes Probes) Actions {
	var a Actions
	a.CreateSandbox, a.Attempt, a.SandboxID = sandboxChanged(pod, status)
	a.KillPod = a.CreateSandbox
	if a.CreateSandbox {
		a.renew(pod, status)
		return a
	}
	initialized := a.initContainers(pod, status, probes)
	if a.KillPod || !initialized {
		return a
	}
	kept := 0
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		s := status.Latest(c.Name)
		if s == nil || s.State != container.Running {
			if s != nil && s.State == container.Unknown {
				a.Kill = append(a.Kill, Kill{ID: s.ID, Name: s.Name, Message: "Container is in \"unknown\" state, try killing it"})
			}
			if shouldStart(pod, c, s) {
				a.Start = append(a.Start, i)
			}
			continue
		}
		kill := Kill{ID: s.ID, Name: s.Name, Message: fmt.Sprintf("Container %s definition changed", c.Name)}
		restart := true // whatever the restart policy: it did not end, its definition did
		if !changed(c, s) {
			if kill.Probe = probes[s.ID].Failed; kill.Probe == 0 {
				kept++
				continue
			}
			kill.Message = fmt.Sprintf("Container %s failed %s probe", c.Name, strings.ToLower(kill.Probe.String()))
			restart = podspec.RestartPolicy(pod, c) != corev1.RestartPolicyNever
		}
		if restart {
			kill.Message += ", will be restarted"
			a.Start = append(a.Start, i)
		}
		a.Kill = append(a.Kill, kill)
	}
	if kept == 0 && len(a.Start) == 0 {
		a.KillPod, a.StartInit = true, nil // sidecars alone keep no pod alive
	}
	return a
}

// sandboxChanged says whether a new sandbox is needed, its attempt and the ID of the present one.
func sandboxChanged(pod *corev1.Pod, status *container.PodStatus) (create bool, attempt uint32, id string) {
	if len(status.Sandboxes) == 0 {
		return true, 0, ""
	}
	ready := 0
	for _, s := range status.Sandboxes {
		if s.Ready {
			ready++
		}
	}
	newest := status.Sandboxes[0]
	if ready > 1 || !newest.Ready {
		return true, newest.Attempt + 1, newest.ID
	}
	if pod.Spec.HostNetwork && !newest.HostNetwork {
		return true, newest.Attempt + 1, newest.ID
	}
	return false, newest.Attempt, newest.ID
}

// renew fills in what is started in a new sandbox, or that none is needed any more.
func (a *Actions) renew(pod *corev1.Pod, status *container.PodStatus) {
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		s := status.Latest(c.Name)
		if ran := s != nil && s.State != container.Created; !ran || again(pod, c, s, s.ExitCode) {
			a.Start = append(a.Start, i)
		}
	}
	switch {
	case len(a.Start) == 0, initFailed(pod, status):
		a.CreateSandbox, a.Start = false, nil
	case len(pod.Spec.InitContainers) > 0:
		a.StartInit, a.Start = []int{0}, nil
	}
}

// initFailed says that an init container ended otherwise than well, or was ended by the end of its
// sandbox, and must not run again.
func initFailed(pod *corev1.Pod, status *container.PodStatus) bool {
	return slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool {
		s := status.Latest(c.Name)
		return s != nil && !podspec.Sidecar(&c) && s.State != container.Created && (s.State != container.Exited || codeOf(s) != 0) && !again(pod, &c, s, codeOf(s))
	})
}

// initContainers fills in which init containers to start, and says whether the containers proper
// may be. It goes from the last to the first, because those that ended may have been removed while
// a later one was not.
func (a *Actions) initContainers(pod *corev1.Pod, status *container.PodStatus, probes Probes) (initialized bool) {
	inits := pod.Spec.InitContainers
	if len(inits) == 0 {
		return true
	}
	here := func(name string) *container.Status {
		if s := status.Latest(name); s != nil && (s.SandboxID == a.SandboxID || s.SandboxID == "") {
			return s
		}
		return nil
	}
	// Containers of an older sandbox say nothing: a node's restart leaves them exited. The kubelet,
	// which does not tell sandboxes apart, takes no exited container for a sign.
	for i := range pod.Spec.Containers {
		if s := here(pod.Spec.Containers[i].Name); s != nil && s.State != container.Unknown {
			initialized = true
		}
	}
	before := initialized
	defer func() { slices.Sort(a.StartInit); a.StartInit = slices.Compact(a.StartInit) }()
	for i := len(inits) - 1; i >= 0; i-- {
		c, sidecar := &inits[i], podspec.Sidecar(&inits[i])
		s := here(c.Name)
		if s == nil {
			if before && sidecar {
				a.StartInit = append(a.StartInit, i)
			}
			continue
		}
		if before && !sidecar {
			continue
		}
		done := func() {
			if i == len(inits)-1 {
				initialized = true
			} else if !before {
				a.StartInit = append(a.StartInit, i+1)
			}
		}
		switch {
		case s.State == container.Created:
			a.StartInit = append(a.StartInit, i)
		case s.State == container.Running && sidecar:
			found := probes[s.ID]
			if c.StartupProbe == nil || found.Started {
				done() // its liveness holds up nobody
			}
			switch {
			case changed(c, s):
				a.Kill = append(a.Kill, Kill{ID: s.ID, Name: s.Name, Message: fmt.Sprintf("Init container %s definition changed", c.Name)})
				a.StartInit = append(a.StartInit, i)
			case found.Failed != 0:
				message := fmt.Sprintf("Init container %s failed %s probe", c.Name, strings.ToLower(found.Failed.String()))
				a.Kill = append(a.Kill, Kill{ID: s.ID, Name: s.Name, Message: message, Probe: found.Failed})
				a.StartInit = append(a.StartInit, i)
			}
		case s.State == container.Running:
		case s.State == container.Exited && sidecar:
			a.StartInit = append(a.StartInit, i)
		case s.State == container.Exited && codeOf(s) == 0:
			done()
		case !sidecar && !again(pod, c, s, codeOf(s)):
			a.KillPod, a.StartInit = true, nil
			return false
		case s.State == container.Exited:
			a.StartInit = append(a.StartInit, i)
		default:
			a.Kill = append(a.Kill, Kill{ID: s.ID, Name: s.Name, Message: "Init container is in \"unknown\" state, try killing it before restart"})
			a.StartInit = append(a.StartInit, i)
		}
		before = true
	}
	if !before {
		a.StartInit = append(a.StartInit, 0)
	}
	return initialized
}

// reasonOOMKilled is a runtime's word for a container that was killed for its memory, and
// codeKilled the code of one that was killed.
const (
	reasonOOMKilled = "OOMKilled"
	codeKilled      = 128 + 9
)

// codeOf is the code with which an init container has ended.
func codeOf(s *container.Status) int32 {
	if s.ExitCode == 0 && s.Reason == reasonOOMKilled {
		return codeKilled
	}
	return s.ExitCode
}

// shouldStart says whether a container that does not run is to be started; nil is one that never
// was.
func shouldStart(pod *corev1.Pod, c *corev1.Container, s *container.Status) bool {
	return pod.DeletionTimestamp == nil && (s == nil || s.State == container.Created || again(pod, c, s, s.ExitCode))
}

// again says whether a container that ran and does not any more may run again, by the code with
// which it ended. That of one that went with its sandbox, or of unknown state, is not known.
func again(pod *corev1.Pod, c *corev1.Container, s *container.Status, code int32) bool {
	if s.State != container.Exited {
		return podspec.RestartPolicy(pod, c) != corev1.RestartPolicyNever
	}
	return podspec.ShouldRestart(pod, c, code)
}

// changed says that a container runs by another definition; one of unknown definition is left
// alone.
func changed(c *corev1.Container, s *container.Status) bool { return s.Hash != 0 && s.Hash != Hash(c) }
