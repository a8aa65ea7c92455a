package queue

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
)

// maker is the client's end of a Produce stream.
type maker struct {
	t        testing.TB
	s        queuev1.QueueService_ProduceClient
	cancel   context.CancelFunc
	welcome  *queuev1.ProduceWelcome
	produced chan *queuev1.Produced
	control  chan *queuev1.Control
	end      chan error
	request  uint64
}

func (r *rig) produce(t testing.TB, session string) *maker {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	s, err := r.Produce(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&queuev1.ProduceRequest{Kind: &queuev1.ProduceRequest_Hello{Hello: &queuev1.ProduceHello{SessionId: session}}}); err != nil {
		t.Fatal(err)
	}
	m, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	p := &maker{
		t: t, s: s, cancel: cancel, welcome: m.GetWelcome(), produced: make(chan *queuev1.Produced, 10_000),
		control: make(chan *queuev1.Control, 10), end: make(chan error, 1),
	}
	go func() {
		for {
			m, err := s.Recv()
			if err != nil {
				p.end <- err
				return
			}
			if m.GetProduced() != nil {
				p.produced <- m.GetProduced()
			}
			if m.GetControl() != nil {
				p.control <- m.GetControl()
			}
		}
	}()
	return p
}

func (p *maker) send(id uint64, queue string, ops ...*queuev1.ProduceOp) {
	p.t.Helper()
	err := p.s.Send(&queuev1.ProduceRequest{Kind: &queuev1.ProduceRequest_Batch{Batch: &queuev1.ProduceBatch{RequestId: id, Queue: queue, Ops: ops}}})
	if err != nil && !errors.Is(err, io.EOF) {
		p.t.Fatal(err)
	}
}

// do sends a batch and waits for its answer.
func (p *maker) do(ops ...*queuev1.ProduceOp) *queuev1.Produced {
	p.t.Helper()
	p.request++
	p.send(p.request, q, ops...)
	got := wait(p.t, p.produced)
	if got.GetRequestId() != p.request {
		p.t.Fatalf("answer to %d, want to %d", got.GetRequestId(), p.request)
	}
	return got
}

func plainAdds(keys ...string) []*queuev1.ProduceOp {
	var ops []*queuev1.ProduceOp
	for _, k := range keys {
		ops = append(ops, &queuev1.ProduceOp{Key: k})
	}
	return ops
}

const (
	queued  = queuev1.AddStatus_ADD_STATUS_QUEUED
	already = queuev1.AddStatus_ADD_STATUS_ALREADY_QUEUED
	dirty   = queuev1.AddStatus_ADD_STATUS_MARKED_DIRTY
	delayed = queuev1.AddStatus_ADD_STATUS_DELAYED
	shutOut = queuev1.AddStatus_ADD_STATUS_SHUT_DOWN
	nothing = queuev1.AddStatus_ADD_STATUS_UNSPECIFIED
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

// partitioned runs a test on every engine, with one partition and with four.
func partitioned(t *testing.T, f func(t *testing.T, r *rig)) {
	t.Helper()
	on(t, func(t *testing.T, kind string) {
		for _, n := range []int32{1, 4} {
			t.Run(strconv.Itoa(int(n)), func(t *testing.T) {
				r := start(t, kind, Config{})
				r.make(t, &queuev1.QueueConfig{Name: q, Partitions: n})
				f(t, r)
			})
		}
	})
}

func (r *rig) make(t testing.TB, cfg *queuev1.QueueConfig) {
	t.Helper()
	if _, err := r.ConfigureQueue(context.Background(), &queuev1.ConfigureQueueRequest{Config: cfg}); err != nil {
		t.Fatal(err)
	}
}

func TestAProduceStreamDoesWhatTheCallsDo(t *testing.T) {
	t.Parallel()
	partitioned(t, func(t *testing.T, r *rig) {
		p := r.produce(t, "p")
		if p.welcome.GetWindow() < 1 || p.welcome.GetGeneration() == "" {
			t.Errorf("welcome %v", p.welcome)
		}
		wantStates(t, p.do(plainAdds("a", "b", "a", "c")...), queued, queued, already, queued)

		w := r.work(t, &queuev1.Hello{SessionId: "w"})
		w.give(1)
		held := wait(t, w.leases)
		wantStates(t, p.do(plainAdds(held.GetKey(), held.GetKey())...), dirty, dirty)

		limited := queuev1.ProduceKind_PRODUCE_KIND_ADD_RATE_LIMITED
		got := p.do(
			&queuev1.ProduceOp{Key: "late", Kind: queuev1.ProduceKind_PRODUCE_KIND_ADD_AFTER, Delay: durationpb.New(time.Hour)},
			&queuev1.ProduceOp{Key: "limited", Kind: limited},
			&queuev1.ProduceOp{Key: "limited", Kind: limited},
			&queuev1.ProduceOp{Key: "limited", Kind: queuev1.ProduceKind_PRODUCE_KIND_NUM_REQUEUES},
			&queuev1.ProduceOp{Key: "limited", Kind: queuev1.ProduceKind_PRODUCE_KIND_FORGET},
			&queuev1.ProduceOp{Key: "limited", Kind: queuev1.ProduceKind_PRODUCE_KIND_NUM_REQUEUES},
		)
		wantStates(t, got, delayed, delayed, delayed, nothing, nothing, nothing)
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
	partitioned(t, func(t *testing.T, r *rig) {
		r.make(t, &queuev1.QueueConfig{Name: "dev/other"})
		p := r.produce(t, "p")
		const n = 500
		for id := uint64(1); id <= n; id++ { // many more than the window
			switch id % 5 {
			case 0:
				p.send(id, "nowhere", plainAdds("a")...)
			case 1:
				p.send(id, "dev/other", plainAdds("a")...)
			case 2:
				p.send(id, q, &queuev1.ProduceOp{})
			default:
				p.send(id, q, plainAdds("a", "b", "c", "d", "e")...)
			}
		}
		for id := uint64(1); id <= n; id++ {
			got := wait(t, p.produced)
			if got.GetRequestId() != id {
				t.Fatalf("answer to %d, want to %d", got.GetRequestId(), id)
			}
			if refused := id%5 == 0; refused != (got.GetError() != nil) {
				t.Fatalf("answer to %d: %v", id, got)
			}
		}
		if err := p.s.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if err := wait(t, p.end); !errors.Is(err, io.EOF) {
			t.Errorf("the stream ended with %v, want EOF", err)
		}
	})
}

func TestWhatIsWrongWithABatchIsNamedAndTheStreamGoesOn(t *testing.T) {
	t.Parallel()
	partitioned(t, func(t *testing.T, r *rig) {
		p := r.produce(t, "p")
		refused := func(name string, code codes.Code, reason, text string, b *queuev1.ProduceBatch) {
			t.Helper()
			if err := p.s.Send(&queuev1.ProduceRequest{Kind: &queuev1.ProduceRequest_Batch{Batch: b}}); err != nil {
				t.Fatal(err)
			}
			got := wait(t, p.produced)
			e := got.GetError()
			if codes.Code(e.GetCode()) != code || e.GetReason() != reason || !strings.Contains(e.GetMessage(), text) || len(got.GetStatuses()) != 0 || got.GetRequestId() != b.GetRequestId() {
				t.Errorf("%s: %v", name, got)
			}
		}
		refused("no number", codes.InvalidArgument, "INVALID_ARGUMENT", "batch.request_id", &queuev1.ProduceBatch{Queue: q, Ops: plainAdds("a")})
		refused("no queue", codes.InvalidArgument, "INVALID_ARGUMENT", "batch.queue", &queuev1.ProduceBatch{RequestId: 1, Ops: plainAdds("a")})
		refused("nothing", codes.InvalidArgument, "INVALID_ARGUMENT", "batch.ops", &queuev1.ProduceBatch{RequestId: 1, Queue: q})
		refused("too much", codes.InvalidArgument, "INVALID_ARGUMENT", "batch.ops", &queuev1.ProduceBatch{RequestId: 1, Queue: q, Ops: plainAdds(make([]string, 1001)...)})
		refused("unknown queue", codes.NotFound, "QUEUE_NOT_FOUND", "nowhere", &queuev1.ProduceBatch{RequestId: 1, Queue: "nowhere", Ops: plainAdds("a")})

		p.request = 10
		got := p.do(
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
		wantStates(t, got, queued, nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing, queued)
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

		if _, err := r.CloseQueue(t.Context(), &queuev1.CloseQueueRequest{Queue: q}); err != nil {
			t.Fatal(err)
		}
		p.request++
		refused("a closed queue", codes.FailedPrecondition, "QUEUE_CLOSED", "", &queuev1.ProduceBatch{RequestId: p.request, Queue: q, Ops: plainAdds("a", "b", "c")})
		got = p.do(&queuev1.ProduceOp{Key: "a"}, &queuev1.ProduceOp{Key: "a", Kind: queuev1.ProduceKind_PRODUCE_KIND_NUM_REQUEUES})
		wantStates(t, got, nothing, nothing)
		if len(got.GetDetails()) != 1 || got.GetDetails()[0].GetError().GetReason() != "QUEUE_CLOSED" {
			t.Errorf("an add beside a question, to a closed queue: %v", got)
		}
		if _, err := r.OpenQueue(t.Context(), &queuev1.OpenQueueRequest{Queue: q}); err != nil {
			t.Fatal(err)
		}
		wantStates(t, p.do(plainAdds("a")...), already)
	})
}

func TestABarrierThatIsFullRefusesItsAddAlone(t *testing.T) {
	t.Parallel()
	partitioned(t, func(t *testing.T, r *rig) {
		p := r.produce(t, "p")
		full := 0
		for i := range 6 {
			var marks []*deltav1.CollectionRevision
			for k := range 16 {
				marks = append(marks, &deltav1.CollectionRevision{Collection: "dev/kind" + strconv.Itoa(16*i+k) + ".v1", Revision: &deltav1.Revision{Epoch: 1, ResourceVersion: "1"}})
			}
			got := p.do(&queuev1.ProduceOp{Key: "a", Barrier: marks}, &queuev1.ProduceOp{Key: "b"})
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

func TestQ04AddsOfAShutSessionAreDroppedAndToldSo(t *testing.T) {
	t.Parallel()
	partitioned(t, func(t *testing.T, r *rig) {
		p := r.produce(t, "p")
		wantStates(t, p.do(plainAdds("a")...), queued)
		if _, err := r.ShutDown(t.Context(), &queuev1.ShutDownRequest{SessionId: "p"}); err != nil {
			t.Fatal(err)
		}
		if c := wait(t, p.control); c.GetAction() != queuev1.Action_ACTION_SHUT_DOWN {
			t.Errorf("control %v", c)
		}
		got := p.do(&queuev1.ProduceOp{Key: "b"}, &queuev1.ProduceOp{Key: "a", Kind: queuev1.ProduceKind_PRODUCE_KIND_NUM_REQUEUES}, &queuev1.ProduceOp{Key: "c"})
		wantStates(t, got, shutOut, nothing, shutOut)
		wantStates(t, p.do(plainAdds("d")...), shutOut)
		if c := r.counts(t); c.GetReady() != 1 {
			t.Errorf("%v, want what was added before", c)
		}
		again := r.produce(t, "p")
		if c := wait(t, again.control); c.GetAction() != queuev1.Action_ACTION_SHUT_DOWN {
			t.Errorf("control on a new stream %v", c)
		}
	})
}

func TestABatchSentAgainDoesNotChargeTheLimiterAgain(t *testing.T) {
	t.Parallel()
	partitioned(t, func(t *testing.T, r *rig) {
		limited := []*queuev1.ProduceOp{
			{Key: "a", Kind: queuev1.ProduceKind_PRODUCE_KIND_ADD_RATE_LIMITED}, {Key: "b", Kind: queuev1.ProduceKind_PRODUCE_KIND_ADD_RATE_LIMITED},
		}
		r.make(t, r.changed(t, func(c *queuev1.QueueConfig) {
			c.RateLimiter = &queuev1.RateLimiter{Kind: &queuev1.RateLimiter_Exponential{Exponential: &queuev1.ExponentialLimiter{
				Base: durationpb.New(time.Hour), Max: durationpb.New(100 * time.Hour),
			}}}
		}))
		p := r.produce(t, "p")
		first := p.do(limited...)
		p.request-- // as after a lost answer, on a second stream
		p.cancel()
		p2 := r.produce(t, "p")
		again := p2.do(limited...)
		wantStates(t, again, delayed, delayed)
		for i, d := range again.GetDetails() {
			if d.GetNumRequeues() != 1 || !d.GetReadyAt().AsTime().Equal(first.GetDetails()[i].GetReadyAt().AsTime()) {
				t.Errorf("sent again: %v, want as at first %v", d, first.GetDetails()[i])
			}
		}
		if d := p2.do(limited...).GetDetails()[0]; d.GetNumRequeues() != 2 {
			t.Errorf("another batch: %v, want one more requeue", d)
		}
	})
}

// changed is the queue's configuration, changed.
func (r *rig) changed(t testing.TB, change func(*queuev1.QueueConfig)) *queuev1.QueueConfig {
	t.Helper()
	res, err := r.ListQueues(context.Background(), &queuev1.ListQueuesRequest{Prefix: q})
	if err != nil || len(res.GetQueues()) != 1 {
		t.Fatalf("ListQueues = %v, %v", res, err)
	}
	cfg := res.GetQueues()[0].GetConfig()
	change(cfg)
	return cfg
}

func TestAProducerIsSentElsewhere(t *testing.T) {
	t.Parallel()
	r := start(t, "memory", Config{StopGrace: 50 * time.Millisecond, RPC: rpc.ServerConfig{MaxConnectionAge: 400 * time.Millisecond, MaxConnectionGrace: 4 * time.Second}})
	r.configure(t)
	p := r.produce(t, "p")
	if c := wait(t, p.control); c.GetAction() != queuev1.Action_ACTION_RECONNECT {
		t.Errorf("before the connection's end: %v", c)
	}
	p2 := r.produce(t, "p")
	wantStates(t, p2.do(plainAdds("a")...), queued)
	_ = p.s.CloseSend()
	if err := wait(t, p.end); !errors.Is(err, io.EOF) {
		t.Errorf("the old stream ended with %v, want EOF", err)
	}
	go r.stop()
	for {
		c := wait(t, p2.control)
		if c.GetAction() != queuev1.Action_ACTION_RECONNECT {
			t.Errorf("at the stop: %v", c)
		}
		if strings.Contains(c.GetReason(), "stopping") {
			break
		}
	}
	if err := wait(t, p2.end); !errors.Is(err, io.EOF) {
		t.Errorf("the stream of a stopped server ended with %v, want EOF", err)
	}
}

func TestBadProduceStreams(t *testing.T) {
	t.Parallel()
	r := start(t, "memory", Config{})
	r.configure(t)
	hello := &queuev1.ProduceRequest{Kind: &queuev1.ProduceRequest_Hello{Hello: &queuev1.ProduceHello{SessionId: "p"}}}
	for name, tc := range map[string]struct {
		send   []*queuev1.ProduceRequest
		reason string
	}{
		"no hello":    {[]*queuev1.ProduceRequest{{Kind: &queuev1.ProduceRequest_Batch{Batch: &queuev1.ProduceBatch{RequestId: 1, Queue: q, Ops: plainAdds("a")}}}}, "HELLO_EXPECTED"},
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
	r := start(t, "memory", Config{StopGrace: 50 * time.Millisecond, RPC: rpc.ServerConfig{StopTimeout: 2 * time.Second}})
	r.configure(t)
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
			if deaf.Send(&queuev1.ProduceRequest{Kind: &queuev1.ProduceRequest_Batch{Batch: &queuev1.ProduceBatch{RequestId: id, Queue: q, Ops: ops}}}) != nil {
				return
			}
			sent.Add(1)
		}
	}()
	p := r.produce(t, "p")
	for i, before, still := 0, int64(-1), 0; still < 20; i++ {
		p.do(&queuev1.ProduceOp{Key: strconv.Itoa(i)}, &queuev1.ProduceOp{Key: strings.Repeat("k", 500) + strconv.Itoa(i%1000)})
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
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("it held up the stop for %v", took)
	}
	<-ended
}
