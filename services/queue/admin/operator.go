package admin

import (
	"context"

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

// operate does one operator's operation on every key.
func (s *Server) operate(ctx context.Context, queue string, keys []string, kind workqueue.OpKind) ([]*queuev1.ItemResult, error) {
	ops, err := wire.EachKey(queue, keys, kind)
	if err != nil {
		return nil, err
	}
	done, err := s.Queues.Do(ctx, queue, ops...)
	if err != nil {
		return nil, err
	}
	results := make([]*queuev1.ItemResult, len(keys))
	for i, key := range keys {
		results[i] = &queuev1.ItemResult{Key: key, Status: wire.ItemStatus(done.Replies[i].Status)}
	}
	return results, nil
}
