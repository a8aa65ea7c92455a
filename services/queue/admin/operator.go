package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

// RetryNow implements the QueueAdminService.
func (s *Server) RetryNow(ctx context.Context, r *queuev1.RetryNowRequest) (*queuev1.RetryNowResponse, error) {
	results, err := s.operate(ctx, r.GetQueue(), r.GetKeys(), workqueue.OpRetryNow)
	if err != nil {
		return nil, err
	}
	return &queuev1.RetryNowResponse{Results: results}, nil
}

// ReleaseItems implements the QueueAdminService.
func (s *Server) ReleaseItems(ctx context.Context, r *queuev1.ReleaseItemsRequest) (*queuev1.ReleaseItemsResponse, error) {
	results, err := s.operate(ctx, r.GetQueue(), r.GetKeys(), workqueue.OpRevoke)
	if err != nil {
		return nil, err
	}
	return &queuev1.ReleaseItemsResponse{Results: results}, nil
}

// DeleteItems implements the QueueAdminService.
func (s *Server) DeleteItems(ctx context.Context, r *queuev1.DeleteItemsRequest) (*queuev1.DeleteItemsResponse, error) {
	results, err := s.operate(ctx, r.GetQueue(), r.GetKeys(), workqueue.OpDelete)
	if err != nil {
		return nil, err
	}
	return &queuev1.DeleteItemsResponse{Results: results}, nil
}

// RestoreItems implements the QueueAdminService.
func (s *Server) RestoreItems(ctx context.Context, r *queuev1.RestoreItemsRequest) (*queuev1.RestoreItemsResponse, error) {
	ops, err := wire.PutBack(r.GetQueue(), r.GetItems(), time.Now())
	if err != nil {
		return nil, err
	}
	results, err := s.each(ctx, r.GetQueue(), ops)
	if err != nil {
		return nil, err
	}
	return &queuev1.RestoreItemsResponse{Results: results}, nil
}

// operate does one operator's operation on every key.
func (s *Server) operate(ctx context.Context, queue string, keys []string, kind workqueue.OpKind) ([]*queuev1.ItemResult, error) {
	ops, err := wire.EachKey(queue, keys, kind)
	if err != nil {
		return nil, err
	}
	return s.each(ctx, queue, ops)
}

func (s *Server) each(ctx context.Context, queue string, ops []workqueue.Op) ([]*queuev1.ItemResult, error) {
	done, err := s.Queues.Do(ctx, queue, ops...)
	if err != nil {
		return nil, err
	}
	results := make([]*queuev1.ItemResult, len(ops))
	for i := range ops {
		if done.Replies[i].Status == workqueue.BarrierFull {
			return nil, fmt.Errorf("%w: key %q", wire.ErrBarrierFull, ops[i].Key)
		}
		results[i] = &queuev1.ItemResult{Key: ops[i].Key, Status: wire.ItemStatus(done.Replies[i].Status)}
	}
	return results, nil
}
