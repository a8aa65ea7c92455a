package queue

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// workStream is a compact Work stream. recv is for one goroutine, the rest for any.
type workStream struct {
	s       queuev1.QueueService_WorkClient
	cancel  context.CancelFunc
	session string

	// readAt goes with every settlement: what the worker read at. Set it before the first.
	readAt []*deltav1.CollectionRevision

	mu      sync.Mutex // guards sending and what follows
	request uint64
	batch   queuev1.SettleBatch
	message queuev1.WorkRequest
}

// openWork opens a stream in a session of its own, whose request ids begin at 1,
// and waits for the handshake. Without queues it is for the load's own.
func (l *driver) openWork(ctx context.Context, i int, lease time.Duration, queues ...string) (*workStream, error) {
	if len(queues) == 0 {
		queues = []string{l.queue}
	}
	ctx, cancel := context.WithCancel(ctx)
	s, err := l.client(i).Work(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	w := &workStream{s: s, cancel: cancel, session: l.session()}
	hello := &queuev1.Hello{SessionId: w.session, Client: "bench", Queues: queues, Compact: true}
	if lease > 0 {
		hello.LeaseDuration = durationpb.New(lease)
	}
	if err := s.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Hello{Hello: hello}}); err != nil {
		cancel()
		return nil, err
	}
	got, err := s.Recv()
	if err == nil && got.GetWelcome() == nil {
		err = fmt.Errorf("a Work stream began with %v", got)
	}
	if err != nil {
		cancel()
		return nil, err
	}
	return w, nil
}

func (w *workStream) send(m *queuev1.WorkRequest) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.s.Send(m)
}

func (w *workStream) credit(n int32) error {
	return w.send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Credit{Credit: &queuev1.Credit{Items: n}}})
}

func (w *workStream) extend() error {
	return w.send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Extend{Extend: &queuev1.ExtendBatch{}}})
}

// settle ends leases as done and forgotten.
func (w *workStream) settle(queue string, leases []*queuev1.Lease, hold bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.request++
	w.batch.RequestId, w.batch.HoldCredit = w.request, hold
	for len(w.batch.Settlements) < len(leases) {
		w.batch.Settlements = append(w.batch.Settlements, &queuev1.Settlement{Outcome: queuev1.Outcome_OUTCOME_FORGET})
	}
	all := w.batch.Settlements
	for i, l := range leases {
		all[i].Queue, all[i].Key, all[i].Token, all[i].ReadAt = queue, l.GetKey(), l.GetToken(), w.readAt
	}
	w.batch.Settlements = all[:len(leases)]
	w.message.Kind = &queuev1.WorkRequest_Settle{Settle: &w.batch}
	err := w.s.Send(&w.message)
	w.batch.Settlements = all
	return err
}

// recv is the next message; a request to go elsewhere is an error, for a bench's server stays.
func (w *workStream) recv() (*queuev1.WorkResponse, error) {
	got, err := w.s.Recv()
	if err == nil && got.GetControl() != nil {
		return nil, fmt.Errorf("server asked for %v: %s", got.GetControl().GetAction(), got.GetControl().GetReason())
	}
	return got, err
}

func (w *workStream) close() { w.cancel() }

// produceStream is a Produce stream. send and recv are for one goroutine each.
type produceStream struct {
	s       queuev1.QueueService_ProduceClient
	request uint64
	batch   queuev1.ProduceBatch
	message queuev1.ProduceRequest
}

func (l *driver) openProduce(ctx context.Context, i int) (*produceStream, error) {
	s, err := l.client(i).Produce(ctx)
	if err != nil {
		return nil, err
	}
	p := &produceStream{s: s}
	hello := &queuev1.ProduceHello{SessionId: l.session(), Client: "bench"}
	if err := s.Send(&queuev1.ProduceRequest{Kind: &queuev1.ProduceRequest_Hello{Hello: hello}}); err != nil {
		return nil, err
	}
	got, err := s.Recv()
	if err == nil && got.GetWelcome() == nil {
		err = fmt.Errorf("a Produce stream began with %v", got)
	}
	return p, err
}

// send sends a batch; the operations may be used again when it returns.
func (p *produceStream) send(queue string, ops []*queuev1.ProduceOp) error {
	p.request++
	p.batch.RequestId, p.batch.Queue, p.batch.Ops = p.request, queue, ops
	p.message.Kind = &queuev1.ProduceRequest_Batch{Batch: &p.batch}
	return p.s.Send(&p.message)
}

// recv is the next answer; a refused batch is an error.
func (p *produceStream) recv() (*queuev1.Produced, error) {
	got, err := p.s.Recv()
	if err != nil {
		return nil, err
	}
	if e := got.GetProduced().GetError(); e != nil {
		return nil, fmt.Errorf("batch %d refused: %s: %s", got.GetProduced().GetRequestId(), e.GetReason(), e.GetMessage())
	}
	for _, d := range got.GetProduced().GetDetails() {
		if e := d.GetError(); e != nil {
			return nil, fmt.Errorf("operation %d refused: %s: %s", d.GetIndex(), e.GetReason(), e.GetMessage())
		}
	}
	if c := got.GetControl(); c != nil {
		return nil, fmt.Errorf("server asked for %v: %s", c.GetAction(), c.GetReason())
	}
	return got.GetProduced(), nil
}

func isEOF(err error) bool { return errors.Is(err, io.EOF) }
