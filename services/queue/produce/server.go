package produce

import (
	"context"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/metrics"
	"github.com/deltaplane/deltaplane/services/queue/session"
	"github.com/deltaplane/deltaplane/services/queue/transaction"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

// Server answers the calls that add keys.
type Server struct {
	Queues   *transaction.Queues
	Sessions *session.Sessions
	Metrics  *metrics.Set
	// Permit says whether the caller may add a batch to its queue.
	Permit wire.Permit
	// StopGrace is how long Produce streams may go on once stopping is closed.
	StopGrace time.Duration
	Stopping  <-chan struct{}
	// Aging is when a connection's streams are to move elsewhere.
	Aging func(context.Context) (first, every time.Duration)
}

// Forget implements the QueueService.
func (s *Server) Forget(ctx context.Context, r *queuev1.ForgetRequest) (*queuev1.ForgetResponse, error) {
	ops, err := wire.EachKey(r.GetQueue(), r.GetKeys(), workqueue.OpForget)
	if err != nil {
		return nil, err
	}
	if _, err := s.Queues.Do(ctx, r.GetQueue(), ops...); err != nil {
		return nil, err
	}
	return &queuev1.ForgetResponse{}, nil
}

// NumRequeues implements the QueueService.
func (s *Server) NumRequeues(ctx context.Context, r *queuev1.NumRequeuesRequest) (*queuev1.NumRequeuesResponse, error) {
	ops, err := wire.EachKey(r.GetQueue(), r.GetKeys(), workqueue.OpRequeues)
	if err != nil {
		return nil, err
	}
	done, err := s.Queues.Do(ctx, r.GetQueue(), ops...)
	if err != nil {
		return nil, err
	}
	out := &queuev1.NumRequeuesResponse{Counts: make([]int64, len(done.Replies))}
	for i := range done.Replies {
		out.Counts[i] = int64(done.Replies[i].Requeues)
	}
	return out, nil
}
