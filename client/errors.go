package client

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/internal/rpc"
)

// Errors that a server names by a reason. Match them with errors.Is.
var (
	// ErrKeyNotFound: the collection, as of the revision read, does not hold the key.
	ErrKeyNotFound error = reason("KEY_NOT_FOUND")
	// ErrCollectionNotFound: nobody serves the collection.
	ErrCollectionNotFound error = reason("COLLECTION_NOT_FOUND")
	// ErrNotSynced: the collection cannot be read yet; try again later.
	ErrNotSynced error = reason("COLLECTION_NOT_SYNCED")
	// ErrRevisionNotReached: the index did not reach the revision in time; try again later.
	ErrRevisionNotReached error = reason("REVISION_NOT_REACHED")
	// ErrNotExact: there was no exact state in time; see ReadOptions.Exact.
	ErrNotExact error = reason("STATE_NOT_EXACT")
	// ErrIndexNotFound: the collection has no such index.
	ErrIndexNotFound error = reason("INDEX_NOT_FOUND")
	// ErrIndexBuilding: the index is declared and not complete yet; try again later.
	ErrIndexBuilding error = reason("INDEX_BUILDING")
	// ErrIndexFailed: the definition of the index cannot be used on the replica; of a
	// strict read, also that the index has no values for some objects.
	ErrIndexFailed error = reason("INDEX_FAILED")
	// ErrIndexConflict: the name of the index has another definition.
	ErrIndexConflict error = reason("INDEX_CONFLICT")
	// ErrTooManyIndexes: the collection cannot have more indexes.
	ErrTooManyIndexes error = reason("TOO_MANY_INDEXES")
	// ErrKeyQuarantined: the newest version of the key could not be read.
	ErrKeyQuarantined error = reason("KEY_QUARANTINED")
	// ErrQueueNotFound: the queue has not been configured.
	ErrQueueNotFound error = reason("QUEUE_NOT_FOUND")
	// ErrQueueClosed: the queue takes no keys at present.
	ErrQueueClosed error = reason("QUEUE_CLOSED")
	// ErrSnapshotGone: what a page token refers to is not kept any more, or not on this
	// replica; see [Index.Page].
	ErrSnapshotGone error = errSnapshotGone
)

// Errors made on this side.
var (
	// ErrLeaseLost: the lease ended before it was settled; the key may be
	// somebody else's by now.
	ErrLeaseLost = errors.New("client: lease lost")
	// ErrStopped: the [Producer] or [Puller] has stopped. What it was asked for was
	// not done, or nobody can tell.
	ErrStopped = errors.New("client: stopped")
	// ErrDroppedFields: objects of the collection lack fields that the API server has, so that
	// writing one back would remove them there.
	ErrDroppedFields = errors.New("client: objects lack fields that a write would remove")
	// ErrShutDown: somebody shut the session down.
	ErrShutDown = errors.New("client: session was shut down")
)

const errSnapshotGone = reason("SNAPSHOT_GONE")

type reason string

func (r reason) Error() string { return "client: " + string(r) }

// Error is a call that a server refused. It matches the sentinel of its reason,
// and unwraps to the status.
type Error struct {
	// Op is what was being done, "get dev/pods.v1 ns/a".
	Op string
	// Code is the gRPC code.
	Code codes.Code
	// Reason is the server's reason in UPPER_SNAKE_CASE, or empty.
	Reason string
	// RetryAfter is how long the server asks to wait, or 0.
	RetryAfter time.Duration
	// Fields are the request fields at fault and what is wrong with them.
	Fields map[string]string

	err error
}

func (e *Error) Error() string { return fmt.Sprintf("client: %s: %v", e.Op, e.err) }

// Unwrap returns the status error.
func (e *Error) Unwrap() error { return e.err }

// Is matches the sentinel that has e's reason.
func (e *Error) Is(target error) bool {
	r, ok := target.(reason)
	return ok && string(r) == e.Reason
}

func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*Error](err); ok {
		return err
	}
	return &Error{
		Op: fmt.Sprintf(format, args...), Code: rpc.Code(err), Reason: rpc.Reason(err),
		RetryAfter: rpc.RetryDelay(err), Fields: rpc.Violations(err), err: err,
	}
}
