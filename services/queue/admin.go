package queue

import (
	"context"
	"errors"
	"strings"

	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

func (s *server) Len(ctx context.Context, r *queuev1.LenRequest) (*queuev1.LenResponse, error) {
	c := &checks{}
	c.queue("queue", r.GetQueue())
	if err := c.err(); err != nil {
		return nil, err
	}
	_, st, err := s.status(ctx, r.GetQueue())
	if err != nil {
		return nil, err
	}
	return &queuev1.LenResponse{Counts: counts(st.Counts)}, nil
}

func (s *server) CloseQueue(ctx context.Context, r *queuev1.CloseQueueRequest) (*queuev1.CloseQueueResponse, error) {
	if err := s.gate(ctx, r.GetQueue(), workqueue.OpClose); err != nil {
		return nil, err
	}
	return &queuev1.CloseQueueResponse{}, nil
}

func (s *server) OpenQueue(ctx context.Context, r *queuev1.OpenQueueRequest) (*queuev1.OpenQueueResponse, error) {
	if err := s.gate(ctx, r.GetQueue(), workqueue.OpOpen); err != nil {
		return nil, err
	}
	return &queuev1.OpenQueueResponse{}, nil
}

func (s *server) PauseQueue(ctx context.Context, r *queuev1.PauseQueueRequest) (*queuev1.PauseQueueResponse, error) {
	if err := s.gate(ctx, r.GetQueue(), workqueue.OpPause); err != nil {
		return nil, err
	}
	return &queuev1.PauseQueueResponse{}, nil
}

func (s *server) ResumeQueue(ctx context.Context, r *queuev1.ResumeQueueRequest) (*queuev1.ResumeQueueResponse, error) {
	if err := s.gate(ctx, r.GetQueue(), workqueue.OpResume); err != nil {
		return nil, err
	}
	return &queuev1.ResumeQueueResponse{}, nil
}

// gate does an operation on the whole queue, in every partition.
func (s *server) gate(ctx context.Context, queue string, kind workqueue.OpKind) error {
	c := &checks{}
	c.queue("queue", queue)
	if err := c.err(); err != nil {
		return err
	}
	_, err := s.do(ctx, queue, workqueue.Op{Kind: kind})
	return err
}

func (s *server) ConfigureQueue(ctx context.Context, r *queuev1.ConfigureQueueRequest) (*queuev1.ConfigureQueueResponse, error) {
	c := &checks{}
	name := r.GetConfig().GetName()
	c.queue("config.name", name)
	cfg := c.configIn("config", r.GetConfig())
	if err := c.err(); err != nil {
		return nil, err
	}
	q, created, err := s.engine.Configure(ctx, name, cfg)
	if err != nil {
		return nil, err
	}
	d, err := s.adopt(name, q)
	if err != nil {
		return nil, err
	}
	d.lookNow() // its turns take the new configuration
	return &queuev1.ConfigureQueueResponse{Config: configOut(name, q.Config()), Created: created, Generation: s.engine.Generation()}, nil
}

func (s *server) ListQueues(ctx context.Context, r *queuev1.ListQueuesRequest) (*queuev1.ListQueuesResponse, error) {
	names, err := s.engine.Names(ctx)
	if err != nil {
		return nil, err
	}
	out := &queuev1.ListQueuesResponse{Engine: s.engine.Kind(), Generation: s.engine.Generation()}
	for _, n := range names {
		if !strings.HasPrefix(n, r.GetPrefix()) {
			continue
		}
		cfg, st, err := s.status(ctx, n)
		if errors.Is(err, engine.ErrNoQueue) {
			continue // named before it was made, or lost
		}
		if err != nil {
			return nil, err
		}
		q := &queuev1.QueueStatus{
			Config: configOut(n, cfg), Counts: counts(st.Counts), Closed: st.Closed, Paused: st.Paused, HeldUntil: stamp(st.HeldUntil),
		}
		if st.OldestReady != 0 {
			q.OldestReady = span(max(st.Now-st.OldestReady, 0))
		}
		out.Queues = append(out.Queues, q)
	}
	return out, nil
}
