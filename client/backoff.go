package client

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/deltaplane/deltaplane/core/backoff"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// Backoff is client-go's flowcontrol.Backoff kept by a queue service: delays by
// id that double with every failure, shared by all replicas and kept over
// restarts. Ids are apart from the queue's keys. How delays grow is the queue's
// [queuev1.BackoffConfig]; see [Queue.Configure]. It is safe for concurrent use.
type Backoff struct {
	c     queuev1.BackoffServiceClient
	queue string
}

// NewBackoff returns the back-off entries of a queue that exists.
func NewBackoff(conn grpc.ClientConnInterface, queue string) *Backoff {
	return &Backoff{c: queuev1.NewBackoffServiceClient(conn), queue: queue}
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
		return b.c.Get(ctx, &queuev1.BackoffServiceGetRequest{Queue: b.queue, Ids: ids})
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
		return b.c.Next(ctx, &queuev1.NextRequest{Queue: b.queue, Ids: ids, EventTime: at})
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
// event, by the store's clock, and what is left of it.
func (b *Backoff) IsInBackOffSince(ctx context.Context, id string, event time.Time) (bool, time.Duration, error) {
	return b.left(ctx, id, func(g backoff.Growth, e backoff.Entry, now int64) int64 { return g.Since(e, event.UnixMicro(), now) })
}

// IsInBackOffSinceUpdate reports whether an event lies within the delay after
// the id's last update, and what is left of it then.
func (b *Backoff) IsInBackOffSinceUpdate(ctx context.Context, id string, event time.Time) (bool, time.Duration, error) {
	return b.left(ctx, id, func(g backoff.Growth, e backoff.Entry, _ int64) int64 { return g.SinceUpdate(e, event.UnixMicro()) })
}

// left reports what is left of an id's delay as count says, in microseconds; nothing for an unknown
// or expired one.
func (b *Backoff) left(ctx context.Context, id string, count func(g backoff.Growth, e backoff.Entry, now int64) int64) (bool, time.Duration, error) {
	resp, err := b.c.Get(ctx, &queuev1.BackoffServiceGetRequest{Queue: b.queue, Ids: []string{id}})
	if err != nil {
		return false, 0, wrap(err, "back-off of %s in queue %s", id, b.queue)
	}
	if len(resp.GetEntries()) != 1 {
		return false, 0, fmt.Errorf("client: queue %s answered %d back-off entries for one id", b.queue, len(resp.GetEntries()))
	}
	var e backoff.Entry
	if known := resp.GetEntries()[0]; known.GetLastUpdate() != nil {
		e = backoff.Entry{Delay: known.GetBackoff().AsDuration().Microseconds(), Updated: known.GetLastUpdate().AsTime().UnixMicro()}
	}
	growth := backoff.Growth{ExpireAfter: resp.GetExpireAfter().AsDuration().Microseconds()}
	left := max(count(growth, e, resp.GetTime().AsTime().UnixMicro()), 0)
	return left > 0, time.Duration(left) * time.Microsecond, nil
}

// Reset forgets ids: their next delay is the first one.
func (b *Backoff) Reset(ctx context.Context, ids ...string) error {
	return b.each("reset", ids, func(ids []string) error {
		_, err := b.c.Reset(ctx, &queuev1.ResetRequest{Queue: b.queue, Ids: ids})
		return err
	})
}
