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
	res, err := b.GetBackoff(context.Background(), &queuev1.GetBackoffRequest{Queue: queuetest.Q, Ids: []string{id}})
	if err != nil {
		b.t.Fatal(err)
	}
	return res.GetEntries()[0]
}

func (b backer) next(id string, event *timestamppb.Timestamp) time.Duration {
	b.t.Helper()
	res, err := b.NextBackoff(context.Background(), &queuev1.NextBackoffRequest{Queue: queuetest.Q, Ids: []string{id}, EventTime: event})
	if err != nil {
		b.t.Fatal(err)
	}
	return res.GetEntries()[0].GetBackoff().AsDuration()
}

func TestB01TheBackOffDoublesUpToItsMaximum(t *testing.T) {
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
		if _, err := b.ResetBackoff(t.Context(), &queuev1.ResetBackoffRequest{Queue: queuetest.Q, Ids: []string{"a"}}); err != nil {
			t.Fatal(err)
		}
		if _, err := b.DeleteBackoffEntry(t.Context(), &queuev1.DeleteBackoffEntryRequest{Queue: queuetest.Q, Ids: []string{"other"}}); err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{"a", "other"} {
			if got := b.get(id).GetBackoff().AsDuration(); got != 0 {
				t.Errorf("%s after reset: %v", id, got)
			}
		}
	})
}

func TestB02B03TheFirstDelayIsNotCappedAndAnOldEntryBeginsAnew(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		b := backing(t, kind, &queuev1.BackoffConfig{Initial: queuetest.Seconds(10), Max: queuetest.Seconds(5)})
		for _, want := range []time.Duration{10, 5, 5} {
			if got := b.next("a", nil); got != want*time.Second {
				t.Errorf("%v, want %v", got, want*time.Second)
			}
		}
		b.Advance(9 * time.Second) // upstream's TestBackoffGC: within twice the maximum it is kept
		if res, err := b.GCBackoff(t.Context(), &queuev1.GCBackoffRequest{Queue: queuetest.Q}); err != nil || res.GetDropped() != 0 {
			t.Errorf("GC after 9 s: %v, %v", res, err)
		}
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

func TestB04InBackOffSince(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		b := backing(t, kind, &queuev1.BackoffConfig{Initial: queuetest.Seconds(10), Max: queuetest.Seconds(10)})
		ctx := t.Context()
		since := func(id string, at time.Time) *queuev1.IsInBackOffSinceResponse {
			t.Helper()
			res, err := b.IsInBackOffSince(ctx, &queuev1.IsInBackOffSinceRequest{Queue: queuetest.Q, Id: id, EventTime: timestamppb.New(at)})
			if err != nil {
				t.Fatal(err)
			}
			return res
		}
		update := func(id string, at time.Time) *queuev1.IsInBackOffSinceUpdateResponse {
			t.Helper()
			res, err := b.IsInBackOffSinceUpdate(ctx, &queuev1.IsInBackOffSinceUpdateRequest{Queue: queuetest.Q, Id: id, EventTime: timestamppb.New(at)})
			if err != nil {
				t.Fatal(err)
			}
			return res
		}
		if since("a", time.Now()).GetInBackOff() || update("a", time.Now()).GetInBackOff() {
			t.Error("an unknown id is in back-off")
		}
		b.next("a", nil)
		last := b.get("a").GetLastUpdate().AsTime()
		if res := since("a", last); !res.GetInBackOff() || res.GetRemaining().AsDuration() <= 0 || res.GetRemaining().AsDuration() > 10*time.Second {
			t.Errorf("at once: %v", res)
		}
		for d, want := range map[time.Duration]time.Duration{
			0: 10 * time.Second, 4 * time.Second: 6 * time.Second, 10*time.Second - time.Microsecond: time.Microsecond, 10 * time.Second: 0, 15 * time.Second: 0,
			time.Minute: 0, // expired
		} {
			res := update("a", last.Add(d))
			if res.GetInBackOff() != (want > 0) || res.GetRemaining().AsDuration() != want {
				t.Errorf("an event %v after the update: %v, want %v remaining", d, res, want)
			}
		}
		b.Advance(11 * time.Second)
		if res := since("a", last); res.GetInBackOff() || res.GetRemaining().AsDuration() != 0 {
			t.Errorf("11 s later: %v", res)
		}
	})
}

func TestB05GCDropsWhatHasExpiredInAllPartitions(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		b := backing(t, kind, &queuev1.BackoffConfig{Initial: queuetest.Seconds(1), Max: queuetest.Seconds(1), ExpireAfter: queuetest.Seconds(3)})
		ctx := t.Context()
		const n = 900 // more than one turn collects
		if _, err := b.NextBackoff(ctx, &queuev1.NextBackoffRequest{Queue: queuetest.Q, Ids: queuetest.KeysN(n)}); err != nil {
			t.Fatal(err)
		}
		b.Advance(2 * time.Second)
		b.next("young", nil)
		b.Advance(2 * time.Second)
		res, err := b.GCBackoff(ctx, &queuev1.GCBackoffRequest{Queue: queuetest.Q})
		if err != nil || res.GetDropped() < 1 || res.GetDropped() > n {
			t.Fatalf("GC = %v, %v", res, err)
		}
		got, err := b.GetBackoff(ctx, &queuev1.GetBackoffRequest{Queue: queuetest.Q, Ids: append(queuetest.KeysN(n), "young")})
		if err != nil {
			t.Fatal(err)
		}
		for i, e := range got.GetEntries() {
			if (e.GetBackoff().AsDuration() > 0) != (i == n) {
				t.Fatalf("entry %d after GC: %v", i, e)
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
		next := func(r *queuev1.NextBackoffRequest) error { _, err := b.NextBackoff(ctx, r); return err }
		since := func(r *queuev1.IsInBackOffSinceRequest) error { _, err := b.IsInBackOffSince(ctx, r); return err }
		update := func(r *queuev1.IsInBackOffSinceUpdateRequest) error {
			_, err := b.IsInBackOffSinceUpdate(ctx, r)
			return err
		}
		ids := []string{"a"}
		for field, err := range map[string]error{
			"ids":        next(&queuev1.NextBackoffRequest{Queue: queuetest.Q}),
			"ids[0]":     next(&queuev1.NextBackoffRequest{Queue: queuetest.Q, Ids: []string{""}}),
			"ids[1]":     next(&queuev1.NextBackoffRequest{Queue: queuetest.Q, Ids: []string{"a", string(make([]byte, 2000))}}),
			"event_time": next(&queuev1.NextBackoffRequest{Queue: queuetest.Q, Ids: ids, EventTime: &timestamppb.Timestamp{Nanos: -1}}),
			"queue":      next(&queuev1.NextBackoffRequest{Ids: ids}),
			"id":         since(&queuev1.IsInBackOffSinceRequest{Queue: queuetest.Q, EventTime: at(2020)}),
		} {
			if rpc.Code(err) != codes.InvalidArgument || rpc.Violations(err)[field] == "" {
				t.Errorf("%s: %v", field, err)
			}
		}
		for name, err := range map[string]error{
			"too many":   next(&queuev1.NextBackoffRequest{Queue: queuetest.Q, Ids: queuetest.KeysN(1001)}),
			"before all": next(&queuev1.NextBackoffRequest{Queue: queuetest.Q, Ids: ids, EventTime: at(1960)}),
			"far ahead":  next(&queuev1.NextBackoffRequest{Queue: queuetest.Q, Ids: ids, EventTime: at(2201)}),
			"no event":   since(&queuev1.IsInBackOffSinceRequest{Queue: queuetest.Q, Id: "a"}),
			"no update":  update(&queuev1.IsInBackOffSinceUpdateRequest{Queue: queuetest.Q, Id: "a"}),
			"nanos":      update(&queuev1.IsInBackOffSinceUpdateRequest{Queue: queuetest.Q, Id: "a", EventTime: &timestamppb.Timestamp{Seconds: 1, Nanos: 2e9}}),
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
