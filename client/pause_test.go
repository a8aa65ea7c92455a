package client_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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
	if _, err := client.NewQueue(conn, "dev/backoff", "").Configure(ctx, client.QueueConfig{Backoff: client.BackoffConfig{
		Initial: time.Minute, Max: 3 * time.Minute,
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

func TestAPausedQueueHandsOutNothingAndAClosedOneTakesNothing(t *testing.T) {
	t.Parallel()
	conn := dial(t, realQueue(t), client.DialConfig{})
	q, ctx := client.NewQueue(conn, "dev/operate", ""), t.Context()
	if _, err := q.Configure(ctx, client.QueueConfig{AbsorbDelays: true}); err != nil {
		t.Fatal(err)
	}
	if err := q.Pause(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := q.Add(ctx, client.Keys("later", "never")...); err != nil {
		t.Fatal(err)
	}
	admin := queuev1.NewQueueAdminServiceClient(conn)
	if _, err := admin.CloseQueue(ctx, &queuev1.CloseQueueRequest{Queue: q.Name()}); err != nil {
		t.Fatal(err)
	}
	if _, err := q.Add(ctx, client.Keys("x")...); !errors.Is(err, client.ErrQueueClosed) {
		t.Errorf("Add to a closed queue: %v", err)
	}
	ran := make(chan string, 1)
	w, err := client.NewWorker(conn, reconciling(ran), client.WorkerConfig{Queue: "dev/operate"})
	if err != nil {
		t.Fatal(err)
	}
	background(t, w)
	if n, err := q.Len(ctx); err != nil || n != (client.Counts{Ready: 2}) {
		t.Errorf("a paused queue holds %+v, %v; want two ready keys", n, err)
	}
	if err := q.Delete(ctx, "never", "unknown"); err != nil {
		t.Error(err)
	}
	if err := q.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	if key := <-ran; key != "later" {
		t.Errorf("ran %q", key)
	}
	select {
	case key := <-ran:
		t.Errorf("ran %q, which was deleted", key)
	default:
	}
}

// reconciling tells of every key and is done with it.
func reconciling(ran chan<- string) client.Reconciler {
	return client.ReconcilerFunc(func(_ context.Context, item client.Item) (client.Result, error) {
		ran <- item.Key
		return client.Result{}, nil
	})
}
