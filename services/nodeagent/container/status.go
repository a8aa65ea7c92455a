package container

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Status is one container in full.
type Status struct {
	Container
	StartedAt, FinishedAt time.Time
	ExitCode              int32
	// Reason and Message are the runtime's ("OOMKilled", "Completed", "Error",
	// "StartError"); the termination message is part of Message once the runtime manager has read it.
	Reason, Message string
	// RestartCount is the instance's number as it was written down at its creation.
	RestartCount int
	LogPath      string
}

// SandboxStatus is one pod sandbox in full.
type SandboxStatus struct {
	Sandbox
	// IPs are the pod's addresses, the primary first; none on the node's network.
	IPs []string
	// HostNetwork says that it shares the node's network namespace.
	HostNetwork bool
}

// PodStatus is one pod in full, as the runtime answered at one moment. Containers
// of all instances and sandboxes are there, each sorted newest first.
type PodStatus struct {
	UID             types.UID
	Namespace, Name string
	IPs             []string
	Sandboxes       []SandboxStatus
	Containers      []Status
	// At is when the runtime was asked, by the agent's clock.
	At time.Time
}

// Latest is the newest instance of a container, or nil. It is safe on a nil status.
func (s *PodStatus) Latest(name string) *Status {
	if s == nil {
		return nil
	}
	for i := range s.Containers {
		if s.Containers[i].Name == name {
			return &s.Containers[i]
		}
	}
	return nil
}

// Running reports whether anything of the pod still runs, as [Pod.Running] does. It is safe on a
// nil status.
func (s *PodStatus) Running() bool {
	if s == nil {
		return false
	}
	for i := range s.Containers {
		if c := s.Containers[i].State; c == Running || c == Unknown {
			return true
		}
	}
	for i := range s.Sandboxes {
		if s.Sandboxes[i].Ready {
			return true
		}
	}
	return false
}

// ID is the runtime's ID of a container in a status, where it stands as RUNTIME://ID; empty for any
// other text.
func ID(inStatus string) string {
	_, id, _ := strings.Cut(inStatus, "://")
	return id
}
