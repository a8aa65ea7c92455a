package queue

import (
	"google.golang.org/grpc"

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
	lenCall      = admin.Reader
	adminCalls   = admin.Server
	backoffCalls = backoff.Server
)

// queueServer answers the QueueService, each call by the package it belongs to.
type queueServer struct {
	queuev1.UnsafeQueueServiceServer // what has no method here does not compile
	*workCalls
	*sessionCalls
	*produceCalls
	lenCall
}

type adminServer struct {
	queuev1.UnsafeQueueAdminServiceServer
	*adminCalls
}

type backoffServer struct {
	queuev1.UnsafeBackoffServiceServer
	*backoffCalls
}

// servers answer the three services of a queue server.
type servers struct {
	queue   *queueServer
	admin   *adminServer
	backoff *backoffServer
}

func (s *servers) register(r grpc.ServiceRegistrar) {
	queuev1.RegisterQueueServiceServer(r, s.queue)
	queuev1.RegisterQueueAdminServiceServer(r, s.admin)
	queuev1.RegisterBackoffServiceServer(r, s.backoff)
}
