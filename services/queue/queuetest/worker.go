package queuetest

import (
	"context"
	"errors"
	"io"
	"strconv"
	"testing"
	"time"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// Worker is the client's end of a Work stream. Messages are sorted by kind, so
// that a test can wait for one without minding the others.
type Worker struct {
	t        testing.TB
	s        queuev1.QueueService_WorkClient
	Cancel   context.CancelFunc
	Welcome  *queuev1.Welcome
	Leases   chan *queuev1.Lease
	Settled  chan *queuev1.Settled
	Extended chan *queuev1.Extended
	Control  chan *queuev1.Control
	Pongs    chan *queuev1.Pong
	End      chan error
	Request  uint64
}

// OpenWork opens a Work stream, on [Q] unless hello names queues.
func (r *Rig) OpenWork(t testing.TB, hello *queuev1.Hello) *Worker {
	t.Helper()
	w, err := r.TryWork(t, hello)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// TryWork is OpenWork, which may fail.
func (r *Rig) TryWork(t testing.TB, hello *queuev1.Hello) (*Worker, error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	s, err := r.Work(ctx)
	if err != nil {
		return nil, err
	}
	if len(hello.GetQueues()) == 0 {
		hello.Queues = []string{Q}
	}
	if err := s.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Hello{Hello: hello}}); err != nil {
		return nil, err
	}
	m, err := s.Recv()
	if err != nil {
		return nil, err
	}
	w := &Worker{
		t: t, s: s, Cancel: cancel, Welcome: m.GetWelcome(), Leases: make(chan *queuev1.Lease, 10_000), Settled: make(chan *queuev1.Settled, 1000),
		Extended: make(chan *queuev1.Extended, 100), Control: make(chan *queuev1.Control, 10), Pongs: make(chan *queuev1.Pong, 10), End: make(chan error, 1),
	}
	go func() {
		for {
			m, err := s.Recv()
			if err != nil {
				w.End <- err
				return
			}
			for _, l := range m.GetAssign().GetLeases() {
				w.Leases <- l
			}
			switch {
			case m.GetSettled() != nil:
				w.Settled <- m.GetSettled()
			case m.GetExtended() != nil:
				w.Extended <- m.GetExtended()
			case m.GetPong() != nil:
				w.Pongs <- m.GetPong()
			case m.GetControl() != nil:
				w.Control <- m.GetControl()
			}
		}
	}()
	return w, nil
}

// Send sends a message. The stream may have ended.
func (w *Worker) Send(m *queuev1.WorkRequest) {
	w.t.Helper()
	if err := w.s.Send(m); err != nil && !errors.Is(err, io.EOF) {
		w.t.Fatal(err)
	}
}

// Give gives credit for any queue.
func (w *Worker) Give(n int) {
	w.t.Helper()
	w.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Credit{Credit: &queuev1.Credit{Items: int32(n)}}})
}

// Settle settles leases and waits for the answer.
func (w *Worker) Settle(o queuev1.Outcome, ls ...*queuev1.Lease) []*queuev1.SettleResult {
	w.t.Helper()
	w.Request++
	b := &queuev1.SettleBatch{RequestId: w.Request}
	for _, l := range ls {
		b.Settlements = append(b.Settlements, &queuev1.Settlement{Queue: l.GetQueue(), Key: l.GetKey(), Token: l.GetToken(), Outcome: o})
	}
	w.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Settle{Settle: b}})
	return Wait(w.t, w.Settled).GetResults()
}

// Wait takes what comes from a channel within a minute.
func Wait[T any](t testing.TB, ch chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(time.Minute):
		t.Fatal("waited a minute in vain")
		panic("unreachable")
	}
}

// AddKeys adds keys to [Q].
func (r *Rig) AddKeys(t testing.TB, keys ...string) {
	t.Helper()
	req := &queuev1.AddRequest{Queue: Q}
	for _, k := range keys {
		req.Items = append(req.Items, &queuev1.AddItem{Key: k})
	}
	if _, err := r.Add(context.Background(), req); err != nil {
		t.Fatal(err)
	}
}

// Counts is what [Q] holds.
func (r *Rig) Counts(t testing.TB) *queuev1.Counts {
	t.Helper()
	res, err := r.Len(context.Background(), &queuev1.LenRequest{Queue: Q})
	if err != nil {
		t.Fatal(err)
	}
	return res.GetCounts()
}

// Ref is a reference to a lease.
func Ref(l *queuev1.Lease) *queuev1.LeaseRef {
	return &queuev1.LeaseRef{Queue: l.GetQueue(), Key: l.GetKey(), Token: l.GetToken()}
}

// KeysN are n keys.
func KeysN(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = "k" + strconv.Itoa(i)
	}
	return out
}

// The outcomes of a settlement.
const (
	Done   = queuev1.Outcome_OUTCOME_DONE
	Forget = queuev1.Outcome_OUTCOME_FORGET
)
