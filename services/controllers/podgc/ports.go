package podgc

import (
	"context"
	"errors"

	"github.com/deltaplane/deltaplane/internal/kube"
)

// ErrStale is that pods and nodes are not followed at present: nothing may be
// deleted, and the key is to come back.
var ErrStale = errors.New("podgc: pods or nodes are not followed at present")

// Reader reads the index, at the lease's barrier. Answers are JSON; nil when there
// is none.
type Reader interface {
	// Fresh fails with [ErrStale] when pods or nodes are older than their bound; every
	// read that follows is at least of the versions it found.
	Fresh(ctx context.Context) error
	Pod(ctx context.Context, key string) ([]byte, error)
	Node(ctx context.Context, name string) ([]byte, error)
	// PodsOn are the keys of the pods bound to a node.
	PodsOn(ctx context.Context, node string) ([]string, error)
	// Ended are the pods that have ended, as far as their fields matter; none when there
	// are not more than so many.
	Ended(ctx context.Context, above int) ([][]byte, error)
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
	State  []byte
	Reader Reader
	Lease  Lease
}
