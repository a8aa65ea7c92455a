package podstatus

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/core/probe"
	"github.com/deltaplane/deltaplane/services/nodeagent/container"
)

// Reason says why something is as it is.
type Reason struct{ Reason, Message string }

// Input is what a status is made from. Nothing in it is changed.
type Input struct {
	// Pod as the API server has it.
	Pod *corev1.Pod
	// Last is the status generated before, nil for none: then the pod's own counts, so
	// that an agent that was started again goes on from what it had written. [Manager.Get] has it.
	Last *corev1.PodStatus
	// Runtime is the pod as the runtime has it; nil when nothing of it was ever seen.
	Runtime *container.PodStatus
	// RuntimeName is the runtime's, such as "containerd": the scheme of container IDs.
	RuntimeName string
	// Waiting says by container why it does not run, for those that should.
	Waiting map[string]Reason
	// Probed is what the probes of a container with an ID in the runtime came to; nil is nothing yet.
	Probed func(id string, kind probe.Kind) probe.Result
	// HostIPs are the node's addresses, the primary first.
	HostIPs []string
	// Failed, when set, ends the pod: it was evicted, refused, or is past its deadline.
	Failed *Reason
	// Terminal says that no container of the pod will be started again.
	Terminal bool
	// Now is the time of a pod's start that has none yet, and of conditions that change.
	Now time.Time
}

// Generate makes the status of a pod by the kubelet's rules (generateAPIPodStatus).
// Besides those it keeps what was said before and the runtime no longer knows: restart
// counts never fall, a container's last end is not forgotten with its remains, nor the pod's
// addresses with its sandbox. A phase of Succeeded or Failed is never left.
//
// It also decides: a pod whose generated phase is terminal must not be synced further.
func Generate(in Input) corev1.PodStatus {
	g := generator{Input: in, pod: in.Pod, runtime: in.Runtime}
	if g.runtime == nil {
		g.runtime = &container.PodStatus{}
	}
	if g.old = in.Last; g.old == nil {
		g.old = &in.Pod.Status
	}
	return g.generate()
}

// generator is one call of Generate.
type generator struct {
	Input
	pod     *corev1.Pod
	runtime *container.PodStatus
	old     *corev1.PodStatus
}

func (g *generator) generate() corev1.PodStatus {
	s := corev1.PodStatus{ObservedGeneration: max(g.pod.Generation, g.old.ObservedGeneration), QOSClass: qos(g.pod)}
	if !g.refused() {
		s.ContainerStatuses = g.containers(g.pod.Spec.Containers, g.old.ContainerStatuses, false)
		s.InitContainerStatuses = g.containers(g.pod.Spec.InitContainers, g.old.InitContainerStatuses, true)
	}
	s.Phase, s.Reason, s.Message = g.phase(append(slices.Clone(s.InitContainerStatuses), s.ContainerStatuses...))
	g.addresses(&s)
	s.Conditions = g.conditions(&s)
	if s.StartTime = g.old.StartTime.DeepCopy(); s.StartTime.IsZero() {
		s.StartTime = new(metav1.NewTime(g.Now))
	}
	// What only others write.
	s.ResourceClaimStatuses, s.NominatedNodeName = g.old.ResourceClaimStatuses, g.old.NominatedNodeName
	s.EphemeralContainerStatuses, s.Resize = g.old.EphemeralContainerStatuses, g.old.Resize
	Normalize(g.pod, &s)
	return s
}

// refused reports a pod that failed before anything of it began: it has no containers
// to tell of.
func (g *generator) refused() bool {
	return g.Failed != nil && len(g.runtime.Containers) == 0 && len(g.old.ContainerStatuses) == 0 && len(g.old.InitContainerStatuses) == 0
}

func terminal(p corev1.PodPhase) bool { return p == corev1.PodSucceeded || p == corev1.PodFailed }

// phase is the pod's phase and what goes with it. What the API server or an
// earlier status ended stays ended, with the reason it had.
func (g *generator) phase(statuses []corev1.ContainerStatus) (phase corev1.PodPhase, reason, message string) {
	phase = Phase(g.pod, statuses, g.Terminal, g.started())
	if terminal(g.old.Phase) {
		phase = g.old.Phase
	}
	if phase == g.old.Phase {
		reason, message = g.old.Reason, g.old.Message
		if reason == "" {
			reason = g.pod.Status.Reason
		}
		if message == "" {
			message = g.pod.Status.Message
		}
	}
	if g.Failed != nil && !terminal(g.old.Phase) {
		phase, reason, message = corev1.PodFailed, g.Failed.Reason, g.Failed.Message
	}
	if was := g.pod.Status.Phase; terminal(was) && phase != was {
		phase, reason, message = was, g.pod.Status.Reason, g.pod.Status.Message
	}
	return phase, reason, message
}

// started reports whether a regular container was made in the pod's present sandbox,
// which shows that the init containers are done.
func (g *generator) started() bool {
	i := slices.IndexFunc(g.runtime.Sandboxes, func(s container.SandboxStatus) bool { return s.Ready })
	if i < 0 {
		return false
	}
	for _, c := range g.runtime.Containers {
		if c.SandboxID == g.runtime.Sandboxes[i].ID && find(g.pod.Spec.Containers, c.Name) != nil {
			return true
		}
	}
	return false
}

func find(list []corev1.Container, name string) *corev1.Container {
	for i := range list {
		if list[i].Name == name {
			return &list[i]
		}
	}
	return nil
}

// addresses sets the host's and the pod's. A pod on the node's network has the node's.
func (g *generator) addresses(s *corev1.PodStatus) {
	ips, host, ready := g.runtime.IPs, g.pod.Spec.HostNetwork, false
	for i, sandbox := range g.runtime.Sandboxes {
		ready = ready || sandbox.Ready
		host = host || i == 0 && sandbox.HostNetwork
	}
	switch {
	case host && (ready || g.pod.Spec.HostNetwork):
		ips = g.HostIPs
	case len(ips) == 0 && !ready: // keep the addresses, across restarts of the agent too
		for _, ip := range g.old.PodIPs {
			ips = append(ips, ip.IP)
		}
	}
	for _, ip := range ips {
		s.PodIPs = append(s.PodIPs, corev1.PodIP{IP: ip})
	}
	if len(ips) > 0 {
		s.PodIP = ips[0]
	}
	s.HostIP, s.HostIPs = g.old.HostIP, g.old.HostIPs
	if len(g.HostIPs) > 0 {
		s.HostIP, s.HostIPs = g.HostIPs[0], nil
		for _, ip := range g.HostIPs {
			s.HostIPs = append(s.HostIPs, corev1.HostIP{IP: ip})
		}
	}
}
