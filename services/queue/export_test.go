package queue

import (
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/maintain"
	"github.com/deltaplane/deltaplane/services/queue/session"
	"github.com/deltaplane/deltaplane/services/queue/transaction"
)

// Calls are the calls of workers, producers and operators.
type Calls struct {
	queuev1.QueueServiceServer
	queuev1.QueueAdminServiceServer
}

// What the tests of the whole service look at, or call without the network.

func (s *Service) Queues() *transaction.Queues { return s.queues }
func (s *Service) Sessions() *session.Sessions { return s.sessions }
func (s *Service) Upkeep() *maintain.Upkeep    { return s.upkeep }
func (s *Service) Server() Calls               { return Calls{s.servers.queue, s.servers.admin} }
func (s *Service) RPC() *rpc.Server            { return s.rpc }
func (s *Service) Admin() *telemetry.Admin     { return s.admin }
