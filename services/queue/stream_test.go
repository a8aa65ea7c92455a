package queue

import (
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// worker is the client's end of a Work stream. Messages are sorted by kind, so
// that a test can wait for one without minding the others.
type worker struct {
	t        testing.TB
	s        queuev1.QueueService_WorkClient
	cancel   context.CancelFunc
	welcome  *queuev1.Welcome
	leases   chan *queuev1.Lease
	settled  chan *queuev1.Settled
	extended chan *queuev1.Extended
	control  chan *queuev1.Control
	pongs    chan *queuev1.Pong
	end      chan error
	request  uint64
}

func (r *rig) work(t testing.TB, hello *queuev1.Hello) *worker {
	t.Helper()
	w, err := r.tryWork(t, hello)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func (r *rig) tryWork(t testing.TB, hello *queuev1.Hello) (*worker, error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	s, err := r.Work(ctx)
	if err != nil {
		return nil, err
	}
	if len(hello.GetQueues()) == 0 {
		hello.Queues = []string{q}
	}
	if err := s.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Hello{Hello: hello}}); err != nil {
		return nil, err
	}
	m, err := s.Recv()
	if err != nil {
		return nil, err
	}
	w := &worker{
		t: t, s: s, cancel: cancel, welcome: m.GetWelcome(), leases: make(chan *queuev1.Lease, 10_000), settled: make(chan *queuev1.Settled, 1000),
		extended: make(chan *queuev1.Extended, 100), control: make(chan *queuev1.Control, 10), pongs: make(chan *queuev1.Pong, 10), end: make(chan error, 1),
	}
	go func() {
		for {
			m, err := s.Recv()
			if err != nil {
				w.end <- err
				return
			}
			for _, l := range m.GetAssign().GetLeases() {
				w.leases <- l
			}
			switch {
			case m.GetSettled() != nil:
				w.settled <- m.GetSettled()
			case m.GetExtended() != nil:
				w.extended <- m.GetExtended()
			case m.GetPong() != nil:
				w.pongs <- m.GetPong()
			case m.GetControl() != nil:
				w.control <- m.GetControl()
			}
		}
	}()
	return w, nil
}

func (w *worker) send(m *queuev1.WorkRequest) {
	w.t.Helper()
	if err := w.s.Send(m); err != nil && !errors.Is(err, io.EOF) {
		w.t.Fatal(err)
	}
}

func (w *worker) give(n int) {
	w.t.Helper()
	w.send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Credit{Credit: &queuev1.Credit{Items: int32(n)}}})
}

func (w *worker) settle(o queuev1.Outcome, ls ...*queuev1.Lease) []*queuev1.SettleResult {
	w.t.Helper()
	w.request++
	b := &queuev1.SettleBatch{RequestId: w.request}
	for _, l := range ls {
		b.Settlements = append(b.Settlements, &queuev1.Settlement{Queue: l.GetQueue(), Key: l.GetKey(), Token: l.GetToken(), Outcome: o})
	}
	w.send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Settle{Settle: b}})
	return wait(w.t, w.settled).GetResults()
}

func wait[T any](t testing.TB, ch chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(time.Minute):
		t.Fatal("waited a minute in vain")
		panic("unreachable")
	}
}

func (r *rig) add(t testing.TB, keys ...string) {
	t.Helper()
	req := &queuev1.AddRequest{Queue: q}
	for _, k := range keys {
		req.Items = append(req.Items, &queuev1.AddItem{Key: k})
	}
	if _, err := r.Add(context.Background(), req); err != nil {
		t.Fatal(err)
	}
}

func (r *rig) counts(t testing.TB) *queuev1.Counts {
	t.Helper()
	res, err := r.Len(context.Background(), &queuev1.LenRequest{Queue: q})
	if err != nil {
		t.Fatal(err)
	}
	return res.GetCounts()
}

func ref(l *queuev1.Lease) *queuev1.LeaseRef {
	return &queuev1.LeaseRef{Queue: l.GetQueue(), Key: l.GetKey(), Token: l.GetToken()}
}

func keysN(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = "k" + strconv.Itoa(i)
	}
	return out
}

const (
	done   = queuev1.Outcome_OUTCOME_DONE
	forget = queuev1.Outcome_OUTCOME_FORGET
)

func TestKeysAreAssignedAgainstCreditOnly(t *testing.T) {
	t.Parallel()
	partitioned(t, func(t *testing.T, r *rig) {
		r.add(t, keysN(100)...)
		w := r.work(t, &queuev1.Hello{SessionId: "w"})
		w.give(3)
		first := []*queuev1.Lease{wait(t, w.leases), wait(t, w.leases), wait(t, w.leases)}
		if got := r.counts(t).GetProcessing(); got != 3 || len(w.leases) != 0 {
			t.Fatalf("%d leased with a credit of 3", got)
		}
		w.settle(done, first[0]) // gives one back
		wait(t, w.leases)
		w.request++
		w.send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Settle{Settle: &queuev1.SettleBatch{
			RequestId: w.request, HoldCredit: true, Settlements: []*queuev1.Settlement{{Queue: q, Key: first[1].GetKey(), Token: first[1].GetToken(), Outcome: done}},
		}}})
		wait(t, w.settled)
		r.add(t, "more")
		if got := r.counts(t).GetProcessing(); got != 2 {
			t.Errorf("%d leased after credit was held back, want 2", got)
		}
		// A settlement that is lost for a key never assigned gives nothing back.
		w.settle(done, &queuev1.Lease{Queue: q, Key: "k99", Token: 77})
		if got := r.counts(t).GetProcessing(); got != 2 {
			t.Errorf("%d leased after a made-up settlement, want 2", got)
		}
		w.give(50)
		for range 50 {
			wait(t, w.leases)
		}
	})
}

func TestALeaseLostToTheSameWorkerGivesItsCreditBack(t *testing.T) {
	t.Parallel()
	partitioned(t, func(t *testing.T, r *rig) {
		w := r.work(t, &queuev1.Hello{SessionId: "w"})
		w.give(2)
		r.add(t, "a")
		first := wait(t, w.leases)
		r.advance(31 * time.Second) // the worker was stopped for longer than its lease
		if _, err := r.Inspect(t.Context(), &queuev1.InspectRequest{Queue: q, Key: "a"}); err != nil {
			t.Fatal(err)
		}
		second := wait(t, w.leases)
		if second.GetKey() != "a" || second.GetToken() <= first.GetToken() {
			t.Fatalf("second lease %v after %v", second, first)
		}
		if s := w.settle(done, first)[0].GetStatus(); s != queuev1.SettleStatus_SETTLE_STATUS_LOST {
			t.Errorf("settling the lost lease: %v", s)
		}
		r.add(t, "b")
		w.settle(done, second, wait(t, w.leases))
		w.send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Goodbye{Goodbye: &queuev1.Goodbye{}}})
		if err := wait(t, w.end); !errors.Is(err, io.EOF) {
			t.Errorf("the stream ended with %v", err)
		}
	})
}

func TestALostLeaseGivesNothingBackToAWorkerThatHoldsCredit(t *testing.T) {
	t.Parallel()
	r := start(t, "memory", Config{})
	r.configure(t)
	w := r.work(t, &queuev1.Hello{SessionId: "w"})
	w.give(1)
	r.add(t, "a")
	l := wait(t, w.leases)
	w.send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Settle{Settle: &queuev1.SettleBatch{
		RequestId: 1, HoldCredit: true, Settlements: []*queuev1.Settlement{{Queue: q, Key: "a", Token: l.GetToken(), Outcome: done}},
	}}})
	wait(t, w.settled)
	w.give(1)
	r.add(t, "b")
	wait(t, w.leases)
	r.advance(31 * time.Second)
	r.add(t, "c") // the turn in which b's lease ends
	w.send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Extend{Extend: &queuev1.ExtendBatch{}}})
	if lost := wait(t, w.extended).GetLost(); len(lost) != 1 {
		t.Fatalf("lost %v, want b's lease", lost)
	}
	r.add(t, "d")
	if c := r.counts(t); c.GetProcessing() != 0 || c.GetReady() != 3 {
		t.Errorf("counts %v: the worker has given no credit for what it lost", c)
	}
}

func TestAStreamThatBreaksEndsItsLeasesInASecond(t *testing.T) {
	t.Parallel()
	partitioned(t, func(t *testing.T, r *rig) {
		r.add(t, "a")
		w := r.work(t, &queuev1.Hello{SessionId: "w"})
		w.give(1)
		l := wait(t, w.leases)
		began := time.Now()
		w.cancel()
		w2 := r.work(t, &queuev1.Hello{SessionId: "other"})
		w2.give(1)
		again := wait(t, w2.leases)
		if took := time.Since(began); took < 900*time.Millisecond || took > 15*time.Second { // the lease was for 30 s
			t.Errorf("the key came back after %v, want about 1 s", took)
		}
		if again.GetToken() <= l.GetToken() || again.GetAttempt() != 2 {
			t.Errorf("lease %v after %v", again, l)
		}
		if s := w2.settle(done, l)[0].GetStatus(); s != queuev1.SettleStatus_SETTLE_STATUS_LOST {
			t.Errorf("the first holder's settlement: %v, want LOST", s)
		}
	})
}

func TestASessionResumesItsLeases(t *testing.T) {
	t.Parallel()
	partitioned(t, func(t *testing.T, r *rig) {
		var a *queuev1.Lease
		var w2 *worker
		for try := 0; ; try++ {
			r.add(t, "a", "b")
			w := r.work(t, &queuev1.Hello{SessionId: "w"})
			w.give(2)
			var b *queuev1.Lease
			a, b = wait(t, w.leases), wait(t, w.leases)
			w.settle(done, b)
			broke := time.Now()
			w.cancel()
			wait(t, w.end)
			w2 = r.work(t, &queuev1.Hello{SessionId: "w", Resume: []*queuev1.LeaseRef{ref(a), ref(b)}})
			if time.Since(broke) < 800*time.Millisecond || try == 10 {
				break
			}
			w2.give(1) // too busy a machine: the lease may have ended
			if len(w2.welcome.GetKept()) == 0 {
				a = wait(t, w2.leases)
			}
			w2.settle(done, a)
			w2.cancel()
			wait(t, w2.end)
		}
		if len(w2.welcome.GetKept()) != 1 || w2.welcome.GetKept()[0].GetKey() != a.GetKey() || len(w2.welcome.GetLost()) != 1 {
			t.Fatalf("welcome %v", w2.welcome)
		}
		item, err := r.Inspect(t.Context(), &queuev1.InspectRequest{Queue: q, Key: a.GetKey()})
		if err != nil || time.Until(item.GetItem().GetDeadline().AsTime()) < 20*time.Second {
			t.Errorf("after resuming the lease ends at %v, %v", item.GetItem().GetDeadline().AsTime(), err)
		}
		w2.request = 10
		if s := w2.settle(done, a)[0].GetStatus(); s != queuev1.SettleStatus_SETTLE_STATUS_SETTLED {
			t.Errorf("settling the resumed lease: %v", s)
		}
	})
}

func TestASecondStreamOfASessionTakesOver(t *testing.T) {
	t.Parallel()
	r := start(t, "memory", Config{})
	r.configure(t)
	r.add(t, "a")
	w := r.work(t, &queuev1.Hello{SessionId: "w"})
	w.give(1)
	a := wait(t, w.leases)
	w2 := r.work(t, &queuev1.Hello{SessionId: "w", Resume: []*queuev1.LeaseRef{ref(a)}})
	if err := wait(t, w.end); rpc.Reason(err) != "SESSION_MOVED" {
		t.Errorf("the first stream ended with %v", err)
	}
	item, err := r.Inspect(t.Context(), &queuev1.InspectRequest{Queue: q, Key: "a"})
	if err != nil || time.Until(item.GetItem().GetDeadline().AsTime()) < 20*time.Second {
		t.Errorf("the lease ends at %v, %v: it must not be shortened", item.GetItem().GetDeadline().AsTime(), err)
	}
	if s := w2.settle(done, a)[0].GetStatus(); s != queuev1.SettleStatus_SETTLE_STATUS_SETTLED {
		t.Errorf("settle: %v", s)
	}
}

func TestExtendOnAStreamKeepsTheWholeSession(t *testing.T) {
	t.Parallel()
	partitioned(t, func(t *testing.T, r *rig) {
		r.add(t, "a", "b")
		w := r.work(t, &queuev1.Hello{SessionId: "w", LeaseDuration: durationpb.New(2 * time.Second)})
		w.give(2)
		a, b := wait(t, w.leases), wait(t, w.leases)
		w.settle(done, b)
		r.advance(1500 * time.Millisecond)
		w.send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Extend{Extend: &queuev1.ExtendBatch{}}})
		e := wait(t, w.extended)
		if e.GetExtended() != 1 || e.GetRemaining().AsDuration() != 2*time.Second {
			t.Errorf("extended %v, want 1 lease by the 2 s it was asked for", e)
		}
		r.advance(1500 * time.Millisecond)
		w.send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Extend{Extend: &queuev1.ExtendBatch{Leases: []*queuev1.LeaseRef{ref(a), ref(b)}}}})
		if e := wait(t, w.extended); e.GetExtended() != 1 || len(e.GetLost()) != 1 || e.GetLost()[0].GetKey() != b.GetKey() {
			t.Errorf("extended %v, want a kept and b lost", e)
		}
	})
}

func TestQ04AShutSessionGetsWhatIsReadyAndNoMore(t *testing.T) {
	t.Parallel()
	partitioned(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		w := r.work(t, &queuev1.Hello{SessionId: "w"})
		w.give(1)
		r.add(t, "a", "b")
		a := wait(t, w.leases)
		if _, err := r.ShutDown(ctx, &queuev1.ShutDownRequest{SessionId: "w"}); err != nil {
			t.Fatal(err)
		}
		res, err := r.Add(ctx, &queuev1.AddRequest{Queue: q, SessionId: "w", Items: []*queuev1.AddItem{{Key: "c"}}})
		if err != nil || res.GetResults()[0].GetStatus() != queuev1.AddStatus_ADD_STATUS_SHUT_DOWN {
			t.Errorf("Add of a shut session = %v, %v", res, err)
		}
		w.settle(forget, a)
		b := wait(t, w.leases) // ready before: still handed out
		w.settle(forget, b)
		if c := wait(t, w.control); c.GetAction() != queuev1.Action_ACTION_SHUT_DOWN {
			t.Fatalf("control %v", c)
		}
		r.add(t, "later")
		got, err := r.Get(ctx, &queuev1.GetRequest{Queue: q, SessionId: "fresh", Wait: durationpb.New(5 * time.Second)})
		if err != nil || len(got.GetLeases()) != 1 {
			t.Fatalf("another session's Get = %v, %v", got, err)
		}
		got, err = r.Get(ctx, &queuev1.GetRequest{Queue: q, SessionId: "w", Wait: durationpb.New(time.Minute)})
		if err != nil || !got.GetShutDown() || len(got.GetLeases()) != 0 {
			t.Errorf("Get of the shut session = %v, %v, want shut_down at once", got, err)
		}
		is, err := r.ShuttingDown(ctx, &queuev1.ShuttingDownRequest{SessionId: "w"})
		if err != nil || !is.GetShuttingDown() {
			t.Errorf("ShuttingDown = %v, %v", is, err)
		}
	})
}

func TestAWaitingGetEndsWhenItsSessionIsShutDown(t *testing.T) {
	t.Parallel()
	r := start(t, "memory", Config{})
	r.configure(t)
	got := make(chan *queuev1.GetResponse, 1)
	go func() {
		res, err := r.Get(context.Background(), &queuev1.GetRequest{Queue: q, SessionId: "w", Wait: durationpb.New(time.Minute)})
		if err != nil {
			t.Error(err)
		}
		got <- res
	}()
	for waits := false; !waits; {
		if ss := r.svc.sessions.Find("w"); ss != nil {
			waits = ss.Waits()
		}
	}
	r.ShutDown(t.Context(), &queuev1.ShutDownRequest{SessionId: "w"})
	if res := wait(t, got); !res.GetShutDown() {
		t.Errorf("Get = %v, want shut_down", res)
	}
}

func TestShutDownWithDrainWaitsForTheLeases(t *testing.T) {
	t.Parallel()
	on(t, func(t *testing.T, kind string) {
		r := start(t, kind, Config{})
		r.configure(t)
		r.add(t, "a", "b")
		ctx := t.Context()
		res, err := r.Get(ctx, &queuev1.GetRequest{Queue: q, SessionId: "w", MaxItems: 2})
		if err != nil || len(res.GetLeases()) != 2 {
			t.Fatalf("Get = %v, %v", res, err)
		}
		left, err := r.ShutDownWithDrain(ctx, &queuev1.ShutDownWithDrainRequest{SessionId: "w", Timeout: durationpb.New(20 * time.Millisecond)})
		if err != nil || left.GetRemaining() != 2 {
			t.Fatalf("drain = %v, %v, want 2 remaining", left, err)
		}
		drained := make(chan int64, 1)
		go func() {
			left, err := r.ShutDownWithDrain(ctx, &queuev1.ShutDownWithDrainRequest{SessionId: "w"})
			if err != nil {
				t.Error(err)
			}
			drained <- left.GetRemaining()
		}()
		for _, l := range res.GetLeases() {
			if len(drained) != 0 {
				t.Fatal("drained while a lease was held")
			}
			_, err := r.Settle(ctx, &queuev1.SettleRequest{SessionId: "w", Settlements: []*queuev1.Settlement{{Queue: q, Key: l.GetKey(), Token: l.GetToken(), Outcome: done}}})
			if err != nil {
				t.Fatal(err)
			}
		}
		if n := wait(t, drained); n != 0 {
			t.Errorf("remaining %d, want 0", n)
		}
	})
}

func TestAStoppingServerSendsItsWorkersElsewhere(t *testing.T) {
	t.Parallel()
	on(t, func(t *testing.T, kind string) {
		r := start(t, kind, Config{StopGrace: 5 * time.Second})
		r.configure(t)
		r.add(t, "a")
		w := r.work(t, &queuev1.Hello{SessionId: "w"})
		w.give(1)
		a := wait(t, w.leases)
		stopped := make(chan error, 1)
		go func() { stopped <- r.stop() }()
		if c := wait(t, w.control); c.GetAction() != queuev1.Action_ACTION_RECONNECT {
			t.Fatalf("control %v", c)
		}
		if s := w.settle(done, a)[0].GetStatus(); s != queuev1.SettleStatus_SETTLE_STATUS_SETTLED {
			t.Errorf("settle while stopping: %v", s)
		}
		if err := wait(t, w.end); !errors.Is(err, io.EOF) {
			t.Errorf("stream ended with %v, want EOF", err)
		}
		if err := wait(t, stopped); err != nil {
			t.Errorf("Run = %v", err)
		}
	})
}

func TestARepeatedSettlementGetsTheFirstAnswer(t *testing.T) {
	t.Parallel()
	r := start(t, "memory", Config{})
	r.configure(t)
	r.add(t, keysN(40)...)
	ctx := t.Context()
	res, err := r.Get(ctx, &queuev1.GetRequest{Queue: q, SessionId: "w", MaxItems: 40})
	if err != nil {
		t.Fatal(err)
	}
	request := func(id uint64, l *queuev1.Lease) *queuev1.SettleRequest {
		return &queuev1.SettleRequest{SessionId: "w", RequestId: id, Settlements: []*queuev1.Settlement{{Queue: q, Key: l.GetKey(), Token: l.GetToken(), Outcome: done}}}
	}
	for i, l := range res.GetLeases() {
		for range 2 {
			got, err := r.Settle(ctx, request(uint64(i+1), l))
			if err != nil || got.GetResults()[0].GetStatus() != queuev1.SettleStatus_SETTLE_STATUS_SETTLED {
				t.Fatalf("Settle %d = %v, %v", i, got, err)
			}
		}
	}
	_, err = r.Settle(ctx, request(1, res.GetLeases()[0]))
	if rpc.Reason(err) != "REQUEST_ID_TOO_OLD" {
		t.Errorf("a request from long ago: %v", err)
	}
	_, err = r.Settle(ctx, request(40, res.GetLeases()[0]))
	if rpc.Reason(err) != "REQUEST_ID_REUSED" {
		t.Errorf("another request with a number that was used: %v", err)
	}
	got, err := r.Settle(ctx, request(0, res.GetLeases()[0])) // unprotected
	if err != nil || got.GetResults()[0].GetStatus() != queuev1.SettleStatus_SETTLE_STATUS_NOT_LEASED {
		t.Errorf("Settle without a number = %v, %v", got, err)
	}
}

func TestOneStreamWorksOnManyQueues(t *testing.T) {
	t.Parallel()
	on(t, func(t *testing.T, kind string) {
		r := start(t, kind, Config{})
		ctx := t.Context()
		names := []string{"dev/a", "dev/b", "dev/c"}
		for _, n := range names {
			if _, err := r.ConfigureQueue(ctx, &queuev1.ConfigureQueueRequest{Config: &queuev1.QueueConfig{Name: n}}); err != nil {
				t.Fatal(err)
			}
		}
		w := r.work(t, &queuev1.Hello{SessionId: "w", Queues: names})
		w.give(1) // for any of them
		w.send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Credit{Credit: &queuev1.Credit{Queue: "dev/c", Items: 1}}})
		var seen []string
		for _, n := range names {
			if _, err := r.Add(ctx, &queuev1.AddRequest{Queue: n, Items: []*queuev1.AddItem{{Key: "k"}}}); err != nil {
				t.Fatal(err)
			}
		}
		for range names {
			l := wait(t, w.leases)
			seen = append(seen, l.GetQueue())
			w.settle(done, l)
		}
		slices.Sort(seen)
		if !slices.Equal(seen, names) {
			t.Errorf("worked on %v, want %v", seen, names)
		}
	})
}

func TestBadStreams(t *testing.T) {
	t.Parallel()
	r := start(t, "memory", Config{})
	r.configure(t)
	hello := &queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Hello{Hello: &queuev1.Hello{SessionId: "w", Queues: []string{q}}}}
	credit := func(name string, n int32) *queuev1.WorkRequest {
		return &queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Credit{Credit: &queuev1.Credit{Queue: name, Items: n}}}
	}
	for name, tc := range map[string]struct {
		send  []*queuev1.WorkRequest
		code  codes.Code
		field string
	}{
		"no hello":        {[]*queuev1.WorkRequest{credit("", 1)}, codes.InvalidArgument, ""},
		"two hellos":      {[]*queuev1.WorkRequest{hello, hello}, codes.InvalidArgument, ""},
		"empty message":   {[]*queuev1.WorkRequest{hello, {}}, codes.InvalidArgument, ""},
		"no session":      {[]*queuev1.WorkRequest{{Kind: &queuev1.WorkRequest_Hello{Hello: &queuev1.Hello{Queues: []string{q}}}}}, codes.InvalidArgument, "hello.session_id"},
		"no queues":       {[]*queuev1.WorkRequest{{Kind: &queuev1.WorkRequest_Hello{Hello: &queuev1.Hello{SessionId: "w"}}}}, codes.InvalidArgument, "hello.queues"},
		"unknown queue":   {[]*queuev1.WorkRequest{{Kind: &queuev1.WorkRequest_Hello{Hello: &queuev1.Hello{SessionId: "w", Queues: []string{"none"}}}}}, codes.NotFound, ""},
		"zero credit":     {[]*queuev1.WorkRequest{hello, credit("", 0)}, codes.InvalidArgument, "credit.items"},
		"negative credit": {[]*queuev1.WorkRequest{hello, credit("", -1)}, codes.InvalidArgument, "credit.items"},
		"huge credit":     {[]*queuev1.WorkRequest{hello, credit("", 1<<30)}, codes.InvalidArgument, "credit.items"},
		"foreign credit":  {[]*queuev1.WorkRequest{hello, credit("dev/other", 1)}, codes.InvalidArgument, "credit.queue"},
		"empty settle":    {[]*queuev1.WorkRequest{hello, {Kind: &queuev1.WorkRequest_Settle{Settle: &queuev1.SettleBatch{}}}}, codes.InvalidArgument, "settlements"},
		"bad extend": {[]*queuev1.WorkRequest{hello, {Kind: &queuev1.WorkRequest_Extend{Extend: &queuev1.ExtendBatch{
			Leases: []*queuev1.LeaseRef{{Queue: q, Key: "k"}},
		}}}}, codes.InvalidArgument, "extend.leases[0].token"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			s, err := r.Work(ctx)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range tc.send {
				if m.GetHello().GetSessionId() == "w" {
					m = &queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Hello{Hello: &queuev1.Hello{SessionId: "w-" + name, Queues: m.GetHello().GetQueues()}}}
				}
				if err := s.Send(m); err != nil {
					break // the server has answered already
				}
			}
			for err = nil; err == nil; {
				_, err = s.Recv()
			}
			if rpc.Code(err) != tc.code {
				t.Fatalf("ended with %v, want %v", err, tc.code)
			}
			if tc.field != "" && rpc.Violations(err)[tc.field] == "" {
				t.Errorf("violations %v, want of %q", rpc.Violations(err), tc.field)
			}
		})
	}
}

func TestAGetTakesNoMoreThanFitsIntoAMessage(t *testing.T) {
	t.Parallel()
	r := start(t, "memory", Config{})
	r.configure(t)
	ctx := t.Context()
	barrier := make([]*deltav1.CollectionRevision, 16)
	for i := range barrier {
		barrier[i] = &deltav1.CollectionRevision{
			Collection: "dev/" + strings.Repeat("p", 240) + strconv.Itoa(i) + ".v1", Revision: &deltav1.Revision{Epoch: 1, ResourceVersion: "1"},
		}
	}
	const n = 1000
	for i := range n / 100 {
		req := &queuev1.AddRequest{Queue: q}
		for k := range 100 {
			req.Items = append(req.Items, &queuev1.AddItem{Key: strings.Repeat("k", 1000) + strconv.Itoa(100*i+k), Barrier: barrier})
		}
		if _, err := r.Add(ctx, req); err != nil {
			t.Fatal(err)
		}
	}
	got := 0
	for got < n {
		res, err := r.Get(ctx, &queuev1.GetRequest{Queue: q, SessionId: "w", MaxItems: n})
		if err != nil || len(res.GetLeases()) == 0 {
			t.Fatalf("Get after %d leases = %d, %v", got, len(res.GetLeases()), err)
		}
		if size := proto.Size(res); size > 2<<20 {
			t.Fatalf("%d leases in %d bytes: a stock client cannot receive more than 4 MiB", len(res.GetLeases()), size)
		}
		got += len(res.GetLeases())
	}
}
