package queue

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

// What can go wrong beside bad requests and the store.
var (
	errClosed        = errors.New("queue is closed")
	errBarrierFull   = errors.New("barrier names too many collections")
	errRequestID     = errors.New("request id is older than what is remembered")
	errRequestReused = errors.New("request id was used in this session for another request")
	errNotHello      = errors.New("the first message of a Work stream must be hello, and no other")
	errOverrun       = errors.New("the worker does not read its stream")
	errSessions      = errors.New("too many sessions")
	errQueues        = errors.New("too many queues")
	errStopping      = errors.New("server is stopping")
	errOverload      = errors.New("too many operations wait for the queue's next turns")
	errMoved         = errors.New("the session was resumed by another stream")
	// errOtherCaller refuses a lease that was handed to another caller.
	errOtherCaller = errors.New("a lease of another caller")
)

// rules map errors to statuses.
var rules = []rpc.Rule{
	{Is: engine.ErrNoQueue, Code: codes.NotFound, Reason: "QUEUE_NOT_FOUND"},
	{Is: engine.ErrLeased, Code: codes.FailedPrecondition, Reason: "QUEUE_LEASED"},
	{Is: engine.ErrPartitions, Code: codes.FailedPrecondition, Reason: "PARTITIONS_FIXED"},
	{Is: engine.ErrDurability, Code: codes.FailedPrecondition, Reason: "DURABILITY_UNAVAILABLE"},
	{Is: engine.ErrUnknown, Code: codes.Unknown, Reason: "STORE_OUTCOME_UNKNOWN", Retry: time.Second},
	{Is: engine.ErrFull, Code: codes.ResourceExhausted, Reason: "STORE_FULL", Retry: 5 * time.Second},
	{Is: engine.ErrDenied, Code: codes.Unavailable, Reason: "STORE_DENIED", Retry: 5 * time.Second},
	{Is: engine.ErrUnfit, Code: codes.Unavailable, Reason: "STORE_UNFIT", Retry: 5 * time.Second},
	{Is: engine.ErrEviction, Code: codes.Unavailable, Reason: "STORE_UNFIT", Retry: 5 * time.Second},
	{Is: engine.ErrUnavailable, Code: codes.Unavailable, Reason: "STORE_UNAVAILABLE", Retry: time.Second},
	{Is: errClosed, Code: codes.FailedPrecondition, Reason: "QUEUE_CLOSED"},
	{Is: errBarrierFull, Code: codes.ResourceExhausted, Reason: "BARRIER_FULL"},
	{Is: errRequestID, Code: codes.FailedPrecondition, Reason: "REQUEST_ID_TOO_OLD"},
	{Is: errRequestReused, Code: codes.FailedPrecondition, Reason: "REQUEST_ID_REUSED"},
	{Is: errNotHello, Code: codes.InvalidArgument, Reason: "HELLO_EXPECTED"},
	{Is: errOverrun, Code: codes.ResourceExhausted, Reason: "WORKER_TOO_SLOW", Retry: time.Second},
	{Is: errSessions, Code: codes.ResourceExhausted, Reason: "TOO_MANY_SESSIONS", Retry: 5 * time.Second},
	{Is: errQueues, Code: codes.ResourceExhausted, Reason: "TOO_MANY_QUEUES"},
	{Is: errOverload, Code: codes.ResourceExhausted, Reason: "OVERLOADED", Retry: 100 * time.Millisecond},
	{Is: errStopping, Code: codes.Unavailable, Reason: "STOPPING"},
	{Is: errOtherCaller, Code: codes.PermissionDenied, Reason: "LEASE_OF_ANOTHER_CALLER"},
	{Is: errMoved, Code: codes.Aborted, Reason: "SESSION_MOVED"},
}

// produceError says what a status would.
func produceError(err error) *queuev1.ProduceError {
	st := rpc.Status(err, rules)
	out := &queuev1.ProduceError{Code: int32(rpc.Code(st)), Reason: rpc.Reason(st), Message: status.Convert(st).Message()} //nolint:gosec // a code
	if d := rpc.RetryDelay(st); d > 0 {
		out.RetryAfter = durationpb.New(d)
	}
	return out
}
