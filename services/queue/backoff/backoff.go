package backoff

import (
	"context"
	"math/rand/v2"
	"strconv"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/deltaplane/deltaplane/core/backoff"
	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/transaction"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

// Server answers the calls of the back-off of ids.
type Server struct{ Queues *transaction.Queues }

// GetBackoff implements the QueueService.
func (s *Server) GetBackoff(ctx context.Context, r *queuev1.GetBackoffRequest) (*queuev1.GetBackoffResponse, error) {
	done, err := s.backoff(ctx, &wire.Checks{}, r.GetQueue(), r.GetIds(), workqueue.Op{Kind: workqueue.OpBackoffGet})
	if err != nil {
		return nil, err
	}
	return &queuev1.GetBackoffResponse{Entries: entries(r.GetIds(), done)}, nil
}

// NextBackoff implements the QueueService.
func (s *Server) NextBackoff(ctx context.Context, r *queuev1.NextBackoffRequest) (*queuev1.NextBackoffResponse, error) {
	c := &wire.Checks{}
	event := c.Event("event_time", r.GetEventTime(), false)
	done, err := s.backoff(ctx, c, r.GetQueue(), r.GetIds(), workqueue.Op{Kind: workqueue.OpBackoffNext, Event: event})
	if err != nil {
		return nil, err
	}
	return &queuev1.NextBackoffResponse{Entries: entries(r.GetIds(), done)}, nil
}

// ResetBackoff implements the QueueService.
func (s *Server) ResetBackoff(ctx context.Context, r *queuev1.ResetBackoffRequest) (*queuev1.ResetBackoffResponse, error) {
	if _, err := s.backoff(ctx, &wire.Checks{}, r.GetQueue(), r.GetIds(), workqueue.Op{Kind: workqueue.OpBackoffReset}); err != nil {
		return nil, err
	}
	return &queuev1.ResetBackoffResponse{}, nil
}

// DeleteBackoffEntry implements the QueueService.
func (s *Server) DeleteBackoffEntry(ctx context.Context, r *queuev1.DeleteBackoffEntryRequest) (*queuev1.DeleteBackoffEntryResponse, error) {
	if _, err := s.backoff(ctx, &wire.Checks{}, r.GetQueue(), r.GetIds(), workqueue.Op{Kind: workqueue.OpBackoffReset}); err != nil {
		return nil, err
	}
	return &queuev1.DeleteBackoffEntryResponse{}, nil
}

// GCBackoff implements the QueueService.
func (s *Server) GCBackoff(ctx context.Context, r *queuev1.GCBackoffRequest) (*queuev1.GCBackoffResponse, error) {
	c := &wire.Checks{}
	c.Queue("queue", r.GetQueue())
	if err := c.Err(); err != nil {
		return nil, err
	}
	out := &queuev1.GCBackoffResponse{}
	for { // a transaction collects a bounded number
		done, err := s.Queues.Do(ctx, r.GetQueue(), workqueue.Op{Kind: workqueue.OpBackoffGC})
		if err != nil {
			return nil, err
		}
		n := done.Replies[0].Count
		out.Dropped += int64(n)
		if n == 0 {
			return out, nil
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
}

// IsInBackOffSince implements the QueueService.
func (s *Server) IsInBackOffSince(ctx context.Context, r *queuev1.IsInBackOffSinceRequest) (*queuev1.IsInBackOffSinceResponse, error) {
	left, err := s.inBackOff(ctx, r.GetQueue(), r.GetId(), r.GetEventTime(), backoff.Growth.Since)
	if err != nil {
		return nil, err
	}
	return &queuev1.IsInBackOffSinceResponse{InBackOff: left > 0, Remaining: wire.Span(left)}, nil
}

// IsInBackOffSinceUpdate implements the QueueService.
func (s *Server) IsInBackOffSinceUpdate(ctx context.Context, r *queuev1.IsInBackOffSinceUpdateRequest) (*queuev1.IsInBackOffSinceUpdateResponse, error) {
	left, err := s.inBackOff(ctx, r.GetQueue(), r.GetId(), r.GetEventTime(), func(g backoff.Growth, e backoff.Entry, event, _ int64) int64 {
		return g.SinceUpdate(e, event)
	})
	if err != nil {
		return nil, err
	}
	return &queuev1.IsInBackOffSinceUpdateResponse{InBackOff: left > 0, Remaining: wire.Span(left)}, nil
}

// inBackOff is what is left of an id's delay as left counts it, in
// microseconds; zero when the id is unknown or, at the event, had expired (B-04).
func (s *Server) inBackOff(
	ctx context.Context, queue, id string, at *timestamppb.Timestamp, left func(g backoff.Growth, e backoff.Entry, event, now int64) int64,
) (int64, error) {
	c := &wire.Checks{}
	event := c.Event("event_time", at, true)
	c.Queue("queue", queue)
	c.Key("id", id)
	if err := c.Err(); err != nil {
		return 0, err
	}
	d, err := s.Queues.Use(ctx, queue)
	if err != nil {
		return 0, err
	}
	done, err := d.Do(ctx, workqueue.Op{Kind: workqueue.OpBackoffGet, Key: id})
	if err != nil {
		return 0, err
	}
	return max(left(d.Stored.Config().Backoff.Growth(), done.Replies[0].Backoff, event, done.Now), 0), nil
}

// backoff does one operation on every id. The jitter's random number is drawn
// here, so that the engines only compute.
func (s *Server) backoff(ctx context.Context, c *wire.Checks, queue string, ids []string, op workqueue.Op) (*transaction.Call, error) {
	c.Queue("queue", queue)
	c.Count("ids", len(ids), 1, wire.MaxItems)
	ops := make([]workqueue.Op, min(len(ids), wire.MaxItems))
	for i := range ops {
		c.Key("ids["+strconv.Itoa(i)+"]", ids[i])
		ops[i] = op
		ops[i].Key = ids[i]
		if op.Kind == workqueue.OpBackoffNext {
			ops[i].Random = rand.Float64()
		}
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	return s.Queues.Do(ctx, queue, ops...)
}

func entries(ids []string, done *transaction.Call) []*queuev1.BackoffEntry {
	out := make([]*queuev1.BackoffEntry, len(ids))
	for i, id := range ids {
		e := done.Replies[i].Backoff
		out[i] = &queuev1.BackoffEntry{Id: id, Backoff: wire.Span(e.Delay), LastUpdate: wire.Stamp(e.Updated)}
	}
	return out
}
