package tainteviction

import (
	"context"
	"errors"
)

// Answers of the API server that are told apart; a [Writer] wraps them. Any other
// error is tried again.
var (
	// ErrNotFound: there is no such object.
	ErrNotFound = errors.New("not found")
	// ErrConflict: a UID precondition did not hold.
	ErrConflict = errors.New("conflict")
)

// Reader reads the index, at the lease's barrier. Answers are the JSON of objects
// as the API server sent them; nil when there is none.
type Reader interface {
	Pod(ctx context.Context, key string) ([]byte, error)
	Node(ctx context.Context, name string) ([]byte, error)
	// PodsOn are the keys of the pods bound to a node.
	PodsOn(ctx context.Context, node string) ([]string, error)
}

// Writer calls the API server; nothing it answers comes from a cache.
type Writer interface {
	Pod(ctx context.Context, namespace, name string) ([]byte, error)
	Node(ctx context.Context, name string) ([]byte, error)
	// PatchPodStatus applies a strategic merge patch; metadata.uid in it is a precondition.
	PatchPodStatus(ctx context.Context, namespace, name string, patch []byte) error
	// DeletePod deletes the pod with this UID.
	DeletePod(ctx context.Context, namespace, name, uid string) error
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

// Events receives the Events to write about pods, without waiting.
type Events interface {
	Pod(namespace, name, uid, reason, message string)
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
