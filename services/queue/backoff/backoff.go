package backoff

import (
	"context"
	"math/rand/v2"
	"strconv"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/transaction"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

// Server answers the calls of the back-off of ids.
type Server struct{ Queues *transaction.Queues }

// Get implements the BackoffService.
func (s *Server) Get(ctx context.Context, r *queuev1.BackoffServiceGetRequest) (*queuev1.BackoffServiceGetResponse, error) {
	d, done, err := s.backoff(ctx, &wire.Checks{}, r.GetQueue(), r.GetIds(), workqueue.Op{Kind: workqueue.OpBackoffGet})
	if err != nil {
		return nil, err
	}
	return &queuev1.BackoffServiceGetResponse{
		Entries: entries(r.GetIds(), done), Time: wire.Stamp(done.Now), ExpireAfter: durationpb.New(d.Stored.Config().Backoff.ExpireAfter),
	}, nil
}

// Next implements the BackoffService.
func (s *Server) Next(ctx context.Context, r *queuev1.NextRequest) (*queuev1.NextResponse, error) {
	c := &wire.Checks{}
	event := c.Event("event_time", r.GetEventTime())
	_, done, err := s.backoff(ctx, c, r.GetQueue(), r.GetIds(), workqueue.Op{Kind: workqueue.OpBackoffNext, Event: event})
	if err != nil {
		return nil, err
	}
	return &queuev1.NextResponse{Entries: entries(r.GetIds(), done)}, nil
}

// Reset implements the BackoffService.
func (s *Server) Reset(ctx context.Context, r *queuev1.ResetRequest) (*queuev1.ResetResponse, error) {
	if _, _, err := s.backoff(ctx, &wire.Checks{}, r.GetQueue(), r.GetIds(), workqueue.Op{Kind: workqueue.OpBackoffReset}); err != nil {
		return nil, err
	}
	return &queuev1.ResetResponse{}, nil
}

// backoff does one operation on every id. The jitter's random number is drawn
// here, so that the engines only compute.
func (s *Server) backoff(ctx context.Context, c *wire.Checks, queue string, ids []string, op workqueue.Op) (*transaction.Queue, *transaction.Call, error) {
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
		return nil, nil, err
	}
	d, err := s.Queues.Use(ctx, queue)
	if err != nil {
		return nil, nil, err
	}
	done, err := d.Do(ctx, ops...)
	return d, done, err
}

func entries(ids []string, done *transaction.Call) []*queuev1.BackoffEntry {
	out := make([]*queuev1.BackoffEntry, len(ids))
	for i, id := range ids {
		e := done.Replies[i].Backoff
		out[i] = &queuev1.BackoffEntry{Id: id, Backoff: wire.Span(e.Delay), LastUpdate: wire.Stamp(e.Updated)}
	}
	return out
}
