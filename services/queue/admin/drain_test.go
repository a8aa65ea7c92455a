package admin_test

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
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
)

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

func TestADrainWaitsForReadyLeasedAndDelayedKeys(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		r := queuetest.Start(t, kind, queue.Config{})
		r.Config(t, &queuev1.QueueConfig{Partitions: 2})
		ctx := t.Context()
		r.AddKeys(t, queuetest.KeysN(5)...)
		if _, err := r.AddAfter(ctx, &queuev1.AddAfterRequest{Queue: queuetest.Q, Delay: queuetest.Seconds(1), Items: []*queuev1.AddItem{{Key: "later"}}}); err != nil {
			t.Fatal(err)
		}
		reports := r.Drain(t, &queuev1.DrainQueueRequest{Close: true, Timeout: queuetest.Seconds(120), ReportEvery: queuetest.Seconds(60)})
		first := queuetest.Wait(t, makeBoth(reports))
		if first.GetDrained() || first.GetCounts().GetReady() != 5 || first.GetAwaited() != 1 {
			t.Fatalf("first report %v, want 5 ready and 1 awaited: client-go returned here at once", first)
		}
		if _, err := r.Add(ctx, &queuev1.AddRequest{Queue: queuetest.Q, Items: []*queuev1.AddItem{{Key: "new"}}}); rpc.Reason(err) != "QUEUE_CLOSED" {
			t.Errorf("an add to the queue that is drained and closed: %v", err)
		}
		w := r.OpenWork(t, &queuev1.Hello{SessionId: "w"})
		w.Give(10)
		for i := range 6 {
			l := queuetest.Wait(t, w.Leases)
			for len(reports) > 0 {
				if m := <-reports; m.GetDrained() || m.GetTimedOut() {
					t.Fatalf("after %d keys: %v", i, m)
				}
			}
			w.Settle(queuetest.Forget, l)
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
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		r := queuetest.Start(t, kind, queue.Config{})
		r.Configure(t)
		began := time.Now()
		if m := last(t, r.Drain(t, &queuev1.DrainQueueRequest{})); !m.GetDrained() || time.Since(began) > 20*time.Second {
			t.Errorf("%v after %v", m, time.Since(began))
		}
	})
}

func TestADrainNeedNotWaitForKeysDueMuchLater(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		r := queuetest.Start(t, kind, queue.Config{})
		r.Config(t, &queuev1.QueueConfig{Partitions: 2})
		ctx := t.Context()
		for key, delay := range map[string]float64{"hour": 3600, "day": 86400, "soon": 50} {
			if _, err := r.AddAfter(ctx, &queuev1.AddAfterRequest{Queue: queuetest.Q, Delay: queuetest.Seconds(delay), Items: []*queuev1.AddItem{{Key: key}}}); err != nil {
				t.Fatal(err)
			}
		}
		m := last(t, r.Drain(t, &queuev1.DrainQueueRequest{DueWithin: durationpb.New(0)}))
		if !m.GetDrained() || m.GetAwaited() != 0 || m.GetCounts().GetDelayed() != 3 {
			t.Errorf("waiting for none of them: %v", m)
		}
		reports := r.Drain(t, &queuev1.DrainQueueRequest{DueWithin: queuetest.Seconds(60), ReportEvery: queuetest.Seconds(.1)})
		if first := queuetest.Wait(t, makeBoth(reports)); first.GetDrained() || first.GetAwaited() != 1 {
			t.Fatalf("waiting for those due in a minute: %v, want 1 awaited", first)
		}
		if _, err := r.RetryNow(ctx, &queuev1.RetryNowRequest{Queue: queuetest.Q, Keys: []string{"soon"}}); err != nil {
			t.Fatal(err)
		}
		w := r.OpenWork(t, &queuev1.Hello{SessionId: "w"})
		w.Give(10)
		w.Settle(queuetest.Forget, queuetest.Wait(t, w.Leases))
		if m := last(t, reports); !m.GetDrained() || m.GetCounts().GetDelayed() != 2 {
			t.Errorf("last report %v, want drained with 2 delayed", m)
		}
	})
}

func TestADrainIsBoundedAndReportsWhatIsLeft(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		r := queuetest.Start(t, kind, queue.Config{})
		r.Configure(t)
		r.AddKeys(t, "a", "b")
		began := time.Now()
		reports := r.Drain(t, &queuev1.DrainQueueRequest{Timeout: queuetest.Seconds(.6), ReportEvery: queuetest.Seconds(.1)})
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
		s, err := r.DrainQueue(ctx, &queuev1.DrainQueueRequest{Queue: queuetest.Q})
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
	a, b := queuetest.Two(t)
	a.Configure(t)
	a.AddKeys(t, "k")
	reports := b.Drain(t, &queuev1.DrainQueueRequest{ReportEvery: queuetest.Seconds(.1)})
	if first := queuetest.Wait(t, makeBoth(reports)); first.GetDrained() || first.GetCounts().GetReady() != 1 {
		t.Fatalf("first report %v", first)
	}
	w := a.OpenWork(t, &queuev1.Hello{SessionId: "w"})
	w.Give(1)
	w.Settle(queuetest.Forget, queuetest.Wait(t, w.Leases))
	if m := last(t, reports); !m.GetDrained() {
		t.Errorf("last report %v, want drained", m)
	}
}

func TestBadDrainsAreNamed(t *testing.T) {
	t.Parallel()
	r := queuetest.Start(t, "memory", queue.Config{})
	r.Configure(t)
	for field, req := range map[string]*queuev1.DrainQueueRequest{
		"queue":        {Queue: "a b"},
		"timeout":      {Queue: queuetest.Q, Timeout: queuetest.Seconds(25 * 3600)},
		"due_within":   {Queue: queuetest.Q, DueWithin: queuetest.Seconds(-1)},
		"report_every": {Queue: queuetest.Q, ReportEvery: queuetest.Seconds(.05)},
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
