package wire

import (
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/internal/rpc"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

// What can go wrong besides bad requests and the store.
var (
	ErrClosed        = errors.New("queue is closed")
	ErrBarrierFull   = errors.New("barrier names too many collections")
	ErrRequestID     = errors.New("request id is older than what is remembered")
	ErrRequestReused = errors.New("request id was used in this session for another request")
	ErrNotHello      = errors.New("the first message of a Work stream must be hello, and no other")
	ErrOverrun       = errors.New("the worker does not read its stream")
	ErrSessions      = errors.New("too many sessions")
	ErrQueues        = errors.New("too many queues")
	ErrStopping      = errors.New("server is stopping")
	ErrOverload      = errors.New("too many operations wait for the queue's next transactions")
	ErrMoved         = errors.New("the session was resumed by another stream")
	// ErrOtherCaller refuses a lease that was handed to another caller.
	ErrOtherCaller = errors.New("a lease of another caller")
)

// Rules map errors to statuses.
var Rules = []rpc.Rule{
	{Is: engine.ErrNoQueue, Code: codes.NotFound, Reason: "QUEUE_NOT_FOUND"},
	{Is: engine.ErrLeased, Code: codes.FailedPrecondition, Reason: "QUEUE_LEASED"},
	{Is: engine.ErrPartitions, Code: codes.FailedPrecondition, Reason: "PARTITIONS_FIXED"},
	{Is: engine.ErrDurability, Code: codes.FailedPrecondition, Reason: "DURABILITY_UNAVAILABLE"},
	{Is: engine.ErrUnknown, Code: codes.Unknown, Reason: "STORE_OUTCOME_UNKNOWN", Retry: time.Second},
	{Is: engine.ErrFull, Code: codes.ResourceExhausted, Reason: "STORE_FULL", Retry: 5 * time.Second},
	{Is: engine.ErrDenied, Code: codes.Unavailable, Reason: "STORE_DENIED", Retry: 5 * time.Second},
	{Is: engine.ErrUnsuitable, Code: codes.Unavailable, Reason: "STORE_UNFIT", Retry: 5 * time.Second},
	{Is: engine.ErrEviction, Code: codes.Unavailable, Reason: "STORE_UNFIT", Retry: 5 * time.Second},
	{Is: engine.ErrUnavailable, Code: codes.Unavailable, Reason: "STORE_UNAVAILABLE", Retry: time.Second},
	{Is: ErrClosed, Code: codes.FailedPrecondition, Reason: "QUEUE_CLOSED"},
	{Is: ErrBarrierFull, Code: codes.ResourceExhausted, Reason: "BARRIER_FULL"},
	{Is: ErrRequestID, Code: codes.FailedPrecondition, Reason: "REQUEST_ID_TOO_OLD"},
	{Is: ErrRequestReused, Code: codes.FailedPrecondition, Reason: "REQUEST_ID_REUSED"},
	{Is: ErrNotHello, Code: codes.InvalidArgument, Reason: "HELLO_EXPECTED"},
	{Is: ErrOverrun, Code: codes.ResourceExhausted, Reason: "WORKER_TOO_SLOW", Retry: time.Second},
	{Is: ErrSessions, Code: codes.ResourceExhausted, Reason: "TOO_MANY_SESSIONS", Retry: 5 * time.Second},
	{Is: ErrQueues, Code: codes.ResourceExhausted, Reason: "TOO_MANY_QUEUES"},
	{Is: ErrOverload, Code: codes.ResourceExhausted, Reason: "OVERLOADED", Retry: 100 * time.Millisecond},
	{Is: ErrStopping, Code: codes.Unavailable, Reason: "STOPPING"},
	{Is: ErrOtherCaller, Code: codes.PermissionDenied, Reason: "LEASE_OF_ANOTHER_CALLER"},
	{Is: ErrMoved, Code: codes.Aborted, Reason: "SESSION_MOVED"},
}

// AsProduceError says what a status would.
func AsProduceError(err error) *queuev1.ProduceError {
	st := rpc.Status(err, Rules)
	out := &queuev1.ProduceError{Code: int32(rpc.Code(st)), Reason: rpc.Reason(st), Message: status.Convert(st).Message()} //nolint:gosec // a code
	if d := rpc.RetryDelay(st); d > 0 {
		out.RetryAfter = durationpb.New(d)
	}
	return out
}
