package client_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/deltaplane/deltaplane/client"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// knowing answers with one entry at a time of its own.
type knowing struct {
	queuev1.UnimplementedBackoffServiceServer
	entry *queuev1.BackoffEntry
	now   time.Time
}

func (s *knowing) Get(context.Context, *queuev1.BackoffServiceGetRequest) (*queuev1.BackoffServiceGetResponse, error) {
	return &queuev1.BackoffServiceGetResponse{
		Entries: []*queuev1.BackoffEntry{s.entry}, Time: timestamppb.New(s.now), ExpireAfter: durationpb.New(20 * time.Second),
	}, nil
}

// The answers are those of client-go's flowcontrol.Backoff: strict bounds, and an expired entry
// counts as unknown.
func TestInBackOffFollowsFromTheEntryAndTheStoresTime(t *testing.T) {
	t.Parallel()
	updated := time.Date(2026, 1, 2, 3, 4, 5, 678000, time.UTC)
	known := &queuev1.BackoffEntry{Id: "a", Backoff: durationpb.New(10 * time.Second), LastUpdate: timestamppb.New(updated)}
	const us = time.Microsecond
	for _, c := range []struct {
		name          string
		entry         *queuev1.BackoffEntry
		event, now    time.Duration // after the update
		since, update time.Duration // what is left
	}{
		{"unknown", &queuev1.BackoffEntry{Id: "a"}, 0, 0, 0, 0},
		{"at once", known, 0, 0, 10 * time.Second, 10 * time.Second},
		{"within", known, 4 * time.Second, 7 * time.Second, 7 * time.Second, 6 * time.Second},
		{"just before the end", known, 10*time.Second - us, 20*time.Second - 2*us, us, us},
		{"at the end", known, 10 * time.Second, 20 * time.Second, 0, 0},
		{"after the end", known, 15 * time.Second, 40 * time.Second, 0, 0},
		{"an event before the update", known, -time.Second, 0, 9 * time.Second, 11 * time.Second},
		{"not yet expired", known, 20 * time.Second, 21 * time.Second, 9 * time.Second, 0},
		{"expired", known, 20*time.Second + us, 21 * time.Second, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := &knowing{entry: c.entry, now: updated.Add(c.now)}
			conn, stop := serve(t, func(r grpc.ServiceRegistrar) { queuev1.RegisterBackoffServiceServer(r, s) })
			defer stop()
			b := client.NewBackoff(conn, "dev/backoff")
			event := updated.Add(c.event)
			if in, left, err := b.IsInBackOffSince(t.Context(), "a", event); in != (c.since > 0) || left != c.since || err != nil {
				t.Errorf("since the event: %v, %v, %v, want %v left", in, left, err, c.since)
			}
			if in, left, err := b.IsInBackOffSinceUpdate(t.Context(), "a", event); in != (c.update > 0) || left != c.update || err != nil {
				t.Errorf("since the update: %v, %v, %v, want %v left", in, left, err, c.update)
			}
		})
	}
}
