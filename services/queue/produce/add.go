package produce

import (
	"context"
	"errors"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/rpc"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/metrics"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

// adds is what the three kinds of Add share.
type adds struct {
	queue, session string
	items          []*queuev1.AddItem
	delay          time.Duration
	// after is set for an AddAfter, which client-go counts as a retry whatever its
	// delay. The store counts only those with one.
	after, last, limited bool
}

// Add implements the QueueService.
func (s *Server) Add(ctx context.Context, r *queuev1.AddRequest) (*queuev1.AddResponse, error) {
	results, err := s.add(ctx, &wire.Checks{}, adds{queue: r.GetQueue(), session: r.GetSessionId(), items: r.GetItems()})
	if err != nil {
		return nil, err
	}
	return &queuev1.AddResponse{Results: results, Generation: s.Queues.Engine.Generation()}, nil
}

// AddAfter implements the QueueService.
func (s *Server) AddAfter(ctx context.Context, r *queuev1.AddAfterRequest) (*queuev1.AddAfterResponse, error) {
	c := &wire.Checks{}
	if _, known := queuev1.DelayPolicy_name[int32(r.GetPolicy())]; !known {
		c.Add("policy", "%d is not known", r.GetPolicy())
	}
	results, err := s.add(ctx, c, adds{
		queue: r.GetQueue(), session: r.GetSessionId(), items: r.GetItems(),
		delay: c.Duration("delay", r.GetDelay(), workqueue.MaxDelay),
		after: true, last: r.GetPolicy() == queuev1.DelayPolicy_DELAY_POLICY_LAST,
	})
	if err != nil {
		return nil, err
	}
	return &queuev1.AddAfterResponse{Results: results, Generation: s.Queues.Engine.Generation()}, nil
}

// AddRateLimited implements the QueueService.
func (s *Server) AddRateLimited(ctx context.Context, r *queuev1.AddRateLimitedRequest) (*queuev1.AddRateLimitedResponse, error) {
	results, err := s.add(ctx, &wire.Checks{}, adds{queue: r.GetQueue(), session: r.GetSessionId(), items: r.GetItems(), limited: true})
	if err != nil {
		return nil, err
	}
	return &queuev1.AddRateLimitedResponse{Results: results, Generation: s.Queues.Engine.Generation()}, nil
}

func (s *Server) add(ctx context.Context, c *wire.Checks, a adds) ([]*queuev1.AddResult, error) {
	c.Queue("queue", a.queue)
	c.Session("session_id", a.session, false)
	c.Count("items", len(a.items), 1, wire.MaxItems)
	cause := traceparent(ctx)
	ops := make([]workqueue.Op, 0, len(a.items))
	for i, it := range a.items {
		if i == wire.MaxItems {
			break
		}
		at := "items[" + strconv.Itoa(i) + "]"
		c.Key(at+".key", it.GetKey())
		c.Trace(at+".traceparent", it.GetTraceparent())
		op := workqueue.Op{
			Kind: workqueue.OpAdd, Key: it.GetKey(), Level: c.Level(at+".priority", it.GetPriority()),
			Delay: wire.WholeMicros(a.delay), Last: a.last, Limited: a.limited, Trace: it.GetTraceparent(),
		}
		if op.Trace == "" {
			op.Trace = cause
		}
		if b := c.Barrier(at+".barrier", it.GetBarrier()); len(b) > 0 {
			op.More = &workqueue.More{Barrier: b}
		}
		ops = append(ops, op)
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	as := wire.SessionID(ctx, a.session)
	if s.Sessions.Find(as).ShutDown() { // dropped, each with a status
		results := make([]*queuev1.AddResult, len(ops))
		for i := range results {
			results[i] = &queuev1.AddResult{Status: queuev1.AddStatus_ADD_STATUS_SHUT_DOWN}
		}
		return results, nil
	}
	done, err := s.Queues.DoAs(ctx, a.queue, as, ops...)
	if err != nil {
		return nil, err
	}
	results := make([]*queuev1.AddResult, len(ops))
	for i := range done.Replies {
		switch r := &done.Replies[i]; r.Status {
		case workqueue.Closed:
			return nil, wire.ErrClosed
		case workqueue.BarrierFull:
			err = errors.Join(err, rpc.InvalidField("items["+strconv.Itoa(i)+"].barrier", wire.ErrBarrierFull))
		default:
			results[i] = wire.AddResult(r)
		}
	}
	if a.after && a.delay == 0 {
		if l, err := s.Queues.Use(ctx, a.queue); err == nil {
			metrics.Count(l.Metrics.Retries, len(ops))
		}
	}
	return results, err
}

// traceparent is the trace a call belongs to, if somebody records it.
func traceparent(ctx context.Context) string {
	sc := trace.SpanContextFromContext(ctx)
	if !sc.IsValid() || !sc.IsSampled() {
		return ""
	}
	return "00-" + sc.TraceID().String() + "-" + sc.SpanID().String() + "-" + sc.TraceFlags().String()
}
