package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/history"
	"github.com/deltaplane/deltaplane/services/queue/metrics"
	"github.com/deltaplane/deltaplane/services/queue/transaction"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

// Server answers the calls of operators: on queues, keys and what happened to them.
type Server struct {
	Queues  *transaction.Queues
	Look    Reader
	History *history.Recent // nil when none is kept
	// Sessions are asked who works on a queue here.
	Sessions Sessions
	// Limit says why the store refuses adds, nil while it does not.
	Limit func() error
	// Permit says whether the caller may drain a queue.
	Permit wire.Permit
	// MaxQueues bounds the queues of the store.
	MaxQueues int
	Stopping  <-chan struct{}
	making    sync.Mutex // of queues, one at a time
}

// Sessions know who works on queues here.
type Sessions interface {
	// Workers counts who takes keys of a queue, and those of them that would take one more now.
	Workers(l *transaction.Queue) (all, free int64)
	// Holder is the session that holds a key; nil when it does not hold it by this server.
	Holder(session string, d *transaction.Dispatcher, key string) *queuev1.Holder
}

// Len implements the QueueService.
func (s Reader) Len(ctx context.Context, r *queuev1.LenRequest) (*queuev1.LenResponse, error) {
	c := &wire.Checks{}
	c.Queue("queue", r.GetQueue())
	if err := c.Err(); err != nil {
		return nil, err
	}
	_, st, missing, err := s.status(ctx, r.GetQueue())
	if err == nil && !r.GetPartial() {
		err = complete(r.GetQueue(), missing)
	}
	if err != nil {
		return nil, err
	}
	return &queuev1.LenResponse{Counts: wire.Counts(st.Counts), Unreachable: missing}, nil
}

// CloseQueue implements the QueueAdminService.
func (s *Server) CloseQueue(ctx context.Context, r *queuev1.CloseQueueRequest) (*queuev1.CloseQueueResponse, error) {
	if err := s.gate(ctx, r.GetQueue(), workqueue.OpClose); err != nil {
		return nil, err
	}
	return &queuev1.CloseQueueResponse{}, nil
}

// OpenQueue implements the QueueAdminService.
func (s *Server) OpenQueue(ctx context.Context, r *queuev1.OpenQueueRequest) (*queuev1.OpenQueueResponse, error) {
	if err := s.gate(ctx, r.GetQueue(), workqueue.OpOpen); err != nil {
		return nil, err
	}
	return &queuev1.OpenQueueResponse{}, nil
}

// PauseQueue implements the QueueAdminService.
func (s *Server) PauseQueue(ctx context.Context, r *queuev1.PauseQueueRequest) (*queuev1.PauseQueueResponse, error) {
	if err := s.gate(ctx, r.GetQueue(), workqueue.OpPause); err != nil {
		return nil, err
	}
	return &queuev1.PauseQueueResponse{}, nil
}

// ResumeQueue implements the QueueAdminService.
func (s *Server) ResumeQueue(ctx context.Context, r *queuev1.ResumeQueueRequest) (*queuev1.ResumeQueueResponse, error) {
	if err := s.gate(ctx, r.GetQueue(), workqueue.OpResume); err != nil {
		return nil, err
	}
	return &queuev1.ResumeQueueResponse{}, nil
}

// DeleteQueue implements the QueueAdminService.
func (s *Server) DeleteQueue(ctx context.Context, r *queuev1.DeleteQueueRequest) (*queuev1.DeleteQueueResponse, error) {
	c := &wire.Checks{}
	name := r.GetQueue()
	c.Queue("queue", name)
	if err := c.Err(); err != nil {
		return nil, err
	}
	err := s.delete(ctx, name, r.GetForce())
	if l, ok := s.Queues.Known(name); ok && (err == nil || errors.Is(err, engine.ErrDeleted)) {
		select {
		case <-s.Queues.Drop(l, fmt.Errorf("%w: %q", engine.ErrDeleted, name)):
		case <-ctx.Done(): // it ends by itself
		}
	}
	if err != nil {
		return nil, err
	}
	s.Queues.Log.LogAttrs(ctx, slog.LevelInfo, "queue was deleted", slog.String(telemetry.KeyQueue, name))
	return &queuev1.DeleteQueueResponse{}, nil
}

// delete deletes a queue. The partitions of one that must not have leases are
// paused first, else one could lease keys while another is looked at.
func (s *Server) delete(ctx context.Context, name string, force bool) error {
	q, err := s.Queues.Open(ctx, name)
	if err != nil && !errors.Is(err, engine.ErrDeleted) {
		return err
	}
	if err != nil { // something may be left of it
		if rest := s.Queues.Engine.Delete(ctx, name, force); !errors.Is(rest, engine.ErrDeleted) {
			return rest
		}
		return err
	}
	if force || len(q.Partitions()) == 1 {
		return s.Queues.Engine.Delete(ctx, name, force)
	}
	_, st, missing, err := s.Look.status(ctx, name)
	if err == nil {
		err = complete(name, missing)
	}
	if err != nil {
		return err
	}
	if !st.Paused {
		if err := s.gate(ctx, name, workqueue.OpPause); err != nil {
			return err
		}
	}
	err = s.Queues.Engine.Delete(ctx, name, false)
	if err != nil && !st.Paused && !errors.Is(err, engine.ErrNoQueue) {
		after, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if undone := s.gate(after, name, workqueue.OpResume); undone != nil {
			err = fmt.Errorf("%w; it is still paused: %w", err, undone)
		}
	}
	return err
}

// gate does an operation on the whole queue, in every partition.
func (s *Server) gate(ctx context.Context, queue string, kind workqueue.OpKind) error {
	c := &wire.Checks{}
	c.Queue("queue", queue)
	if err := c.Err(); err != nil {
		return err
	}
	_, err := s.Queues.Do(ctx, queue, workqueue.Op{Kind: kind})
	return err
}

// ConfigureQueue implements the QueueAdminService.
func (s *Server) ConfigureQueue(ctx context.Context, r *queuev1.ConfigureQueueRequest) (*queuev1.ConfigureQueueResponse, error) {
	c := &wire.Checks{}
	name := r.GetConfig().GetName()
	c.Queue("config.name", name)
	cfg := c.ConfigIn("config", r.GetConfig())
	if err := c.Err(); err != nil {
		return nil, err
	}
	q, created, err := s.create(ctx, name, cfg)
	if err != nil {
		return nil, err
	}
	d, err := s.Queues.Adopt(name, q)
	if err != nil {
		return nil, err
	}
	d.Request() // its transactions take the new configuration
	return &queuev1.ConfigureQueueResponse{Config: wire.ConfigOut(name, q.Config()), Created: created, Generation: s.Queues.Engine.Generation()}, nil
}

// create makes a queue, unless there are as many as there may be, or changes it.
func (s *Server) create(ctx context.Context, name string, cfg workqueue.Config) (engine.Queue, bool, error) {
	_, err := s.Queues.Engine.Open(ctx, name)
	if _, declared := s.Queues.Declared[name]; declared || !errors.Is(err, engine.ErrNoQueue) {
		return s.Queues.Engine.Configure(ctx, name, cfg) // which tells what else is wrong
	}
	s.making.Lock()
	defer s.making.Unlock()
	names, err := s.Queues.Engine.Names(ctx)
	if err != nil {
		return nil, false, err
	}
	if _, listed := slices.BinarySearch(names, name); !listed && len(names) >= s.MaxQueues {
		return nil, false, fmt.Errorf("%w: there are %d, and --queue-max-queues is %d; \"deltaplane queue remove\" deletes one", wire.ErrQueues, len(names), s.MaxQueues)
	}
	return s.Queues.Engine.Configure(ctx, name, cfg)
}

// ListQueues implements the QueueAdminService.
func (s *Server) ListQueues(ctx context.Context, r *queuev1.ListQueuesRequest) (*queuev1.ListQueuesResponse, error) {
	names, err := s.Queues.Engine.Names(ctx)
	if err != nil {
		return nil, err
	}
	out := &queuev1.ListQueuesResponse{Engine: s.Queues.Engine.Kind(), Generation: s.Queues.Engine.Generation()}
	for _, n := range names {
		if !strings.HasPrefix(n, r.GetPrefix()) {
			continue
		}
		cfg, st, missing, err := s.Look.status(ctx, n)
		if err == nil && !r.GetPartial() {
			err = complete(n, missing)
		}
		if errors.Is(err, engine.ErrNoQueue) {
			continue // named before it was made, or lost
		}
		if err != nil {
			return nil, err
		}
		q := queueStatus(n, cfg, st, missing)
		if l, ok := s.Queues.Known(n); ok {
			q.Activity = activity(l.Metrics.Activity())
		}
		out.Queues = append(out.Queues, q)
	}
	return out, nil
}

func activity(a metrics.Activity) *queuev1.QueueActivity {
	return &queuev1.QueueActivity{
		Since: timestamppb.New(a.Since), Adds: a.Adds, Leases: a.Leases, Settlements: a.Settlements,
		Waited: durationpb.New(a.Waited), Worked: durationpb.New(a.Worked),
	}
}

func queueStatus(name string, cfg workqueue.Config, st engine.Status, missing []int32) *queuev1.QueueStatus {
	q := &queuev1.QueueStatus{
		Config: wire.ConfigOut(name, cfg), Counts: wire.Counts(st.Counts), Closed: st.Closed, Paused: st.Paused, HeldUntil: wire.Stamp(st.HeldUntil),
		Unreachable: missing,
	}
	if st.OldestReady != 0 {
		q.OldestReady = wire.Span(max(st.Now-st.OldestReady, 0))
	}
	return q
}
