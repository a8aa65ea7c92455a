package podgc

import (
	"time"

	"github.com/deltaplane/deltaplane/core/nodelifecycle"
	"github.com/deltaplane/deltaplane/core/taint"
)

// Pod is what matters of a pod, as the API writes it.
type Pod struct {
	Metadata struct {
		Namespace                  string     `json:"namespace"`
		Name                       string     `json:"name"`
		UID                        string     `json:"uid"`
		ResourceVersion            string     `json:"resourceVersion"`
		Generation                 int64      `json:"generation"`
		CreationTimestamp          time.Time  `json:"creationTimestamp"`
		DeletionTimestamp          *time.Time `json:"deletionTimestamp"`
		DeletionGracePeriodSeconds *int64     `json:"deletionGracePeriodSeconds"`
	} `json:"metadata"`
	Spec struct {
		NodeName string `json:"nodeName"`
	} `json:"spec"`
	Status struct {
		Phase  string `json:"phase"`
		Reason string `json:"reason"`
	} `json:"status"`
}

// Fields are the paths of an ended pod that [Surplus] and its deletion need.
func Fields() []string {
	return []string{
		"metadata.namespace", "metadata.name", "metadata.uid", "metadata.resourceVersion", "metadata.creationTimestamp",
		"metadata.deletionTimestamp", "metadata.deletionGracePeriodSeconds", "spec.nodeName", "status.phase", "status.reason",
	}
}

// The phases of a pod that has ended.
const (
	Succeeded = "Succeeded"
	Failed    = "Failed"
)

// Key is the pod's namespace and name.
func (p *Pod) Key() string { return p.Metadata.Namespace + "/" + p.Metadata.Name }

// Ended says that no container of the pod will ever run again.
func (p *Pod) Ended() bool { return p.Status.Phase == Succeeded || p.Status.Phase == Failed }

// Deleting says that the pod's deletion was asked for.
func (p *Pod) Deleting() bool { return p.Metadata.DeletionTimestamp != nil }

// Collected says that there is nothing left to do for the pod: it has ended and is
// deleted but for its finalizers.
func (p *Pod) Collected() bool {
	grace := p.Metadata.DeletionGracePeriodSeconds
	return p.Ended() && p.Deleting() && grace != nil && *grace == 0
}

// evicted says that a kubelet ended the pod for want of resources.
func (p *Pod) evicted() bool { return p.Status.Phase == Failed && p.Status.Reason == "Evicted" }

// Reason is why a pod is collected, as metrics name it; empty when it is not.
type Reason string

// The reasons.
const (
	Orphaned     Reason = "orphaned"
	OutOfService Reason = "out-of-service"
	Terminated   Reason = "terminated"
	Unscheduled  Reason = "unscheduled"
)

// Judge says why a pod is to be collected, whatever others there are. The node is
// the one it is bound to, nil when that does not exist.
func Judge(p *Pod, n *nodelifecycle.Node) Reason {
	switch {
	case p.Collected():
		return ""
	case p.Spec.NodeName == "" && p.Deleting():
		return Unscheduled
	case p.Spec.NodeName == "":
		return ""
	case n == nil:
		return Orphaned
	case p.Deleting() && Shut(n):
		return OutOfService
	default:
		return ""
	}
}

// Shut says that a node was put out of service: it has the taint, whatever its
// value and effect, and is not ready.
func Shut(n *nodelifecycle.Node) bool {
	if n.Ready() == nodelifecycle.True {
		return false
	}
	for _, x := range n.Spec.Taints {
		if x.Key == taint.OutOfService {
			return true
		}
	}
	return false
}
