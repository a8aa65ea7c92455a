package session

import (
	"context"

	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

// SaveState implements the QueueService.
func (s *Server) SaveState(ctx context.Context, r *queuev1.SaveStateRequest) (*queuev1.SaveStateResponse, error) {
	c := &wire.Checks{}
	c.Count("state", len(r.GetState()), 0, workqueue.MaxStateLen)
	st, err := s.fenced(ctx, c, r.GetQueue(), workqueue.Op{
		Kind: workqueue.OpSave, Key: r.GetKey(), Token: r.GetToken(), More: &workqueue.More{Data: r.GetState()},
	})
	if err != nil {
		return nil, err
	}
	return &queuev1.SaveStateResponse{Status: st}, nil
}

// Expect implements the QueueService.
func (s *Server) Expect(ctx context.Context, r *queuev1.ExpectRequest) (*queuev1.ExpectResponse, error) {
	c := &wire.Checks{}
	c.Owner("owner_uid", r.GetOwnerUid(), true)
	c.Names("creations", r.GetCreations())
	c.Names("deletions", r.GetDeletions())
	st, err := s.fenced(ctx, c, r.GetQueue(), workqueue.Op{
		Kind: workqueue.OpExpect, Key: r.GetKey(), Token: r.GetToken(),
		More: &workqueue.More{Owner: r.GetOwnerUid(), Creates: r.GetCreations(), Deletes: r.GetDeletions()},
	})
	if err != nil {
		return nil, err
	}
	return &queuev1.ExpectResponse{Status: st}, nil
}

// fenced runs one operation that only the lease's token may do.
func (s *Server) fenced(ctx context.Context, c *wire.Checks, queue string, op workqueue.Op) (queuev1.SettleStatus, error) {
	c.Queue("queue", queue)
	c.Key("key", op.Key)
	c.Token("token", op.Token)
	if err := c.Err(); err != nil {
		return 0, err
	}
	if err := s.Leases.verifyOne(ctx, LeaseAt{queue: queue, key: op.Key, token: op.Token}); err != nil {
		return 0, err
	}
	done, err := s.Queues.Do(ctx, queue, op)
	if err != nil {
		return 0, err
	}
	return wire.SettleStatus(done.Replies[0].Status), nil
}

// Observe implements the QueueService.
func (s *Server) Observe(ctx context.Context, r *queuev1.ObserveRequest) (*queuev1.ObserveResponse, error) {
	c := &wire.Checks{}
	c.Owner("owner_uid", r.GetOwnerUid(), false)
	c.Names("creations", r.GetCreations())
	c.Names("deletions", r.GetDeletions())
	left, err := s.observe(ctx, c, r.GetQueue(), r.GetKey(), &workqueue.More{Owner: r.GetOwnerUid(), Creates: r.GetCreations(), Deletes: r.GetDeletions()})
	return &queuev1.ObserveResponse{Expectations: left}, err
}

// GetExpectations implements the QueueService.
func (s *Server) GetExpectations(ctx context.Context, r *queuev1.GetExpectationsRequest) (*queuev1.GetExpectationsResponse, error) {
	left, err := s.observe(ctx, &wire.Checks{}, r.GetQueue(), r.GetKey(), nil)
	return &queuev1.GetExpectationsResponse{Expectations: left}, err
}

func (s *Server) observe(ctx context.Context, c *wire.Checks, queue, key string, seen *workqueue.More) (*queuev1.Expectations, error) {
	c.Queue("queue", queue)
	c.Key("key", key)
	if err := c.Err(); err != nil {
		return nil, err
	}
	done, err := s.Queues.Do(ctx, queue, workqueue.Op{Kind: workqueue.OpObserve, Key: key, More: seen})
	if err != nil {
		return nil, err
	}
	return wire.Expectations(done.Replies[0].Expect), nil
}

// DeleteExpectations implements the QueueService.
func (s *Server) DeleteExpectations(ctx context.Context, r *queuev1.DeleteExpectationsRequest) (*queuev1.DeleteExpectationsResponse, error) {
	ops, err := wire.EachKey(r.GetQueue(), []string{r.GetKey()}, workqueue.OpUnexpect)
	if err != nil {
		return nil, err
	}
	if _, err := s.Queues.Do(ctx, r.GetQueue(), ops...); err != nil {
		return nil, err
	}
	return &queuev1.DeleteExpectationsResponse{}, nil
}
