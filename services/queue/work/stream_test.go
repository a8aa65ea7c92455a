package work_test

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
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
)

func TestKeysAreAssignedAgainstCreditOnly(t *testing.T) {
	t.Parallel()
	queuetest.Partitioned(t, func(t *testing.T, r *queuetest.Rig) {
		r.AddKeys(t, queuetest.KeysN(100)...)
		w := r.OpenWork(t, &queuev1.Hello{SessionId: "w"})
		w.Give(3)
		first := []*queuev1.Lease{queuetest.Wait(t, w.Leases), queuetest.Wait(t, w.Leases), queuetest.Wait(t, w.Leases)}
		if got := r.Counts(t).GetProcessing(); got != 3 || len(w.Leases) != 0 {
			t.Fatalf("%d leased with a credit of 3", got)
		}
		w.Settle(queuetest.Done, first[0]) // gives one back
		queuetest.Wait(t, w.Leases)
		w.Request++
		w.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Settle{Settle: &queuev1.SettleBatch{
			RequestId: w.Request, HoldCredit: true, Settlements: []*queuev1.Settlement{{Queue: queuetest.Q, Key: first[1].GetKey(), Token: first[1].GetToken(), Outcome: queuetest.Done}},
		}}})
		queuetest.Wait(t, w.Settled)
		r.AddKeys(t, "more")
		if got := r.Counts(t).GetProcessing(); got != 2 {
			t.Errorf("%d leased after credit was held back, want 2", got)
		}
		// A settlement that is lost for a key never assigned gives nothing back.
		w.Settle(queuetest.Done, &queuev1.Lease{Queue: queuetest.Q, Key: "k99", Token: 77})
		if got := r.Counts(t).GetProcessing(); got != 2 {
			t.Errorf("%d leased after a made-up settlement, want 2", got)
		}
		w.Give(50)
		for range 50 {
			queuetest.Wait(t, w.Leases)
		}
	})
}

func TestALeaseLostToTheSameWorkerGivesItsCreditBack(t *testing.T) {
	t.Parallel()
	queuetest.Partitioned(t, func(t *testing.T, r *queuetest.Rig) {
		w := r.OpenWork(t, &queuev1.Hello{SessionId: "w"})
		w.Give(2)
		r.AddKeys(t, "a")
		first := queuetest.Wait(t, w.Leases)
		r.Advance(31 * time.Second) // the worker was stopped for longer than its lease
		if _, err := r.Inspect(t.Context(), &queuev1.InspectRequest{Queue: queuetest.Q, Key: "a"}); err != nil {
			t.Fatal(err)
		}
		second := queuetest.Wait(t, w.Leases)
		if second.GetKey() != "a" || second.GetToken() <= first.GetToken() {
			t.Fatalf("second lease %v after %v", second, first)
		}
		if s := w.Settle(queuetest.Done, first)[0].GetStatus(); s != queuev1.SettleStatus_SETTLE_STATUS_LOST {
			t.Errorf("settling the lost lease: %v", s)
		}
		r.AddKeys(t, "b")
		w.Settle(queuetest.Done, second, queuetest.Wait(t, w.Leases))
		w.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Goodbye{Goodbye: &queuev1.Goodbye{}}})
		if err := queuetest.Wait(t, w.End); !errors.Is(err, io.EOF) {
			t.Errorf("the stream ended with %v", err)
		}
	})
}

func TestALostLeaseGivesNothingBackToAWorkerThatHoldsCredit(t *testing.T) {
	t.Parallel()
	r := queuetest.Start(t, "memory", queue.Config{})
	r.Configure(t)
	w := r.OpenWork(t, &queuev1.Hello{SessionId: "w"})
	w.Give(1)
	r.AddKeys(t, "a")
	l := queuetest.Wait(t, w.Leases)
	w.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Settle{Settle: &queuev1.SettleBatch{
		RequestId: 1, HoldCredit: true, Settlements: []*queuev1.Settlement{{Queue: queuetest.Q, Key: "a", Token: l.GetToken(), Outcome: queuetest.Done}},
	}}})
	queuetest.Wait(t, w.Settled)
	w.Give(1)
	r.AddKeys(t, "b")
	queuetest.Wait(t, w.Leases)
	r.Advance(31 * time.Second)
	r.AddKeys(t, "c") // the transaction in which b's lease ends
	w.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Extend{Extend: &queuev1.ExtendBatch{}}})
	if lost := queuetest.Wait(t, w.Extended).GetLost(); len(lost) != 1 {
		t.Fatalf("lost %v, want b's lease", lost)
	}
	r.AddKeys(t, "d")
	if c := r.Counts(t); c.GetProcessing() != 0 || c.GetReady() != 3 {
		t.Errorf("counts %v: the worker has given no credit for what it lost", c)
	}
}

func TestAStreamThatBreaksEndsItsLeasesInASecond(t *testing.T) {
	t.Parallel()
	queuetest.Partitioned(t, func(t *testing.T, r *queuetest.Rig) {
		r.AddKeys(t, "a")
		w := r.OpenWork(t, &queuev1.Hello{SessionId: "w"})
		w.Give(1)
		l := queuetest.Wait(t, w.Leases)
		began := time.Now()
		w.Cancel()
		w2 := r.OpenWork(t, &queuev1.Hello{SessionId: "other"})
		w2.Give(1)
		again := queuetest.Wait(t, w2.Leases)
		if took := time.Since(began); took < 900*time.Millisecond || took > 15*time.Second { // the lease was for 30 s
			t.Errorf("the key came back after %v, want about 1 s", took)
		}
		if again.GetToken() <= l.GetToken() || again.GetAttempt() != 2 {
			t.Errorf("lease %v after %v", again, l)
		}
		if s := w2.Settle(queuetest.Done, l)[0].GetStatus(); s != queuev1.SettleStatus_SETTLE_STATUS_LOST {
			t.Errorf("the first holder's settlement: %v, want LOST", s)
		}
	})
}

func TestASessionResumesItsLeases(t *testing.T) {
	t.Parallel()
	queuetest.Partitioned(t, func(t *testing.T, r *queuetest.Rig) {
		var a *queuev1.Lease
		var w2 *queuetest.Worker
		for try := 0; ; try++ {
			r.AddKeys(t, "a", "b")
			w := r.OpenWork(t, &queuev1.Hello{SessionId: "w"})
			w.Give(2)
			var b *queuev1.Lease
			a, b = queuetest.Wait(t, w.Leases), queuetest.Wait(t, w.Leases)
			w.Settle(queuetest.Done, b)
			broke := time.Now()
			w.Cancel()
			queuetest.Wait(t, w.End)
			w2 = r.OpenWork(t, &queuev1.Hello{SessionId: "w", Resume: []*queuev1.LeaseRef{queuetest.Ref(a), queuetest.Ref(b)}})
			if time.Since(broke) < 800*time.Millisecond || try == 10 {
				break
			}
			w2.Give(1) // too busy a machine: the lease may have ended
			if len(w2.Welcome.GetKept()) == 0 {
				a = queuetest.Wait(t, w2.Leases)
			}
			w2.Settle(queuetest.Done, a)
			w2.Cancel()
			queuetest.Wait(t, w2.End)
		}
		if len(w2.Welcome.GetKept()) != 1 || w2.Welcome.GetKept()[0].GetKey() != a.GetKey() || len(w2.Welcome.GetLost()) != 1 {
			t.Fatalf("welcome %v", w2.Welcome)
		}
		item, err := r.Inspect(t.Context(), &queuev1.InspectRequest{Queue: queuetest.Q, Key: a.GetKey()})
		if err != nil || time.Until(item.GetItem().GetDeadline().AsTime()) < 20*time.Second {
			t.Errorf("after resuming the lease ends at %v, %v", item.GetItem().GetDeadline().AsTime(), err)
		}
		w2.Request = 10
		if s := w2.Settle(queuetest.Done, a)[0].GetStatus(); s != queuev1.SettleStatus_SETTLE_STATUS_SETTLED {
			t.Errorf("settling the resumed lease: %v", s)
		}
	})
}

// The assignment of a key may be lost with its connection. A worker that goes on extending
// everything it has must not keep that key for ever.
func TestALeaseThatAWorkerNeverGotIsNotExtendedWithTheOthers(t *testing.T) {
	t.Parallel()
	queuetest.Partitioned(t, func(t *testing.T, r *queuetest.Rig) {
		r.AddKeys(t, "a", "b")
		w := r.OpenWork(t, &queuev1.Hello{SessionId: "w"})
		w.Give(2)
		known, never := queuetest.Wait(t, w.Leases), queuetest.Wait(t, w.Leases)
		w2 := r.OpenWork(t, &queuev1.Hello{SessionId: "w", Resume: []*queuev1.LeaseRef{queuetest.Ref(known)}})
		w2.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Extend{Extend: &queuev1.ExtendBatch{}}})
		if n := queuetest.Wait(t, w2.Extended).GetExtended(); n != 1 {
			t.Errorf("%d leases were extended, the worker has one", n)
		}
		item, err := r.Inspect(t.Context(), &queuev1.InspectRequest{Queue: queuetest.Q, Key: never.GetKey()})
		if err != nil || time.Until(item.GetItem().GetDeadline().AsTime()) > 5*time.Second { // the lease was for 30 s
			t.Errorf("the lease that the worker never got ends at %v, %v", item.GetItem().GetDeadline().AsTime(), err)
		}
		w2.Give(1)
		if again := queuetest.Wait(t, w2.Leases); again.GetKey() != never.GetKey() {
			t.Errorf("leased %v, want %s once its first lease has ended", again, never.GetKey())
		}
	})
}

func TestASecondStreamOfASessionTakesOver(t *testing.T) {
	t.Parallel()
	r := queuetest.Start(t, "memory", queue.Config{})
	r.Configure(t)
	r.AddKeys(t, "a")
	w := r.OpenWork(t, &queuev1.Hello{SessionId: "w"})
	w.Give(1)
	a := queuetest.Wait(t, w.Leases)
	w2 := r.OpenWork(t, &queuev1.Hello{SessionId: "w", Resume: []*queuev1.LeaseRef{queuetest.Ref(a)}})
	if err := queuetest.Wait(t, w.End); rpc.Reason(err) != "SESSION_MOVED" {
		t.Errorf("the first stream ended with %v", err)
	}
	item, err := r.Inspect(t.Context(), &queuev1.InspectRequest{Queue: queuetest.Q, Key: "a"})
	if err != nil || time.Until(item.GetItem().GetDeadline().AsTime()) < 20*time.Second {
		t.Errorf("the lease ends at %v, %v: it must not be shortened", item.GetItem().GetDeadline().AsTime(), err)
	}
	if s := w2.Settle(queuetest.Done, a)[0].GetStatus(); s != queuev1.SettleStatus_SETTLE_STATUS_SETTLED {
		t.Errorf("settle: %v", s)
	}
}

func TestExtendOnAStreamKeepsTheWholeSession(t *testing.T) {
	t.Parallel()
	queuetest.Partitioned(t, func(t *testing.T, r *queuetest.Rig) {
		r.AddKeys(t, "a", "b")
		w := r.OpenWork(t, &queuev1.Hello{SessionId: "w", LeaseDuration: durationpb.New(2 * time.Second)})
		w.Give(2)
		a, b := queuetest.Wait(t, w.Leases), queuetest.Wait(t, w.Leases)
		w.Settle(queuetest.Done, b)
		r.Advance(1500 * time.Millisecond)
		w.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Extend{Extend: &queuev1.ExtendBatch{}}})
		e := queuetest.Wait(t, w.Extended)
		if e.GetExtended() != 1 || e.GetRemaining().AsDuration() != 2*time.Second {
			t.Errorf("extended %v, want 1 lease by the 2 s it was asked for", e)
		}
		r.Advance(1500 * time.Millisecond)
		w.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Extend{Extend: &queuev1.ExtendBatch{Leases: []*queuev1.LeaseRef{queuetest.Ref(a), queuetest.Ref(b)}}}})
		if e := queuetest.Wait(t, w.Extended); e.GetExtended() != 1 || len(e.GetLost()) != 1 || e.GetLost()[0].GetKey() != b.GetKey() {
			t.Errorf("extended %v, want a kept and b lost", e)
		}
	})
}

func TestASessionThatIsShutDownGetsWhatIsReadyAndNoMore(t *testing.T) {
	t.Parallel()
	queuetest.Partitioned(t, func(t *testing.T, r *queuetest.Rig) {
		ctx := t.Context()
		w := r.OpenWork(t, &queuev1.Hello{SessionId: "w"})
		w.Give(1)
		r.AddKeys(t, "a", "b")
		a := queuetest.Wait(t, w.Leases)
		if _, err := r.ShutDown(ctx, &queuev1.ShutDownRequest{SessionId: "w"}); err != nil {
			t.Fatal(err)
		}
		res, err := r.Add(ctx, &queuev1.AddRequest{Queue: queuetest.Q, SessionId: "w", Items: []*queuev1.AddItem{{Key: "c"}}})
		if err != nil || res.GetResults()[0].GetStatus() != queuev1.AddStatus_ADD_STATUS_SHUT_DOWN {
			t.Errorf("Add of a shut session = %v, %v", res, err)
		}
		w.Settle(queuetest.Forget, a)
		b := queuetest.Wait(t, w.Leases) // ready before: still handed out
		w.Settle(queuetest.Forget, b)
		if c := queuetest.Wait(t, w.Control); c.GetAction() != queuev1.Action_ACTION_SHUT_DOWN {
			t.Fatalf("control %v", c)
		}
		r.AddKeys(t, "later")
		got, err := r.Get(ctx, &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "fresh", Wait: durationpb.New(5 * time.Second)})
		if err != nil || len(got.GetLeases()) != 1 {
			t.Fatalf("another session's Get = %v, %v", got, err)
		}
		got, err = r.Get(ctx, &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "w", Wait: durationpb.New(time.Minute)})
		if err != nil || !got.GetShutDown() || len(got.GetLeases()) != 0 {
			t.Errorf("Get of the shut session = %v, %v, want shut_down at once", got, err)
		}
	})
}

func TestShutDownWithDrainWaitsForTheLeases(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		r := queuetest.Start(t, kind, queue.Config{})
		r.Configure(t)
		r.AddKeys(t, "a", "b")
		ctx := t.Context()
		res, err := r.Get(ctx, &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "w", MaxItems: 2})
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
			_, err := r.Settle(ctx, &queuev1.SettleRequest{SessionId: "w", Settlements: []*queuev1.Settlement{{Queue: queuetest.Q, Key: l.GetKey(), Token: l.GetToken(), Outcome: queuetest.Done}}})
			if err != nil {
				t.Fatal(err)
			}
		}
		if n := queuetest.Wait(t, drained); n != 0 {
			t.Errorf("remaining %d, want 0", n)
		}
	})
}

func TestAStoppingServerSendsItsWorkersElsewhere(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		r := queuetest.Start(t, kind, queue.Config{StopGrace: 5 * time.Second})
		r.Configure(t)
		r.AddKeys(t, "a")
		w := r.OpenWork(t, &queuev1.Hello{SessionId: "w"})
		w.Give(1)
		a := queuetest.Wait(t, w.Leases)
		stopped := make(chan error, 1)
		go func() { stopped <- r.Stop() }()
		if c := queuetest.Wait(t, w.Control); c.GetAction() != queuev1.Action_ACTION_RECONNECT {
			t.Fatalf("control %v", c)
		}
		if s := w.Settle(queuetest.Done, a)[0].GetStatus(); s != queuev1.SettleStatus_SETTLE_STATUS_SETTLED {
			t.Errorf("settle while stopping: %v", s)
		}
		if err := queuetest.Wait(t, w.End); !errors.Is(err, io.EOF) {
			t.Errorf("stream ended with %v, want EOF", err)
		}
		if err := queuetest.Wait(t, stopped); err != nil {
			t.Errorf("Run = %v", err)
		}
	})
}

func TestARepeatedSettlementGetsTheFirstAnswer(t *testing.T) {
	t.Parallel()
	r := queuetest.Start(t, "memory", queue.Config{})
	r.Configure(t)
	r.AddKeys(t, queuetest.KeysN(40)...)
	ctx := t.Context()
	res, err := r.Get(ctx, &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "w", MaxItems: 40})
	if err != nil {
		t.Fatal(err)
	}
	request := func(id uint64, l *queuev1.Lease) *queuev1.SettleRequest {
		return &queuev1.SettleRequest{SessionId: "w", RequestId: id, Settlements: []*queuev1.Settlement{{Queue: queuetest.Q, Key: l.GetKey(), Token: l.GetToken(), Outcome: queuetest.Done}}}
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
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		r := queuetest.Start(t, kind, queue.Config{})
		ctx := t.Context()
		names := []string{"dev/a", "dev/b", "dev/c"}
		for _, n := range names {
			if _, err := r.ConfigureQueue(ctx, &queuev1.ConfigureQueueRequest{Config: &queuev1.QueueConfig{Name: n}}); err != nil {
				t.Fatal(err)
			}
		}
		w := r.OpenWork(t, &queuev1.Hello{SessionId: "w", Queues: names})
		w.Give(1) // for any of them
		w.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Credit{Credit: &queuev1.Credit{Queue: "dev/c", Items: 1}}})
		var seen []string
		for _, n := range names {
			if _, err := r.Add(ctx, &queuev1.AddRequest{Queue: n, Items: []*queuev1.AddItem{{Key: "k"}}}); err != nil {
				t.Fatal(err)
			}
		}
		for range names {
			l := queuetest.Wait(t, w.Leases)
			seen = append(seen, l.GetQueue())
			w.Settle(queuetest.Done, l)
		}
		slices.Sort(seen)
		if !slices.Equal(seen, names) {
			t.Errorf("worked on %v, want %v", seen, names)
		}
	})
}

func TestBadStreams(t *testing.T) {
	t.Parallel()
	r := queuetest.Start(t, "memory", queue.Config{})
	r.Configure(t)
	hello := &queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Hello{Hello: &queuev1.Hello{SessionId: "w", Queues: []string{queuetest.Q}}}}
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
		"no session":      {[]*queuev1.WorkRequest{{Kind: &queuev1.WorkRequest_Hello{Hello: &queuev1.Hello{Queues: []string{queuetest.Q}}}}}, codes.InvalidArgument, "hello.session_id"},
		"no queues":       {[]*queuev1.WorkRequest{{Kind: &queuev1.WorkRequest_Hello{Hello: &queuev1.Hello{SessionId: "w"}}}}, codes.InvalidArgument, "hello.queues"},
		"unknown queue":   {[]*queuev1.WorkRequest{{Kind: &queuev1.WorkRequest_Hello{Hello: &queuev1.Hello{SessionId: "w", Queues: []string{"none"}}}}}, codes.NotFound, ""},
		"zero credit":     {[]*queuev1.WorkRequest{hello, credit("", 0)}, codes.InvalidArgument, "credit.items"},
		"negative credit": {[]*queuev1.WorkRequest{hello, credit("", -1)}, codes.InvalidArgument, "credit.items"},
		"huge credit":     {[]*queuev1.WorkRequest{hello, credit("", 1<<30)}, codes.InvalidArgument, "credit.items"},
		"foreign credit":  {[]*queuev1.WorkRequest{hello, credit("dev/other", 1)}, codes.InvalidArgument, "credit.queue"},
		"empty settle":    {[]*queuev1.WorkRequest{hello, {Kind: &queuev1.WorkRequest_Settle{Settle: &queuev1.SettleBatch{}}}}, codes.InvalidArgument, "settlements"},
		"bad extend": {[]*queuev1.WorkRequest{hello, {Kind: &queuev1.WorkRequest_Extend{Extend: &queuev1.ExtendBatch{
			Leases: []*queuev1.LeaseRef{{Queue: queuetest.Q, Key: "k"}},
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
	r := queuetest.Start(t, "memory", queue.Config{})
	r.Configure(t)
	ctx := t.Context()
	barrier := make([]*deltav1.CollectionRevision, 16)
	for i := range barrier {
		barrier[i] = &deltav1.CollectionRevision{
			Collection: "dev/" + strings.Repeat("p", 240) + strconv.Itoa(i) + ".v1", Revision: &deltav1.Revision{Epoch: 1, ResourceVersion: "1"},
		}
	}
	const n = 1000
	for i := range n / 100 {
		req := &queuev1.AddRequest{Queue: queuetest.Q}
		for k := range 100 {
			req.Items = append(req.Items, &queuev1.AddItem{Key: strings.Repeat("k", 1000) + strconv.Itoa(100*i+k), Barrier: barrier})
		}
		if _, err := r.Add(ctx, req); err != nil {
			t.Fatal(err)
		}
	}
	got := 0
	for got < n {
		res, err := r.Get(ctx, &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "w", MaxItems: n})
		if err != nil || len(res.GetLeases()) == 0 {
			t.Fatalf("Get after %d leases = %d, %v", got, len(res.GetLeases()), err)
		}
		if size := proto.Size(res); size > 2<<20 {
			t.Fatalf("%d leases in %d bytes: a stock client cannot receive more than 4 MiB", len(res.GetLeases()), size)
		}
		got += len(res.GetLeases())
	}
}
