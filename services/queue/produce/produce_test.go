package produce_test

import (
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
)

func wantStates(t testing.TB, p *queuev1.Produced, want ...queuev1.AddStatus) {
	t.Helper()
	if p.GetError() != nil || len(p.GetStatuses()) != len(want) {
		t.Fatalf("produced %v, want %v", p, want)
	}
	for i, s := range p.GetStatuses() {
		if s != want[i] {
			t.Errorf("operation %d: %v, want %v", i, s, want[i])
		}
	}
}

func TestAProduceStreamDoesWhatTheCallsDo(t *testing.T) {
	t.Parallel()
	queuetest.Partitioned(t, func(t *testing.T, r *queuetest.Rig) {
		p := r.OpenProduce(t, "p")
		if p.Welcome.GetWindow() < 1 || p.Welcome.GetGeneration() == "" {
			t.Errorf("welcome %v", p.Welcome)
		}
		wantStates(t, p.Do(queuetest.PlainAdds("a", "b", "a", "c")...), queuetest.Queued, queuetest.Queued, queuetest.Already, queuetest.Queued)

		w := r.OpenWork(t, &queuev1.Hello{SessionId: "w"})
		w.Give(1)
		held := queuetest.Wait(t, w.Leases)
		wantStates(t, p.Do(queuetest.PlainAdds(held.GetKey(), held.GetKey())...), queuetest.Dirty, queuetest.Dirty)

		limited := queuev1.ProduceKind_PRODUCE_KIND_ADD_RATE_LIMITED
		got := p.Do(
			&queuev1.ProduceOp{Key: "late", Kind: queuev1.ProduceKind_PRODUCE_KIND_ADD_AFTER, Delay: durationpb.New(time.Hour)},
			&queuev1.ProduceOp{Key: "limited", Kind: limited},
			&queuev1.ProduceOp{Key: "limited", Kind: limited},
			&queuev1.ProduceOp{Key: "limited", Kind: queuev1.ProduceKind_PRODUCE_KIND_NUM_REQUEUES},
			&queuev1.ProduceOp{Key: "limited", Kind: queuev1.ProduceKind_PRODUCE_KIND_FORGET},
			&queuev1.ProduceOp{Key: "limited", Kind: queuev1.ProduceKind_PRODUCE_KIND_NUM_REQUEUES},
		)
		wantStates(t, got, queuetest.Delayed, queuetest.Delayed, queuetest.Delayed, queuetest.Nothing, queuetest.Nothing, queuetest.Nothing)
		requeues, ready := map[int32]int64{}, map[int32]bool{}
		for _, d := range got.GetDetails() {
			requeues[d.GetIndex()], ready[d.GetIndex()] = d.GetNumRequeues(), d.GetReadyAt() != nil
		}
		if !ready[0] || !ready[1] || requeues[2] != 2 || requeues[3] != 2 || requeues[5] != 0 {
			t.Errorf("details %v", got.GetDetails())
		}
	})
}

func TestBatchesAreAnsweredInOrder(t *testing.T) {
	t.Parallel()
	queuetest.Partitioned(t, func(t *testing.T, r *queuetest.Rig) {
		r.Make(t, &queuev1.QueueConfig{Name: "dev/other"})
		p := r.OpenProduce(t, "p")
		const n = 500
		for id := uint64(1); id <= n; id++ { // many more than the window
			switch id % 5 {
			case 0:
				p.Send(id, "nowhere", queuetest.PlainAdds("a")...)
			case 1:
				p.Send(id, "dev/other", queuetest.PlainAdds("a")...)
			case 2:
				p.Send(id, queuetest.Q, &queuev1.ProduceOp{})
			default:
				p.Send(id, queuetest.Q, queuetest.PlainAdds("a", "b", "c", "d", "e")...)
			}
		}
		for id := uint64(1); id <= n; id++ {
			got := queuetest.Wait(t, p.Produced)
			if got.GetRequestId() != id {
				t.Fatalf("answer to %d, want to %d", got.GetRequestId(), id)
			}
			if refused := id%5 == 0; refused != (got.GetError() != nil) {
				t.Fatalf("answer to %d: %v", id, got)
			}
		}
		if err := p.S.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if err := queuetest.Wait(t, p.End); !errors.Is(err, io.EOF) {
			t.Errorf("the stream ended with %v, want EOF", err)
		}
	})
}

func TestWhatIsWrongWithABatchIsNamedAndTheStreamGoesOn(t *testing.T) {
	t.Parallel()
	queuetest.Partitioned(t, func(t *testing.T, r *queuetest.Rig) {
		p := r.OpenProduce(t, "p")
		refused := func(name string, code codes.Code, reason, text string, b *queuev1.ProduceBatch) {
			t.Helper()
			if err := p.S.Send(&queuev1.ProduceRequest{Kind: &queuev1.ProduceRequest_Batch{Batch: b}}); err != nil {
				t.Fatal(err)
			}
			got := queuetest.Wait(t, p.Produced)
			e := got.GetError()
			if codes.Code(e.GetCode()) != code || e.GetReason() != reason || !strings.Contains(e.GetMessage(), text) || len(got.GetStatuses()) != 0 || got.GetRequestId() != b.GetRequestId() {
				t.Errorf("%s: %v", name, got)
			}
		}
		refused("no number", codes.InvalidArgument, "INVALID_ARGUMENT", "batch.request_id", &queuev1.ProduceBatch{Queue: queuetest.Q, Ops: queuetest.PlainAdds("a")})
		refused("no queue", codes.InvalidArgument, "INVALID_ARGUMENT", "batch.queue", &queuev1.ProduceBatch{RequestId: 1, Ops: queuetest.PlainAdds("a")})
		refused("nothing", codes.InvalidArgument, "INVALID_ARGUMENT", "batch.ops", &queuev1.ProduceBatch{RequestId: 1, Queue: queuetest.Q})
		refused("too much", codes.InvalidArgument, "INVALID_ARGUMENT", "batch.ops", &queuev1.ProduceBatch{RequestId: 1, Queue: queuetest.Q, Ops: queuetest.PlainAdds(make([]string, 1001)...)})
		refused("unknown queue", codes.NotFound, "QUEUE_NOT_FOUND", "nowhere", &queuev1.ProduceBatch{RequestId: 1, Queue: "nowhere", Ops: queuetest.PlainAdds("a")})

		p.Request = 10
		got := p.Do(
			&queuev1.ProduceOp{Key: "a"},
			&queuev1.ProduceOp{},
			&queuev1.ProduceOp{Key: strings.Repeat("k", 64<<10)},
			&queuev1.ProduceOp{Key: "b", Kind: 99},
			&queuev1.ProduceOp{Key: "b", Priority: 4},
			&queuev1.ProduceOp{Key: "b", Delay: durationpb.New(time.Second)},
			&queuev1.ProduceOp{Key: "b", Kind: queuev1.ProduceKind_PRODUCE_KIND_ADD_AFTER, Delay: durationpb.New(-time.Second)},
			&queuev1.ProduceOp{Key: "b", Traceparent: "no spaces"},
			&queuev1.ProduceOp{Key: "b", Barrier: []*deltav1.CollectionRevision{{Collection: "x"}}},
			&queuev1.ProduceOp{Key: "c"},
		)
		wantStates(t, got, queuetest.Queued, queuetest.Nothing, queuetest.Nothing, queuetest.Nothing, queuetest.Nothing, queuetest.Nothing, queuetest.Nothing, queuetest.Nothing, queuetest.Nothing, queuetest.Queued)
		want := map[int32]string{1: ".key", 2: ".key", 3: ".kind", 4: ".priority", 5: ".delay", 6: ".delay", 7: ".traceparent", 8: ".barrier"}
		for _, d := range got.GetDetails() {
			e := d.GetError()
			field := "batch.ops[" + strconv.Itoa(int(d.GetIndex())) + "]" + want[d.GetIndex()]
			if codes.Code(e.GetCode()) != codes.InvalidArgument || e.GetReason() != "INVALID_ARGUMENT" || !strings.Contains(e.GetMessage(), field) {
				t.Errorf("operation %d: %v, want %s named", d.GetIndex(), e, field)
			}
			delete(want, d.GetIndex())
		}
		if len(want) > 0 {
			t.Errorf("not refused: %v", want)
		}

		if _, err := r.CloseQueue(t.Context(), &queuev1.CloseQueueRequest{Queue: queuetest.Q}); err != nil {
			t.Fatal(err)
		}
		p.Request++
		refused("a closed queue", codes.FailedPrecondition, "QUEUE_CLOSED", "", &queuev1.ProduceBatch{RequestId: p.Request, Queue: queuetest.Q, Ops: queuetest.PlainAdds("a", "b", "c")})
		got = p.Do(&queuev1.ProduceOp{Key: "a"}, &queuev1.ProduceOp{Key: "a", Kind: queuev1.ProduceKind_PRODUCE_KIND_NUM_REQUEUES})
		wantStates(t, got, queuetest.Nothing, queuetest.Nothing)
		if len(got.GetDetails()) != 1 || got.GetDetails()[0].GetError().GetReason() != "QUEUE_CLOSED" {
			t.Errorf("an add beside a question, to a closed queue: %v", got)
		}
		if _, err := r.OpenQueue(t.Context(), &queuev1.OpenQueueRequest{Queue: queuetest.Q}); err != nil {
			t.Fatal(err)
		}
		wantStates(t, p.Do(queuetest.PlainAdds("a")...), queuetest.Already)
	})
}

func TestABarrierThatIsFullRefusesItsAddAlone(t *testing.T) {
	t.Parallel()
	queuetest.Partitioned(t, func(t *testing.T, r *queuetest.Rig) {
		p := r.OpenProduce(t, "p")
		full := 0
		for i := range 6 {
			var marks []*deltav1.CollectionRevision
			for k := range 16 {
				marks = append(marks, &deltav1.CollectionRevision{Collection: "dev/kind" + strconv.Itoa(16*i+k) + ".v1", Revision: &deltav1.Revision{Epoch: 1, ResourceVersion: "1"}})
			}
			got := p.Do(&queuev1.ProduceOp{Key: "a", Barrier: marks}, &queuev1.ProduceOp{Key: "b"})
			for _, d := range got.GetDetails() {
				if d.GetIndex() == 0 && d.GetError().GetReason() == "BARRIER_FULL" {
					full++
				}
			}
		}
		if full != 2 {
			t.Errorf("%d of six adds of 16 collections were refused, want the two beyond 64", full)
		}
	})
}

func TestAddsOfASessionThatIsShutDownAreDroppedWithAStatus(t *testing.T) {
	t.Parallel()
	queuetest.Partitioned(t, func(t *testing.T, r *queuetest.Rig) {
		p := r.OpenProduce(t, "p")
		wantStates(t, p.Do(queuetest.PlainAdds("a")...), queuetest.Queued)
		if _, err := r.ShutDown(t.Context(), &queuev1.ShutDownRequest{SessionId: "p"}); err != nil {
			t.Fatal(err)
		}
		if c := queuetest.Wait(t, p.Control); c.GetAction() != queuev1.Action_ACTION_SHUT_DOWN {
			t.Errorf("control %v", c)
		}
		got := p.Do(&queuev1.ProduceOp{Key: "b"}, &queuev1.ProduceOp{Key: "a", Kind: queuev1.ProduceKind_PRODUCE_KIND_NUM_REQUEUES}, &queuev1.ProduceOp{Key: "c"})
		wantStates(t, got, queuetest.ShutOut, queuetest.Nothing, queuetest.ShutOut)
		wantStates(t, p.Do(queuetest.PlainAdds("d")...), queuetest.ShutOut)
		if c := r.Counts(t); c.GetReady() != 1 {
			t.Errorf("%v, want what was added before", c)
		}
		again := r.OpenProduce(t, "p")
		if c := queuetest.Wait(t, again.Control); c.GetAction() != queuev1.Action_ACTION_SHUT_DOWN {
			t.Errorf("control on a new stream %v", c)
		}
	})
}

func TestABatchSentAgainDoesNotChargeTheLimiterAgain(t *testing.T) {
	t.Parallel()
	queuetest.Partitioned(t, func(t *testing.T, r *queuetest.Rig) {
		limited := []*queuev1.ProduceOp{
			{Key: "a", Kind: queuev1.ProduceKind_PRODUCE_KIND_ADD_RATE_LIMITED}, {Key: "b", Kind: queuev1.ProduceKind_PRODUCE_KIND_ADD_RATE_LIMITED},
		}
		r.Make(t, r.Changed(t, func(c *queuev1.QueueConfig) {
			c.RateLimiter = &queuev1.RateLimiter{Kind: &queuev1.RateLimiter_Exponential{Exponential: &queuev1.ExponentialLimiter{
				Base: durationpb.New(time.Hour), Max: durationpb.New(100 * time.Hour),
			}}}
		}))
		p := r.OpenProduce(t, "p")
		first := p.Do(limited...)
		p.Request-- // as after a lost answer, on a second stream
		p.Cancel()
		p2 := r.OpenProduce(t, "p")
		again := p2.Do(limited...)
		wantStates(t, again, queuetest.Delayed, queuetest.Delayed)
		for i, d := range again.GetDetails() {
			if d.GetNumRequeues() != 1 || !d.GetReadyAt().AsTime().Equal(first.GetDetails()[i].GetReadyAt().AsTime()) {
				t.Errorf("sent again: %v, want as at first %v", d, first.GetDetails()[i])
			}
		}
		if d := p2.Do(limited...).GetDetails()[0]; d.GetNumRequeues() != 2 {
			t.Errorf("another batch: %v, want one more requeue", d)
		}
	})
}

func TestAProducerIsSentElsewhere(t *testing.T) {
	t.Parallel()
	r := queuetest.Start(t, "memory", queue.Config{StopGrace: 50 * time.Millisecond, RPC: rpc.ServerConfig{MaxConnectionAge: 400 * time.Millisecond, MaxConnectionGrace: 4 * time.Second}})
	r.Configure(t)
	p := r.OpenProduce(t, "p")
	if c := queuetest.Wait(t, p.Control); c.GetAction() != queuev1.Action_ACTION_RECONNECT {
		t.Errorf("before the connection's end: %v", c)
	}
	p2 := r.OpenProduce(t, "p")
	wantStates(t, p2.Do(queuetest.PlainAdds("a")...), queuetest.Queued)
	_ = p.S.CloseSend()
	if err := queuetest.Wait(t, p.End); !errors.Is(err, io.EOF) {
		t.Errorf("the old stream ended with %v, want EOF", err)
	}
	go r.Stop()
	for {
		c := queuetest.Wait(t, p2.Control)
		if c.GetAction() != queuev1.Action_ACTION_RECONNECT {
			t.Errorf("at the stop: %v", c)
		}
		if strings.Contains(c.GetReason(), "stopping") {
			break
		}
	}
	if err := queuetest.Wait(t, p2.End); !errors.Is(err, io.EOF) {
		t.Errorf("the stream of a stopped server ended with %v, want EOF", err)
	}
}

func TestBadProduceStreams(t *testing.T) {
	t.Parallel()
	r := queuetest.Start(t, "memory", queue.Config{})
	r.Configure(t)
	hello := &queuev1.ProduceRequest{Kind: &queuev1.ProduceRequest_Hello{Hello: &queuev1.ProduceHello{SessionId: "p"}}}
	for name, tc := range map[string]struct {
		send   []*queuev1.ProduceRequest
		reason string
	}{
		"no hello":    {[]*queuev1.ProduceRequest{{Kind: &queuev1.ProduceRequest_Batch{Batch: &queuev1.ProduceBatch{RequestId: 1, Queue: queuetest.Q, Ops: queuetest.PlainAdds("a")}}}}, "HELLO_EXPECTED"},
		"two hellos":  {[]*queuev1.ProduceRequest{hello, hello}, "HELLO_EXPECTED"},
		"nothing":     {[]*queuev1.ProduceRequest{hello, {}}, "HELLO_EXPECTED"},
		"no session":  {[]*queuev1.ProduceRequest{{Kind: &queuev1.ProduceRequest_Hello{Hello: &queuev1.ProduceHello{}}}}, "INVALID_ARGUMENT"},
		"long client": {[]*queuev1.ProduceRequest{{Kind: &queuev1.ProduceRequest_Hello{Hello: &queuev1.ProduceHello{SessionId: "p", Client: strings.Repeat("c", 300)}}}}, "INVALID_ARGUMENT"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		s, err := r.Produce(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range tc.send {
			_ = s.Send(m)
		}
		for err == nil {
			_, err = s.Recv()
		}
		if got := rpc.Reason(err); got != tc.reason {
			t.Errorf("%s: %v, want %s", name, err, tc.reason)
		}
		cancel()
	}
}

func TestAProducerThatDoesNotReadHoldsUpNobody(t *testing.T) {
	t.Parallel()
	r := queuetest.Start(t, "memory", queue.Config{StopGrace: 50 * time.Millisecond, RPC: rpc.ServerConfig{StopTimeout: 2 * time.Second}})
	r.Configure(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	deaf, err := r.Produce(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := deaf.Send(&queuev1.ProduceRequest{Kind: &queuev1.ProduceRequest_Hello{Hello: &queuev1.ProduceHello{SessionId: "deaf"}}}); err != nil {
		t.Fatal(err)
	}
	var ops []*queuev1.ProduceOp
	for i := range 1000 {
		ops = append(ops, &queuev1.ProduceOp{Key: strings.Repeat("k", 500) + strconv.Itoa(i)})
	}
	var sent atomic.Int64
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for id := uint64(1); ; id++ {
			if deaf.Send(&queuev1.ProduceRequest{Kind: &queuev1.ProduceRequest_Batch{Batch: &queuev1.ProduceBatch{RequestId: id, Queue: queuetest.Q, Ops: ops}}}) != nil {
				return
			}
			sent.Add(1)
		}
	}()
	p := r.OpenProduce(t, "p")
	for i, before, still := 0, int64(-1), 0; still < 20; i++ {
		p.Do(&queuev1.ProduceOp{Key: strconv.Itoa(i)}, &queuev1.ProduceOp{Key: strings.Repeat("k", 500) + strconv.Itoa(i%1000)})
		if n := sent.Load(); n != before {
			before, still = n, 0
		} else {
			still++
		}
	}
	if n := sent.Load(); n > 3000 {
		t.Errorf("%d batches were taken from a producer that reads no answers", n)
	}
	began := time.Now()
	if err := r.Stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("it held up the stop for %v", took)
	}
	<-ended
}
