package podstatus

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/services/controllers/nodeagent/container"
)

// Reason says why something is as it is.
type Reason struct{ Reason, Message string }

// Input is what a status is made from. Nothing in it is changed.
type Input struct {
	// Pod as the API server has it.
	Pod *corev1.Pod
	// Last is the status generated before, nil for none: then the pod's own counts.
	// [Manager.Get] has it.
	Last *corev1.PodStatus
	// Runtime is the pod as the runtime has it; nil when nothing of it was ever seen.
	Runtime *container.PodStatus
	// Waiting says by container why it does not run, for those that should.
	Waiting map[string]Reason
	// HostIPs are the node's addresses, the primary first.
	HostIPs []string
	// Failed, when set, ends the pod: it was evicted, refused, or is past its deadline.
	Failed *Reason
	// Terminal says that no container of the pod will be started again.
	Terminal bool
	// Now is the time of a pod's start that has none yet, and of conditions that change.
	Now time.Time
}

// Generate makes the status of a pod by the kubelet's rules.
func Generate(in Input) corev1.PodStatus {
	return corev1.PodStatus{}
}
