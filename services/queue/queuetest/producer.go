package queuetest

import (
	"context"
	"errors"
	"io"
	"strconv"
	"testing"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue"
)

// Adder is the client's end of a Produce stream: what gathered while the window
// was full leaves together.
type Adder struct {
	S     queuev1.QueueService_ProduceClient
	queue string
	Ops   chan *queuev1.ProduceOp
	Slots chan struct{}
}

// Adder opens a Produce stream with a window of batches.
func (r *Rig) Adder(ctx context.Context, t testing.TB, session, queue string, window int) *Adder {
	t.Helper()
	s, err := r.Produce(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&queuev1.ProduceRequest{Kind: &queuev1.ProduceRequest_Hello{Hello: &queuev1.ProduceHello{SessionId: session}}}); err != nil {
		t.Fatal(err)
	}
	if m, err := s.Recv(); err != nil || m.GetWelcome() == nil {
		t.Fatalf("first message = %v, %v", m, err)
	}
	return &Adder{S: s, queue: queue, Ops: make(chan *queuev1.ProduceOp, 4096), Slots: make(chan struct{}, window)}
}

// Send sends what gathers until ops is closed.
func (a *Adder) Send() {
	id := uint64(0)
	for op := range a.Ops {
		a.Slots <- struct{}{}
		id++
		batch := &queuev1.ProduceBatch{RequestId: id, Queue: a.queue, Ops: []*queuev1.ProduceOp{op}}
		for more := true; more && len(batch.Ops) < 1000; {
			select {
			case op, ok := <-a.Ops:
				if more = ok; ok {
					batch.Ops = append(batch.Ops, op)
				}
			default:
				more = false
			}
		}
		if err := a.S.Send(&queuev1.ProduceRequest{Kind: &queuev1.ProduceRequest_Batch{Batch: batch}}); err != nil {
			return
		}
	}
	_ = a.S.CloseSend()
}

// Producer is the client's end of a Produce stream.
type Producer struct {
	t        testing.TB
	S        queuev1.QueueService_ProduceClient
	Cancel   context.CancelFunc
	Welcome  *queuev1.ProduceWelcome
	Produced chan *queuev1.Produced
	Control  chan *queuev1.Control
	End      chan error
	Request  uint64
}

// OpenProduce opens a Produce stream.
func (r *Rig) OpenProduce(t testing.TB, session string) *Producer {
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
	p := &Producer{
		t: t, S: s, Cancel: cancel, Welcome: m.GetWelcome(), Produced: make(chan *queuev1.Produced, 10_000),
		Control: make(chan *queuev1.Control, 10), End: make(chan error, 1),
	}
	go func() {
		for {
			m, err := s.Recv()
			if err != nil {
				p.End <- err
				return
			}
			if m.GetProduced() != nil {
				p.Produced <- m.GetProduced()
			}
			if m.GetControl() != nil {
				p.Control <- m.GetControl()
			}
		}
	}()
	return p
}

// Send sends a batch under a request id.
func (p *Producer) Send(id uint64, queue string, ops ...*queuev1.ProduceOp) {
	p.t.Helper()
	err := p.S.Send(&queuev1.ProduceRequest{Kind: &queuev1.ProduceRequest_Batch{Batch: &queuev1.ProduceBatch{RequestId: id, Queue: queue, Ops: ops}}})
	if err != nil && !errors.Is(err, io.EOF) {
		p.t.Fatal(err)
	}
}

// Do sends a batch and waits for its answer.
func (p *Producer) Do(ops ...*queuev1.ProduceOp) *queuev1.Produced {
	p.t.Helper()
	p.Request++
	p.Send(p.Request, Q, ops...)
	got := Wait(p.t, p.Produced)
	if got.GetRequestId() != p.Request {
		p.t.Fatalf("answer to %d, want to %d", got.GetRequestId(), p.Request)
	}
	return got
}

// PlainAdds are adds of keys and nothing else.
func PlainAdds(keys ...string) []*queuev1.ProduceOp {
	var ops []*queuev1.ProduceOp
	for _, k := range keys {
		ops = append(ops, &queuev1.ProduceOp{Key: k})
	}
	return ops
}

// The statuses of an add.
const (
	Queued  = queuev1.AddStatus_ADD_STATUS_QUEUED
	Already = queuev1.AddStatus_ADD_STATUS_ALREADY_QUEUED
	Dirty   = queuev1.AddStatus_ADD_STATUS_MARKED_DIRTY
	Delayed = queuev1.AddStatus_ADD_STATUS_DELAYED
	ShutOut = queuev1.AddStatus_ADD_STATUS_SHUT_DOWN
	Nothing = queuev1.AddStatus_ADD_STATUS_UNSPECIFIED
)

// Partitioned runs a test on every engine, with one partition and with four.
func Partitioned(t *testing.T, f func(t *testing.T, r *Rig)) {
	t.Helper()
	OnEngines(t, func(t *testing.T, kind string) {
		for _, n := range []int32{1, 4} {
			t.Run(strconv.Itoa(int(n)), func(t *testing.T) {
				r := Start(t, kind, queue.Config{})
				r.Make(t, &queuev1.QueueConfig{Name: Q, Partitions: n})
				f(t, r)
			})
		}
	})
}

// Make configures a queue.
func (r *Rig) Make(t testing.TB, cfg *queuev1.QueueConfig) {
	t.Helper()
	if _, err := r.ConfigureQueue(context.Background(), &queuev1.ConfigureQueueRequest{Config: cfg}); err != nil {
		t.Fatal(err)
	}
}

// Changed is the queue's configuration, changed.
func (r *Rig) Changed(t testing.TB, change func(*queuev1.QueueConfig)) *queuev1.QueueConfig {
	t.Helper()
	res, err := r.ListQueues(context.Background(), &queuev1.ListQueuesRequest{Prefix: Q})
	if err != nil || len(res.GetQueues()) != 1 {
		t.Fatalf("ListQueues = %v, %v", res, err)
	}
	cfg := res.GetQueues()[0].GetConfig()
	change(cfg)
	return cfg
}
