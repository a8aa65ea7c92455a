package client

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// Backoff is client-go's flowcontrol.Backoff kept by a queue service: delays by
// id that double with every failure, shared by all replicas and kept over
// restarts. Ids are apart from the queue's keys. How delays grow is the queue's
// [queuev1.BackoffConfig]; see [Queue.Configure]. It is safe for concurrent use.
type Backoff struct {
	c     queuev1.QueueServiceClient
	queue string
}

// NewBackoff returns the back-off entries of a queue that exists.
func NewBackoff(conn grpc.ClientConnInterface, queue string) *Backoff {
	return &Backoff{c: queuev1.NewQueueServiceClient(conn), queue: queue}
}

// BackoffEntry is what is known of one id.
type BackoffEntry struct {
	ID string
	// Delay is 0 when nothing is known of the id.
	Delay time.Duration
	// Updated is when the delay was last moved, by the store's clock.
	Updated time.Time
}

// Get is the present delay of an id; 0 for one that is not known.
func (b *Backoff) Get(ctx context.Context, id string) (time.Duration, error) {
	entries, err := b.Entries(ctx, id)
	if err != nil {
		return 0, err
	}
	return entries[0].Delay, nil
}

// Entries are what is known of ids, in their order.
func (b *Backoff) Entries(ctx context.Context, ids ...string) ([]BackoffEntry, error) {
	return b.entries("get", ids, func(ids []string) (entriesAnswer, error) {
		return b.c.GetBackoff(ctx, &queuev1.GetBackoffRequest{Queue: b.queue, Ids: ids})
	})
}

// Next moves an id on and returns its new delay: the first one, or twice the
// last up to the maximum. The time of the event decides whether an old entry
// has expired; zero means now.
func (b *Backoff) Next(ctx context.Context, id string, event time.Time) (time.Duration, error) {
	entries, err := b.NextAll(ctx, event, id)
	if err != nil {
		return 0, err
	}
	return entries[0].Delay, nil
}

// NextAll moves ids on.
func (b *Backoff) NextAll(ctx context.Context, event time.Time, ids ...string) ([]BackoffEntry, error) {
	var at *timestamppb.Timestamp
	if !event.IsZero() {
		at = timestamppb.New(event)
	}
	return b.entries("next", ids, func(ids []string) (entriesAnswer, error) {
		return b.c.NextBackoff(ctx, &queuev1.NextBackoffRequest{Queue: b.queue, Ids: ids, EventTime: at})
	})
}

type entriesAnswer interface {
	GetEntries() []*queuev1.BackoffEntry
}

func (b *Backoff) entries(what string, ids []string, call func([]string) (entriesAnswer, error)) ([]BackoffEntry, error) {
	all := make([]BackoffEntry, 0, len(ids))
	err := b.each(what, ids, func(ids []string) error {
		resp, err := call(ids)
		if err != nil {
			return err
		}
		if len(resp.GetEntries()) != len(ids) {
			return fmt.Errorf("client: queue %s answered %d back-off entries for %d ids", b.queue, len(resp.GetEntries()), len(ids))
		}
		for _, e := range resp.GetEntries() {
			entry := BackoffEntry{ID: e.GetId(), Delay: e.GetBackoff().AsDuration()}
			if e.GetLastUpdate() != nil {
				entry.Updated = e.GetLastUpdate().AsTime()
			}
			all = append(all, entry)
		}
		return nil
	})
	return all, err
}

func (b *Backoff) each(what string, ids []string, call func([]string) error) error {
	if len(ids) == 0 {
		return nil
	}
	for len(ids) > 0 {
		n := min(len(ids), maxItems)
		if err := call(ids[:n]); err != nil {
			return wrap(err, "%s back-off of queue %s", what, b.queue)
		}
		ids = ids[n:]
	}
	return nil
}

// IsInBackOffSince reports whether less than the id's delay has passed since an
// event, and what is left of it.
func (b *Backoff) IsInBackOffSince(ctx context.Context, id string, event time.Time) (bool, time.Duration, error) {
	resp, err := b.c.IsInBackOffSince(ctx, &queuev1.IsInBackOffSinceRequest{Queue: b.queue, Id: id, EventTime: timestamppb.New(event)})
	if err != nil {
		return false, 0, wrap(err, "back-off of %s in queue %s", id, b.queue)
	}
	return resp.GetInBackOff(), resp.GetRemaining().AsDuration(), nil
}

// IsInBackOffSinceUpdate reports whether an event lies within the delay after
// the id's last update, and what is left of it then.
func (b *Backoff) IsInBackOffSinceUpdate(ctx context.Context, id string, event time.Time) (bool, time.Duration, error) {
	resp, err := b.c.IsInBackOffSinceUpdate(ctx, &queuev1.IsInBackOffSinceUpdateRequest{Queue: b.queue, Id: id, EventTime: timestamppb.New(event)})
	if err != nil {
		return false, 0, wrap(err, "back-off of %s in queue %s", id, b.queue)
	}
	return resp.GetInBackOff(), resp.GetRemaining().AsDuration(), nil
}

// Reset makes ids begin anew.
func (b *Backoff) Reset(ctx context.Context, ids ...string) error {
	return b.each("reset", ids, func(ids []string) error {
		_, err := b.c.ResetBackoff(ctx, &queuev1.ResetBackoffRequest{Queue: b.queue, Ids: ids})
		return err
	})
}

// DeleteEntry forgets ids.
func (b *Backoff) DeleteEntry(ctx context.Context, ids ...string) error {
	return b.each("delete", ids, func(ids []string) error {
		_, err := b.c.DeleteBackoffEntry(ctx, &queuev1.DeleteBackoffEntryRequest{Queue: b.queue, Ids: ids})
		return err
	})
}

// GC forgets every expired id and tells how many. The queue also does so by
// itself, a few at a time.
func (b *Backoff) GC(ctx context.Context) (int64, error) {
	resp, err := b.c.GCBackoff(ctx, &queuev1.GCBackoffRequest{Queue: b.queue})
	if err != nil {
		return 0, wrap(err, "collect back-off of queue %s", b.queue)
	}
	return resp.GetDropped(), nil
}
