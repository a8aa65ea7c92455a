package client_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/client"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

func TestBackoffGrowsAndIsForgotten(t *testing.T) {
	t.Parallel()
	conn := dial(t, realQueue(t), client.DialConfig{})
	ctx := t.Context()
	b := client.NewBackoff(conn, "dev/backoff")
	if _, err := b.Get(ctx, "a"); !errors.Is(err, client.ErrQueueNotFound) {
		t.Errorf("Get before Configure: %v, want ErrQueueNotFound", err)
	}
	if _, _, err := client.NewQueue(conn, "dev/backoff", "").Configure(ctx, &queuev1.QueueConfig{Backoff: &queuev1.BackoffConfig{
		Initial: durationpb.New(time.Minute), Max: durationpb.New(3 * time.Minute),
	}}); err != nil {
		t.Fatal(err)
	}
	if d, err := b.Get(ctx, "a"); d != 0 || err != nil {
		t.Errorf("an unknown id has %v, %v", d, err)
	}
	for i, want := range []time.Duration{time.Minute, 2 * time.Minute, 3 * time.Minute, 3 * time.Minute} {
		if d, err := b.Next(ctx, "a", time.Now()); d != want || err != nil {
			t.Errorf("step %d is %v, %v, want %v", i, d, err, want)
		}
	}
	if d, err := b.Get(ctx, "a"); d != 3*time.Minute || err != nil {
		t.Errorf("Get is %v, %v", d, err)
	}
	if in, left, err := b.IsInBackOffSince(ctx, "a", time.Now().Add(-time.Minute)); !in || left > 2*time.Minute || left < time.Minute || err != nil {
		t.Errorf("a minute after the event %v with %v left, %v", in, left, err)
	}
	if in, _, err := b.IsInBackOffSinceUpdate(ctx, "a", time.Now().Add(4*time.Minute)); in || err != nil {
		t.Errorf("an event after the delay is in back-off: %v, %v", in, err)
	}
	if d, err := b.Next(ctx, "a", time.Now().Add(10*time.Minute)); d != time.Minute || err != nil {
		t.Errorf("after it expired it is %v, %v, want %v", d, err, time.Minute)
	}
	if _, err := b.NextAll(ctx, time.Time{}, "b", "c"); err != nil {
		t.Fatal(err)
	}
	if err := b.Reset(ctx, "a", "b"); err != nil {
		t.Fatal(err)
	}
	entries, err := b.Entries(ctx, "a", "b", "c")
	if err != nil {
		t.Fatal(err)
	}
	var delays []time.Duration
	for _, e := range entries {
		delays = append(delays, e.Delay)
	}
	if d := cmp.Diff([]time.Duration{0, 0, time.Minute}, delays); d != "" || entries[2].ID != "c" || entries[2].Updated.IsZero() {
		t.Errorf("after Reset (-want +got):\n%s%v", d, entries)
	}
	if _, err := b.Next(ctx, "", time.Time{}); err == nil {
		t.Error("an empty id is accepted")
	}
}

func TestAnOperatorsHandOnAQueue(t *testing.T) {
	t.Parallel()
	conn := dial(t, realQueue(t), client.DialConfig{})
	q, ctx := client.NewQueue(conn, "dev/operate", ""), t.Context()
	if _, _, err := q.Configure(ctx, &queuev1.QueueConfig{AbsorbDelays: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := q.AddAfter(ctx, time.Hour, client.Keys("later", "never")...); err != nil {
		t.Fatal(err)
	}
	statuses, err := q.RetryNow(ctx, "later", "unknown")
	if d := cmp.Diff([]client.ItemStatus{queuev1.ItemStatus_ITEM_STATUS_DONE, queuev1.ItemStatus_ITEM_STATUS_UNCHANGED}, statuses); d != "" || err != nil {
		t.Errorf("RetryNow (-want +got):\n%s%v", d, err)
	}
	if statuses, err := q.Delete(ctx, "never"); err != nil || statuses[0] != queuev1.ItemStatus_ITEM_STATUS_DONE {
		t.Errorf("Delete: %v, %v", statuses, err)
	}
	if statuses, err := q.Release(ctx, "later"); err != nil || statuses[0] != queuev1.ItemStatus_ITEM_STATUS_UNCHANGED {
		t.Errorf("Release of a key nobody holds: %v, %v", statuses, err)
	}
	if err := q.Pause(ctx); err != nil {
		t.Fatal(err)
	}
	if err := q.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := q.Add(ctx, client.Keys("x")...); !errors.Is(err, client.ErrQueueClosed) {
		t.Errorf("Add to a closed queue: %v", err)
	}
	if err := q.Open(ctx); err != nil {
		t.Fatal(err)
	}
	ran := make(chan string, 1)
	w, err := client.NewWorker(conn, reconciling(ran), client.WorkerConfig{Queue: "dev/operate"})
	if err != nil {
		t.Fatal(err)
	}
	background(t, w)
	if err := q.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	if key := <-ran; key != "later" {
		t.Errorf("ran %q", key)
	}
	reports := 0
	drained, err := q.Drain(ctx, client.DrainOptions{Close: true, Progress: func(*client.Counts, int64) { reports++ }})
	if !drained || err != nil || reports == 0 {
		t.Errorf("Drain: %v after %d reports, %v", drained, reports, err)
	}
	if _, err := q.Add(ctx, client.Keys("x")...); !errors.Is(err, client.ErrQueueClosed) {
		t.Errorf("Add after a drain that closes: %v", err)
	}
	if events, err := q.History(ctx, "later"); err != nil || len(events) == 0 {
		t.Errorf("History: %v, %v", events, err)
	}
}

// reconciling tells of every key and is done with it.
func reconciling(ran chan<- string) client.Reconciler {
	return client.ReconcilerFunc(func(_ context.Context, item client.Item) (client.Result, error) {
		ran <- item.Key
		return client.Result{}, nil
	})
}
