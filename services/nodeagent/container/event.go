package container

import (
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// ErrNoEvents says that the runtime has no stream of container events: it does not implement the
// call, or implements it as a stub. Who gets it goes by listing.
var ErrNoEvents = errors.New("container: the runtime has no event stream")

// EventKind is what a runtime's event stream says happened to a container or sandbox.
type EventKind uint8

// The kinds. The zero value is none of them: a number of the runtime's that the CRI does not
// define.
const (
	EventUnknown EventKind = iota
	EventCreated
	EventStarted
	EventStopped
	EventDeleted
)

func (k EventKind) String() string {
	return [...]string{"unknown", "created", "started", "stopped", "deleted", "undefined"}[min(k, EventDeleted+1)]
}

// Event is one message of a runtime's event stream.
type Event struct {
	// ContainerID is what it happened to; equal to SandboxID when that is the sandbox itself.
	ContainerID, SandboxID string
	PodUID                 types.UID
	Kind                   EventKind
	// Status is the pod as the runtime saw it when it made the event, with At set to the event's; nil
	// when the runtime sent no sandbox status with it.
	Status *PodStatus
	// At is when the runtime made the event, by the runtime's clock; zero when it did not say.
	At time.Time
}
