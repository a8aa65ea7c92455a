package backoff_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/deltaplane/deltaplane/internal/rpc"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
)

// backer calls the back-off calls of one queue for one id.
type backer struct {
	t *testing.T
	*queuetest.Rig
}

func backing(t *testing.T, kind string, cfg *queuev1.BackoffConfig) backer {
	t.Helper()
	r := queuetest.Start(t, kind, queue.Config{})
	r.Config(t, &queuev1.QueueConfig{Partitions: 2, Backoff: cfg})
	return backer{t, r}
}

func (b backer) get(id string) *queuev1.BackoffEntry {
	b.t.Helper()
	res, err := b.Backoff.Get(context.Background(), &queuev1.BackoffServiceGetRequest{Queue: queuetest.Q, Ids: []string{id}})
	if err != nil {
		b.t.Fatal(err)
	}
	return res.GetEntries()[0]
}

func (b backer) next(id string, event *timestamppb.Timestamp) time.Duration {
	b.t.Helper()
	res, err := b.Backoff.Next(context.Background(), &queuev1.NextRequest{Queue: queuetest.Q, Ids: []string{id}, EventTime: event})
	if err != nil {
		b.t.Fatal(err)
	}
	return res.GetEntries()[0].GetBackoff().AsDuration()
}

func TestTheBackOffDoublesUpToItsMaximum(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) { // upstream's TestSlowBackoff
		b := backing(t, kind, &queuev1.BackoffConfig{Initial: queuetest.Seconds(1), Max: queuetest.Seconds(50)})
		if e := b.get("a"); e.GetId() != "a" || e.GetBackoff().AsDuration() != 0 || e.GetLastUpdate() != nil {
			t.Errorf("unknown id: %v", e)
		}
		for i, want := range []time.Duration{1, 2, 4, 8, 16, 32, 50, 50, 50} {
			if got := b.next("a", nil); got != want*time.Second {
				t.Errorf("step %d: %v, want %v", i, got, want*time.Second)
			}
		}
		if got := b.next("other", nil); got != time.Second {
			t.Errorf("another id: %v", got)
		}
		if _, err := b.Backoff.Reset(t.Context(), &queuev1.ResetRequest{Queue: queuetest.Q, Ids: []string{"a", "other"}}); err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{"a", "other"} {
			if got := b.get(id).GetBackoff().AsDuration(); got != 0 {
				t.Errorf("%s after reset: %v", id, got)
			}
		}
	})
}

func TestTheFirstDelayIsNotCappedAndAnOldEntryStartsOver(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		b := backing(t, kind, &queuev1.BackoffConfig{Initial: queuetest.Seconds(10), Max: queuetest.Seconds(5)})
		for _, want := range []time.Duration{10, 5, 5} {
			if got := b.next("a", nil); got != want*time.Second {
				t.Errorf("%v, want %v", got, want*time.Second)
			}
		}
		b.Advance(9 * time.Second) // upstream's TestBackoffGC: within twice the maximum it is kept
		if got := b.get("a").GetBackoff().AsDuration(); got != 5*time.Second {
			t.Errorf("after 9 s: %v", got)
		}
		last := b.get("a").GetLastUpdate().AsTime()
		if got := b.next("a", timestamppb.New(last.Add(10*time.Second))); got != 5*time.Second {
			t.Errorf("an event exactly at the end: %v, want 5 s", got)
		}
		last = b.get("a").GetLastUpdate().AsTime()
		if got := b.next("a", timestamppb.New(last.Add(10*time.Second+time.Microsecond))); got != 10*time.Second {
			t.Errorf("an event behind it: %v, want the first delay", got)
		}
	})
}

func TestGetTellsTheStoresTimeAndTheExpiry(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		b := backing(t, kind, &queuev1.BackoffConfig{Initial: queuetest.Seconds(10), Max: queuetest.Seconds(10)})
		b.next("a", nil)
		b.Advance(11 * time.Second)
		res, err := b.Backoff.Get(t.Context(), &queuev1.BackoffServiceGetRequest{Queue: queuetest.Q, Ids: []string{"a"}})
		if err != nil {
			t.Fatal(err)
		}
		if since := res.GetTime().AsTime().Sub(res.GetEntries()[0].GetLastUpdate().AsTime()); since < 11*time.Second || since > time.Minute {
			t.Errorf("%v passed since the last update, want 11 s and a little", since)
		}
		if got := res.GetExpireAfter().AsDuration(); got != 20*time.Second {
			t.Errorf("expire after %v, want twice the maximum", got)
		}
	})
}

func TestEntriesExpireByThemselvesInAllPartitions(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		b := backing(t, kind, &queuev1.BackoffConfig{Initial: queuetest.Seconds(1), Max: queuetest.Seconds(1), ExpireAfter: queuetest.Seconds(300)})
		ctx := t.Context()
		const n = 900 // more than one transaction collects
		if _, err := b.Backoff.Next(ctx, &queuev1.NextRequest{Queue: queuetest.Q, Ids: queuetest.KeysN(n)}); err != nil {
			t.Fatal(err)
		}
		b.Advance(200 * time.Second)
		b.next("young", nil)
		b.Advance(200 * time.Second)
		asked := append(queuetest.KeysN(n), "young")
		for deadline := time.Now().Add(30 * time.Second); ; {
			got, err := b.Backoff.Get(ctx, &queuev1.BackoffServiceGetRequest{Queue: queuetest.Q, Ids: asked}) // each transaction drops some
			if err != nil {
				t.Fatal(err)
			}
			left := 0
			for _, e := range got.GetEntries()[:n] {
				if e.GetBackoff().AsDuration() > 0 {
					left++
				}
			}
			if got.GetEntries()[n].GetBackoff().AsDuration() == 0 {
				t.Fatal("an entry that has not expired is gone")
			}
			if left == 0 {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d of %d expired entries are still known", left, n)
			}
		}
	})
}

func TestTheJitterIsDrawnForEveryStep(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) { // upstream's TestBackoffWithJitter
		b := backing(t, kind, &queuev1.BackoffConfig{Initial: queuetest.Seconds(.1), Max: queuetest.Seconds(60), JitterFactor: .1})
		seen := map[time.Duration]bool{}
		for i := range 20 {
			id := queuetest.KeysN(20)[i]
			prev := b.next(id, nil)
			if prev < 100*time.Millisecond || prev > 110*time.Millisecond {
				t.Errorf("first: %v", prev)
			}
			seen[prev] = true
			for range 4 {
				got := b.next(id, nil)
				if got < 2*prev || got > 2*prev+prev/10+time.Microsecond {
					t.Errorf("after %v: %v", prev, got)
				}
				prev = got
			}
		}
		if len(seen) < 2 {
			t.Errorf("every first delay is %v: nothing is random", seen)
		}
	})
}

func TestBadBackOffCallsAreNamed(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		b := backing(t, kind, nil)
		ctx := t.Context()
		at := func(y int) *timestamppb.Timestamp { return timestamppb.New(time.Date(y, 1, 1, 0, 0, 0, 0, time.UTC)) }
		next := func(r *queuev1.NextRequest) error { _, err := b.Backoff.Next(ctx, r); return err }
		get := func(r *queuev1.BackoffServiceGetRequest) error { _, err := b.Backoff.Get(ctx, r); return err }
		ids := []string{"a"}
		for field, err := range map[string]error{
			"ids":        next(&queuev1.NextRequest{Queue: queuetest.Q}),
			"ids[0]":     next(&queuev1.NextRequest{Queue: queuetest.Q, Ids: []string{""}}),
			"ids[1]":     next(&queuev1.NextRequest{Queue: queuetest.Q, Ids: []string{"a", string(make([]byte, 2000))}}),
			"event_time": next(&queuev1.NextRequest{Queue: queuetest.Q, Ids: ids, EventTime: &timestamppb.Timestamp{Nanos: -1}}),
			"queue":      next(&queuev1.NextRequest{Ids: ids}),
		} {
			if rpc.Code(err) != codes.InvalidArgument || rpc.Violations(err)[field] == "" {
				t.Errorf("%s: %v", field, err)
			}
		}
		for name, err := range map[string]error{
			"too many":   next(&queuev1.NextRequest{Queue: queuetest.Q, Ids: queuetest.KeysN(1001)}),
			"before all": next(&queuev1.NextRequest{Queue: queuetest.Q, Ids: ids, EventTime: at(1960)}),
			"far ahead":  next(&queuev1.NextRequest{Queue: queuetest.Q, Ids: ids, EventTime: at(2201)}),
			"no id":      get(&queuev1.BackoffServiceGetRequest{Queue: queuetest.Q}),
			"nanos":      next(&queuev1.NextRequest{Queue: queuetest.Q, Ids: ids, EventTime: &timestamppb.Timestamp{Seconds: 1, Nanos: 2e9}}),
		} {
			if rpc.Code(err) != codes.InvalidArgument {
				t.Errorf("%s: %v", name, err)
			}
		}
		if d := b.next("a", nil); d != durationpb.New(10*time.Second).AsDuration() {
			t.Errorf("the default's first delay is %v: something refused was applied", d)
		}
	})
}
