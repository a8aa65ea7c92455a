package nodelifecycle

import (
	"time"

	"github.com/deltaplane/deltaplane/core/taint"
)

// Node is what matters of a node, as the API writes it.
type Node struct {
	Metadata struct {
		Name              string            `json:"name"`
		UID               string            `json:"uid"`
		ResourceVersion   string            `json:"resourceVersion"`
		CreationTimestamp time.Time         `json:"creationTimestamp"`
		Labels            map[string]string `json:"labels"`
	} `json:"metadata"`
	Spec struct {
		Unschedulable bool          `json:"unschedulable"`
		Taints        []taint.Taint `json:"taints"`
	} `json:"spec"`
	Status struct {
		Conditions []Condition `json:"conditions"`
	} `json:"status"`
}

// Condition is a condition of a node. The heartbeat is compared as text: the
// node's clock may say anything.
type Condition struct {
	Type               string `json:"type"`
	Status             string `json:"status"`
	LastHeartbeatTime  string `json:"lastHeartbeatTime,omitempty"`
	LastTransitionTime string `json:"lastTransitionTime,omitempty"`
	Reason             string `json:"reason,omitempty"`
	Message            string `json:"message,omitempty"`
}

// The conditions a kubelet reports.
const (
	Ready              = "Ready"
	MemoryPressure     = "MemoryPressure"
	DiskPressure       = "DiskPressure"
	PIDPressure        = "PIDPressure"
	NetworkUnavailable = "NetworkUnavailable"
)

// The states of a condition.
const (
	True    = "True"
	False   = "False"
	Unknown = "Unknown"
)

// Condition is the node's condition of a type; it has no status when there is none.
func (n *Node) Condition(kind string) Condition {
	for _, c := range n.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return Condition{}
}

// Ready is the status of the Ready condition, or empty.
func (n *Node) Ready() string { return n.Condition(Ready).Status }

// Lease is what matters of a node's lease.
type Lease struct {
	Spec struct {
		RenewTime string `json:"renewTime"`
	} `json:"spec"`
}
