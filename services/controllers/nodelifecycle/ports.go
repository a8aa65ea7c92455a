package nodelifecycle

import (
	"context"
	"errors"

	"github.com/deltaplane/deltaplane/core/nodelifecycle"
	"github.com/deltaplane/deltaplane/internal/kube"
)

// ErrStale is that the collections are not followed at present: nothing can be
// judged, and the key is to come back.
var ErrStale = errors.New("nodelifecycle: nodes or leases are not followed at present")

// Reader reads the index. Answers are JSON; nil when there is none.
type Reader interface {
	// Fresh says how current nodes and leases are; every read that follows is at
	// least of the versions it found. It fails with [ErrStale].
	Fresh(ctx context.Context) (nodelifecycle.Fresh, error)
	Node(ctx context.Context, name string) ([]byte, error)
	Lease(ctx context.Context, name string) ([]byte, error)
	// PodsOn are the pods bound to a node.
	PodsOn(ctx context.Context, node string) ([][]byte, error)
}

// API is the API server: nodes and leases are read, nodes and statuses of pods patched.
type API interface {
	kube.Getter
	kube.Patcher
}

// Waiting is the queues of the zones.
type Waiting interface {
	// Add makes a node wait for its zone's rate; one that waits already keeps its place.
	Add(ctx context.Context, zone nodelifecycle.Zone, node string) error
	// Remove takes a node out of a zone's queue, if it waits there.
	Remove(ctx context.Context, zone nodelifecycle.Zone, node string) error
	// Limit sets how many nodes a second a zone's queue hands out; zero for none.
	// Setting what is set already changes nothing.
	Limit(ctx context.Context, zone nodelifecycle.Zone, rate float64) error
}

// Lease is the right to work on the key.
type Lease interface {
	// Save keeps bytes with the key; nil clears them.
	Save(ctx context.Context, state []byte) error
	// Alive is nil while the lease holds.
	Alive() error
}

// Request is one node to look at.
type Request struct {
	Name   string
	State  []byte
	Reader Reader
	Lease  Lease
}
