package work

import (
	"context"
	"sync/atomic"
	"time"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/metrics"
	"github.com/deltaplane/deltaplane/services/queue/session"
	"github.com/deltaplane/deltaplane/services/queue/transaction"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

// Server answers the calls by which workers get keys.
type Server struct {
	Queues   *transaction.Queues
	Sessions *session.Sessions
	Leases   *session.Leases
	Metrics  *metrics.Set
	// Permit says whether the caller may have a queue's keys, for as long as its stream lasts.
	Permit wire.Permit
	// StopGrace is how long Work streams may go on once stopping is closed.
	StopGrace time.Duration
	Stopping  <-chan struct{}
	// Aging is when a connection's streams are to move elsewhere.
	Aging func(context.Context) (first, every time.Duration)
	gets  atomic.Uint32 // counts Gets
}

// Get implements the QueueService.
func (s *Server) Get(ctx context.Context, r *queuev1.GetRequest) (*queuev1.GetResponse, error) {
	came := s.Queues.Clock(time.Now())
	c := &wire.Checks{}
	c.Queue("queue", r.GetQueue())
	c.Session("session_id", r.GetSessionId(), true)
	c.Count("max_items", int(r.GetMaxItems()), 0, wire.MaxItems)
	wait := c.Duration("wait", r.GetWait(), wire.MaxWait)
	leaseFor := c.Lease("lease_duration", r.GetLeaseDuration())
	if err := c.Err(); err != nil {
		return nil, err
	}
	d, err := s.Queues.Use(ctx, r.GetQueue())
	if err != nil {
		return nil, err
	}
	ss, err := s.Sessions.Get(wire.SessionID(ctx, r.GetSessionId()))
	if err != nil {
		return nil, err
	}
	got, err := s.get(ctx, d, ss, max(int(r.GetMaxItems()), 1), leaseFor, wait)
	if err != nil {
		return nil, err
	}
	leases := got.leases
	if n := within(leases); n < len(leases) { // the caller could not receive the rest
		s.giveBack(d, ss, leases[n:])
		leases = leases[:n]
	}
	return &queuev1.GetResponse{
		Leases: leases, ShutDown: got.shut, Generation: s.Queues.Engine.Generation(), ClockUs: came, Unreachable: got.missing,
	}, nil
}
