package queue

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/transaction"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

// sessionServer answers the calls by which sessions end, and end or extend their leases.
type sessionServer struct {
	queues   *transaction.Queues
	sessions *sessions
	leases   *leases
	stopping <-chan struct{}
}

func (s *sessionServer) ShutDown(ctx context.Context, r *queuev1.ShutDownRequest) (*queuev1.ShutDownResponse, error) {
	if _, err := s.shutDown(ctx, r.GetSessionId()); err != nil {
		return nil, err
	}
	return &queuev1.ShutDownResponse{}, nil
}

func (s *sessionServer) ShutDownWithDrain(ctx context.Context, r *queuev1.ShutDownWithDrainRequest) (*queuev1.ShutDownWithDrainResponse, error) {
	c := &wire.Checks{}
	timeout := c.Duration("timeout", r.GetTimeout(), 24*time.Hour)
	if err := c.Err(); err != nil {
		return nil, err
	}
	ss, err := s.shutDown(ctx, r.GetSessionId())
	if err != nil {
		return nil, err
	}
	left, err := ss.drained(ctx, timeout, s.stopping)
	if err != nil {
		return nil, err
	}
	return &queuev1.ShutDownWithDrainResponse{Remaining: int64(left)}, nil
}

func (s *sessionServer) ShuttingDown(ctx context.Context, r *queuev1.ShuttingDownRequest) (*queuev1.ShuttingDownResponse, error) {
	c := &wire.Checks{}
	c.Session("session_id", r.GetSessionId(), true)
	if err := c.Err(); err != nil {
		return nil, err
	}
	return &queuev1.ShuttingDownResponse{ShuttingDown: s.sessions.find(wire.SessionID(ctx, r.GetSessionId())).shutDown()}, nil
}

func (s *sessionServer) Settle(ctx context.Context, r *queuev1.SettleRequest) (*queuev1.SettleResponse, error) {
	c := &wire.Checks{}
	c.Session("session_id", r.GetSessionId(), true)
	plan := newPlan(c, r.GetSettlements())
	if err := c.Err(); err != nil {
		return nil, err
	}
	ss, err := s.sessions.get(wire.SessionID(ctx, r.GetSessionId()))
	if err != nil {
		return nil, err
	}
	whose, err := s.leases.verify(ctx, ss, len(plan.ops), plan.lease, storeTimeout(r.GetPartial()))
	if err != nil {
		return nil, err
	}
	type outcome struct {
		results []*queuev1.SettleResult
		err     error
	}
	answers := make(chan outcome, 2) // the second is of what was late: nobody waits for it
	s.leases.settle(ctx, ss, r.GetRequestId(), plan, whose, !r.GetPartial(), storeTimeout(r.GetPartial()), func(out *settled) {
		ended(out.freed, false)
		answers <- outcome{out.each(), out.err}
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

func (s *sessionServer) Extend(ctx context.Context, r *queuev1.ExtendRequest) (*queuev1.ExtendResponse, error) {
	c := &wire.Checks{}
	c.Session("session_id", r.GetSessionId(), true)
	c.Refs("leases", r.GetLeases())
	if err := c.Err(); err != nil {
		return nil, err
	}
	ss, err := s.sessions.get(wire.SessionID(ctx, r.GetSessionId()))
	if err != nil {
		return nil, err
	}
	refs := ss.orAll(r.GetLeases())
	whose, err := s.leases.verify(ctx, ss, len(refs), refAt(refs), storeTimeout(r.GetPartial()))
	if err != nil {
		return nil, err
	}
	done := make(chan extension, 1)
	s.leases.extend(ctx, ss, refs, whose, 0, !r.GetPartial(), storeTimeout(r.GetPartial()), func(e extension) {
		ended(e.freed, false)
		done <- e
	})
	select {
	case e := <-done:
		if e.err != nil {
			return nil, e.err
		}
		return &queuev1.ExtendResponse{
			Extended: int64(len(e.kept)), Lost: e.lost, Remaining: durationpb.New(e.remaining), Unreachable: e.unreachable,
		}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
