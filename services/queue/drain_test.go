package queue

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/internal/rpc"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// drain starts a drain and hands its reports out; the channel is closed at its end.
func (r *rig) drain(t *testing.T, req *queuev1.DrainQueueRequest) <-chan *queuev1.DrainQueueResponse {
	t.Helper()
	if req.Queue == "" {
		req.Queue = q
	}
	s, err := r.DrainQueue(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	out := make(chan *queuev1.DrainQueueResponse, 1000)
	go func() {
		defer close(out)
		for {
			m, err := s.Recv()
			if err != nil {
				if !errors.Is(err, io.EOF) && rpc.Code(err) != codes.Canceled {
					t.Error(err)
				}
				return
			}
			out <- m
		}
	}()
	return out
}

// last is the last report of a drain.
func last(t *testing.T, reports <-chan *queuev1.DrainQueueResponse) (m *queuev1.DrainQueueResponse) {
	t.Helper()
	for {
		select {
		case next, ok := <-reports:
			if !ok {
				return m
			}
			m = next
		case <-time.After(time.Minute):
			t.Fatal("the drain does not end")
		}
	}
}

func TestQ05ADrainWaitsForQueuedHeldAndDelayedKeys(t *testing.T) {
	t.Parallel()
	on(t, func(t *testing.T, kind string) {
		r := start(t, kind, Config{})
		r.config(t, &queuev1.QueueConfig{Partitions: 2})
		ctx := t.Context()
		r.add(t, keysN(5)...)
		if _, err := r.AddAfter(ctx, &queuev1.AddAfterRequest{Queue: q, Delay: seconds(1), Items: []*queuev1.AddItem{{Key: "later"}}}); err != nil {
			t.Fatal(err)
		}
		reports := r.drain(t, &queuev1.DrainQueueRequest{Close: true, Timeout: seconds(120), ReportEvery: seconds(60)})
		first := wait(t, makeBoth(reports))
		if first.GetDrained() || first.GetCounts().GetReady() != 5 || first.GetAwaited() != 1 {
			t.Fatalf("first report %v, want 5 ready and 1 awaited: client-go returned here at once", first)
		}
		if _, err := r.Add(ctx, &queuev1.AddRequest{Queue: q, Items: []*queuev1.AddItem{{Key: "new"}}}); rpc.Reason(err) != "QUEUE_CLOSED" {
			t.Errorf("an add to the queue that is drained and closed: %v", err)
		}
		w := r.work(t, &queuev1.Hello{SessionId: "w"})
		w.give(10)
		for i := range 6 {
			l := wait(t, w.leases)
			for len(reports) > 0 {
				if m := <-reports; m.GetDrained() || m.GetTimedOut() {
					t.Fatalf("after %d keys: %v", i, m)
				}
			}
			w.settle(forget, l)
		}
		settled := time.Now()
		m := last(t, reports)
		if !m.GetDrained() || m.GetTimedOut() || m.GetAwaited() != 0 {
			t.Errorf("last report %v, want drained", m)
		}
		if took := time.Since(settled); took > 30*time.Second {
			t.Errorf("the end was noticed %v after it came, want at once and not with the next report", took)
		}
	})
}

// makeBoth makes a channel wait takes.
func makeBoth[T any](in <-chan T) chan T {
	out := make(chan T, 1)
	go func() {
		if v, ok := <-in; ok {
			out <- v
		}
	}()
	return out
}

func TestADrainOfAnEmptyQueueEndsAtOnce(t *testing.T) {
	t.Parallel()
	on(t, func(t *testing.T, kind string) {
		r := start(t, kind, Config{})
		r.configure(t)
		began := time.Now()
		if m := last(t, r.drain(t, &queuev1.DrainQueueRequest{})); !m.GetDrained() || time.Since(began) > 20*time.Second {
			t.Errorf("%v after %v", m, time.Since(began))
		}
	})
}

func TestADrainNeedNotWaitForKeysDueMuchLater(t *testing.T) {
	t.Parallel()
	on(t, func(t *testing.T, kind string) {
		r := start(t, kind, Config{})
		r.config(t, &queuev1.QueueConfig{Partitions: 2})
		ctx := t.Context()
		for key, delay := range map[string]float64{"hour": 3600, "day": 86400, "soon": .5} {
			if _, err := r.AddAfter(ctx, &queuev1.AddAfterRequest{Queue: q, Delay: seconds(delay), Items: []*queuev1.AddItem{{Key: key}}}); err != nil {
				t.Fatal(err)
			}
		}
		m := last(t, r.drain(t, &queuev1.DrainQueueRequest{DueWithin: durationpb.New(0)}))
		if !m.GetDrained() || m.GetAwaited() != 0 || m.GetCounts().GetDelayed() != 3 {
			t.Errorf("waiting for none of them: %v", m)
		}
		reports := r.drain(t, &queuev1.DrainQueueRequest{DueWithin: seconds(60), ReportEvery: seconds(.1)})
		if first := wait(t, makeBoth(reports)); first.GetDrained() || first.GetAwaited() != 1 {
			t.Fatalf("waiting for those due in a minute: %v, want 1 awaited", first)
		}
		w := r.work(t, &queuev1.Hello{SessionId: "w"})
		w.give(10)
		w.settle(forget, wait(t, w.leases))
		if m := last(t, reports); !m.GetDrained() || m.GetCounts().GetDelayed() != 2 {
			t.Errorf("last report %v, want drained with 2 delayed", m)
		}
	})
}

func TestADrainIsBoundedAndReportsWhatIsLeft(t *testing.T) {
	t.Parallel()
	on(t, func(t *testing.T, kind string) {
		r := start(t, kind, Config{})
		r.configure(t)
		r.add(t, "a", "b")
		began := time.Now()
		reports := r.drain(t, &queuev1.DrainQueueRequest{Timeout: seconds(.6), ReportEvery: seconds(.1)})
		n := 0
		var m *queuev1.DrainQueueResponse
		for next := range reports {
			n, m = n+1, next
		}
		if !m.GetTimedOut() || m.GetDrained() || m.GetCounts().GetReady() != 2 || n < 3 {
			t.Errorf("%d reports, the last one %v", n, m)
		}
		if took := time.Since(began); took < 600*time.Millisecond || took > 20*time.Second {
			t.Errorf("it took %v", took)
		}

		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		defer cancel()
		s, err := r.DrainQueue(ctx, &queuev1.DrainQueueRequest{Queue: q})
		for err == nil {
			var next *queuev1.DrainQueueResponse
			if next, err = s.Recv(); err == nil {
				m = next
			}
		}
		if !errors.Is(err, io.EOF) || !m.GetTimedOut() {
			t.Errorf("at the call's deadline: %v after %v, want a last report in time", err, m)
		}
	})
}

func TestADrainNoticesWhatAnotherReplicaDid(t *testing.T) {
	t.Parallel()
	a, b := two(t)
	a.configure(t)
	a.add(t, "k")
	reports := b.drain(t, &queuev1.DrainQueueRequest{ReportEvery: seconds(.1)})
	if first := wait(t, makeBoth(reports)); first.GetDrained() || first.GetCounts().GetReady() != 1 {
		t.Fatalf("first report %v", first)
	}
	w := a.work(t, &queuev1.Hello{SessionId: "w"})
	w.give(1)
	w.settle(forget, wait(t, w.leases))
	if m := last(t, reports); !m.GetDrained() {
		t.Errorf("last report %v, want drained", m)
	}
}

func TestBadDrainsAreNamed(t *testing.T) {
	t.Parallel()
	r := start(t, "memory", Config{})
	r.configure(t)
	for field, req := range map[string]*queuev1.DrainQueueRequest{
		"queue":        {Queue: "a b"},
		"timeout":      {Queue: q, Timeout: seconds(25 * 3600)},
		"due_within":   {Queue: q, DueWithin: seconds(-1)},
		"report_every": {Queue: q, ReportEvery: seconds(.05)},
	} {
		s, err := r.DrainQueue(t.Context(), req)
		if err == nil {
			_, err = s.Recv()
		}
		if rpc.Code(err) != codes.InvalidArgument || rpc.Violations(err)[field] == "" {
			t.Errorf("%s: %v", field, err)
		}
	}
}
