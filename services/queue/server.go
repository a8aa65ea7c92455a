package queue

import (
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/admin"
	"github.com/deltaplane/deltaplane/services/queue/backoff"
	"github.com/deltaplane/deltaplane/services/queue/produce"
	"github.com/deltaplane/deltaplane/services/queue/session"
	"github.com/deltaplane/deltaplane/services/queue/work"
)

// The calls of each part, by a name of its own.
type (
	workCalls    = work.Server
	sessionCalls = session.Server
	produceCalls = produce.Server
	adminCalls   = admin.Server
	backoffCalls = backoff.Server
)

// server answers the QueueService, each call by the room it belongs to.
type server struct {
	queuev1.UnsafeQueueServiceServer // what has no method here does not compile
	*workCalls
	*sessionCalls
	*produceCalls
	*adminCalls
	*backoffCalls
}
