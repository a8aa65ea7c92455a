package container

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Labels and annotations that the agent puts on what it creates in the runtime,
// so that an agent started later finds everything there. The names are the
// kubelet's, so that crictl and log collectors read them too.
const (
	LabelPodName       = "io.kubernetes.pod.name"
	LabelPodNamespace  = "io.kubernetes.pod.namespace"
	LabelPodUID        = "io.kubernetes.pod.uid"
	LabelContainerName = "io.kubernetes.container.name"
	// LabelNode is the node whose agent owns the sandbox or container: agents of
	// several nodes may share one runtime, and touch nothing that is not theirs.
	LabelNode = "deltaplane.io/node"

	AnnotationHash              = "io.kubernetes.container.hash"
	AnnotationRestartCount      = "io.kubernetes.container.restartCount"
	AnnotationMessagePath       = "io.kubernetes.container.terminationMessagePath"
	AnnotationMessagePolicy     = "io.kubernetes.container.terminationMessagePolicy"
	AnnotationPodDeletionGrace  = "io.kubernetes.pod.deletionGracePeriod"
	AnnotationPodTerminateGrace = "io.kubernetes.pod.terminationGracePeriod"

	// AnnotationContainerKind on a container is one of the kinds below, and AnnotationRestartPolicy is
	// its pod's: the CRI carries neither, and a simulated runtime's defaults depend on both.
	AnnotationContainerKind = "deltaplane.io/container-kind"
	AnnotationRestartPolicy = "deltaplane.io/restart-policy"
	// KindInit is an init container that is to end, KindSidecar one that is not, KindMain any other
	// container.
	KindInit    = "init"
	KindSidecar = "sidecar"
	KindMain    = "container"
)

// State is what a runtime says of a container.
type State uint8

// The states. Unknown is also what any number of a runtime's is that the CRI does not define.
const (
	Unknown State = iota
	Created
	Running
	Exited
)

func (s State) String() string {
	return [...]string{"unknown", "created", "running", "exited"}[min(s, Exited)]
}

// Container is one container as a runtime lists it.
type Container struct {
	ID string
	// Name is the container's in the pod's spec.
	Name string
	// SandboxID is the sandbox it was created in.
	SandboxID string
	// Image is the reference the spec asked for, ImageRef what the runtime made of it.
	Image, ImageRef string
	State           State
	CreatedAt       time.Time
	// Attempt counts the container's instances in the pod, from 0.
	Attempt uint32
	// Hash is that of the container's spec when it was created; 0 is not known.
	Hash uint64
}

// Sandbox is one pod sandbox as a runtime lists it.
type Sandbox struct {
	ID        string
	Ready     bool
	CreatedAt time.Time
	Attempt   uint32
}

// Pod is what a runtime lists of one pod: dead containers and sandboxes too,
// when they were asked for. Both are sorted newest first, by attempt and not by the clock.
type Pod struct {
	UID             types.UID
	Namespace, Name string
	Sandboxes       []Sandbox
	Containers      []Container
}

// Running reports whether anything of the pod still runs: a container that is
// not known to have ended, or a ready sandbox.
func (p Pod) Running() bool {
	for _, c := range p.Containers {
		if c.State == Running || c.State == Unknown {
			return true
		}
	}
	for _, s := range p.Sandboxes {
		if s.Ready {
			return true
		}
	}
	return false
}
