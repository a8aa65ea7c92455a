package session

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/transaction"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

// Server answers the calls by which sessions end, and end or extend their leases.
type Server struct {
	Queues   *transaction.Queues
	Sessions *Sessions
	Leases   *Leases
	Stopping <-chan struct{}
}

// ShutDown implements the QueueService.
func (s *Server) ShutDown(ctx context.Context, r *queuev1.ShutDownRequest) (*queuev1.ShutDownResponse, error) {
	if _, err := s.shutDown(ctx, r.GetSessionId()); err != nil {
		return nil, err
	}
	return &queuev1.ShutDownResponse{}, nil
}

// ShutDownWithDrain implements the QueueService.
func (s *Server) ShutDownWithDrain(ctx context.Context, r *queuev1.ShutDownWithDrainRequest) (*queuev1.ShutDownWithDrainResponse, error) {
	c := &wire.Checks{}
	timeout := c.Duration("timeout", r.GetTimeout(), 24*time.Hour)
	if err := c.Err(); err != nil {
		return nil, err
	}
	ss, err := s.shutDown(ctx, r.GetSessionId())
	if err != nil {
		return nil, err
	}
	left, err := ss.drained(ctx, timeout, s.Stopping)
	if err != nil {
		return nil, err
	}
	return &queuev1.ShutDownWithDrainResponse{Remaining: int64(left)}, nil
}

// Settle implements the QueueService.
func (s *Server) Settle(ctx context.Context, r *queuev1.SettleRequest) (*queuev1.SettleResponse, error) {
	c := &wire.Checks{}
	c.Session("session_id", r.GetSessionId(), true)
	plan := NewPlan(c, r.GetSettlements())
	if err := c.Err(); err != nil {
		return nil, err
	}
	ss, err := s.Sessions.Get(wire.SessionID(ctx, r.GetSessionId()))
	if err != nil {
		return nil, err
	}
	unresolved, err := s.Leases.Verify(ctx, ss, len(plan.Ops), plan.Lease, StoreTimeout(r.GetPartial()))
	if err != nil {
		return nil, err
	}
	type outcome struct {
		results []*queuev1.SettleResult
		err     error
	}
	answers := make(chan outcome, 2) // the second is of what was late: nobody waits for it
	s.Leases.Settle(ctx, ss, r.GetRequestId(), plan, unresolved, !r.GetPartial(), StoreTimeout(r.GetPartial()), func(out *SettleResults) {
		Ended(out.Freed, false)
		answers <- outcome{out.each(), out.Err}
	})
	select {
	case out := <-answers:
		if out.err != nil {
			return nil, out.err
		}
		return &queuev1.SettleResponse{Results: out.results, RequestId: r.GetRequestId()}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Extend implements the QueueService.
func (s *Server) Extend(ctx context.Context, r *queuev1.ExtendRequest) (*queuev1.ExtendResponse, error) {
	c := &wire.Checks{}
	c.Session("session_id", r.GetSessionId(), true)
	c.Refs("leases", r.GetLeases())
	if err := c.Err(); err != nil {
		return nil, err
	}
	ss, err := s.Sessions.Get(wire.SessionID(ctx, r.GetSessionId()))
	if err != nil {
		return nil, err
	}
	refs := ss.OrAll(r.GetLeases())
	unresolved, err := s.Leases.Verify(ctx, ss, len(refs), RefAt(refs), StoreTimeout(r.GetPartial()))
	if err != nil {
		return nil, err
	}
	done := make(chan Extension, 1)
	s.Leases.Extend(ctx, ss, refs, unresolved, 0, !r.GetPartial(), StoreTimeout(r.GetPartial()), func(e Extension) {
		Ended(e.Freed, false)
		done <- e
	})
	select {
	case e := <-done:
		if e.Err != nil {
			return nil, e.Err
		}
		return &queuev1.ExtendResponse{
			Extended: int64(len(e.Kept)), Lost: e.Lost, Remaining: durationpb.New(e.Remaining), Unreachable: e.Unreachable,
		}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
