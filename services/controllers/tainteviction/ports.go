package tainteviction

import (
	"context"

	"github.com/deltaplane/deltaplane/internal/kube"
)

// Reader reads the index, at the lease's barrier. Answers are the JSON of objects
// as the API server sent them; nil when there is none.
type Reader interface {
	Pod(ctx context.Context, key string) ([]byte, error)
	Node(ctx context.Context, name string) ([]byte, error)
	// PodsOn are the keys of the pods bound to a node.
	PodsOn(ctx context.Context, node string) ([]string, error)
}

// API is the API server: pods and nodes are read, statuses of pods patched, pods deleted.
type API interface {
	kube.Getter
	kube.Patcher
	kube.Deleter
}

// Lease is the right to work on the key.
type Lease interface {
	// Save keeps bytes with the key; nil clears them.
	Save(ctx context.Context, state []byte) error
	// Alive is nil while the lease holds.
	Alive() error
	// Wake adds keys to the queue.
	Wake(ctx context.Context, keys []string) error
}

// Request is one key to look at.
type Request struct {
	Key string
	// State is what was saved with the key.
	State []byte
	// Retries is how often it was tried before; above zero no Event is repeated.
	Retries int64
	Reader  Reader
	Lease   Lease
}
