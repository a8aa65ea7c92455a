package queue

import (
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// server answers the QueueService, each call by the room it belongs to.
type server struct {
	queuev1.UnsafeQueueServiceServer // what has no method here does not compile
	*workServer
	*sessionServer
	*produceServer
	*adminServer
	*backoffServer
}
