package queue

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/load"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// A driver drives one queue by Produce and compact Work streams and keeps its
// books. Its keys have 23 bytes and are never used twice.
type driver struct {
	pool     load.Pool
	queue    string
	id       string
	next     atomic.Uint64
	sessions atomic.Uint64
	// What happened since the beginning, for the books at the end.
	adds, deduped, settled atomic.Int64
}

// A mix is what a run of a driver does.
type mix struct {
	inFlight int
	// streams is how many Work and how many Produce streams there are; zero means one of each.
	streams int
	// rich keys carry a barrier of two collections and a trace besides their priority.
	rich bool
	// paired workers take a key only when one was added, so that a backlog stays as it is.
	paired bool
}

const maxOps = 500 // of one batch

func newDriver(p load.Pool, queue string) *driver {
	return &driver{pool: p, queue: queue, id: "bench-" + rand.Text()[:8]}
}

func (l *driver) client(i int) queuev1.QueueServiceClient {
	return queuev1.NewQueueServiceClient(l.pool[i%len(l.pool)])
}

func (l *driver) session() string { return fmt.Sprintf("%s-%d", l.id, l.sessions.Add(1)) }

// configure makes the queue.
func (l *driver) configure(ctx context.Context, cfg *queuev1.QueueConfig) error {
	cfg.Name = l.queue
	_, err := queuev1.NewQueueAdminServiceClient(l.pool[0]).ConfigureQueue(ctx, &queuev1.ConfigureQueueRequest{Config: cfg})
	return err
}

// run makes cycles for d: a key is under way from before its add is sent until
// its settlement has been acknowledged.
func (l *driver) run(ctx context.Context, d time.Duration, m mix) (load.Turns, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := load.NewWindow(m.inFlight)
	context.AfterFunc(ctx, func() { w.Give(0) }) // a failure must wake who waits
	before := l.settled.Load()
	var workers, producers sync.WaitGroup
	stop := make(chan struct{})
	fail := func(err error) {
		if err != nil {
			cancel(err)
		}
	}
	grants := make(chan int32, m.inFlight)
	began := time.Now()
	streams := max(m.streams, 1)
	for i := range streams {
		workers.Go(func() { fail(l.work(ctx, i, m, w, grants, stop)) })
	}
	for i := range streams {
		producers.Go(func() { fail(l.produce(ctx, i+streams, m, w, grants)) })
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	w.Drain(func() bool { return ctx.Err() != nil })
	t := load.Turns{Done: l.settled.Load() - before, Elapsed: time.Since(began), Latency: &harness.Histogram{}}
	producers.Wait()
	close(stop)
	workers.Wait()
	return t, context.Cause(ctx)
}

// work is one worker: it settles what it is assigned until stop.
func (l *driver) work(ctx context.Context, i int, m mix, w *load.Window, grants <-chan int32, stop <-chan struct{}) error {
	s, err := l.openWork(ctx, i, 0)
	if err != nil {
		return err
	}
	defer s.close()
	if m.rich {
		s.readAt = richBarrier()
	}
	if !m.paired {
		if err := s.credit(int32(m.inFlight)); err != nil { // any worker may take everything
			return err
		}
	}
	var group sync.WaitGroup
	defer group.Wait()
	quit := make(chan struct{})
	defer close(quit)
	group.Go(func() {
		for {
			select {
			case n := <-grants:
				if s.credit(n) != nil {
					return // the reader has the reason
				}
			case <-stop:
				s.cancel() // nothing is assigned any more
				return
			case <-quit:
				return
			}
		}
	})
	for {
		got, err := s.recv()
		if err != nil {
			select {
			case <-stop:
				return nil
			default:
				return err
			}
		}
		if a := got.GetAssign(); a != nil {
			if err := s.settle(l.queue, a.GetLeases(), m.paired); err != nil {
				return err
			}
		}
		if a := got.GetSettled(); a != nil {
			n, err := acknowledged(a)
			if err != nil {
				return err
			}
			l.settled.Add(int64(n))
			w.Give(n)
		}
	}
}

// produce is one producer: it adds whatever the window lets it.
func (l *driver) produce(ctx context.Context, i int, m mix, w *load.Window, grants chan<- int32) error {
	p, err := l.openProduce(ctx, i)
	if err != nil {
		return err
	}
	answers := make(chan error, 1)
	go func() { // ends with the stream
		for {
			got, err := p.recv()
			if err != nil {
				answers <- err
				return
			}
			l.adds.Add(int64(len(got.GetStatuses())))
			for _, status := range got.GetStatuses() {
				switch status {
				case queuev1.AddStatus_ADD_STATUS_QUEUED:
				case queuev1.AddStatus_ADD_STATUS_ALREADY_QUEUED, queuev1.AddStatus_ADD_STATUS_MARKED_DIRTY:
					l.deduped.Add(1)
				default:
					answers <- fmt.Errorf("an add answered %v", status)
					return
				}
			}
		}
	}()
	ops := newOps(m, maxOps)
	for n := w.Take(); n > 0; n = w.Take() {
		for n > 0 {
			size := min(n, maxOps)
			n -= size
			for k := range size {
				seq := l.next.Add(1)
				ops[k].Key = benchKey(seq)
				ops[k].Priority = int32(seq%8) - 4
			}
			if err := p.send(l.queue, ops[:size]); err != nil {
				return errors.Join(err, <-answers)
			}
			if m.paired {
				grants <- int32(size)
			}
		}
		select {
		case err := <-answers:
			return err
		default:
		}
	}
	// Everything this stream added has been settled, or the run is broken: the
	// answers may still be on their way.
	_ = p.s.CloseSend()
	if err := <-answers; !isEOF(err) && ctx.Err() == nil {
		return err
	}
	return nil
}

// benchKey is a key of 23 bytes.
func benchKey(n uint64) string {
	b := [...]byte{'b', 'e', 'n', 'c', 'h', '/', '0', '0', '0', '0', '0', '0', '0', '0', '0', '0', '0', '0', '0', '0', '0', '0', '0'}
	for i := len(b) - 1; n > 0; i-- {
		b[i] = byte('0' + n%10)
		n /= 10
	}
	return string(b[:])
}

// newOps makes operations to be used again and again: the stream encodes them before send returns.
func newOps(m mix, n int) []*queuev1.ProduceOp {
	ops := make([]*queuev1.ProduceOp, n)
	for i := range ops {
		ops[i] = &queuev1.ProduceOp{Kind: queuev1.ProduceKind_PRODUCE_KIND_ADD}
		if m.rich {
			ops[i].Barrier = richBarrier()
			ops[i].Traceparent = fmt.Sprintf("00-4bf92f3577b34da6a3ce929d0e0e%04x-00f067aa0ba902b7-01", i)
		}
	}
	return ops
}

// richBarrier names two collections as a reflector would.
func richBarrier() []*deltav1.CollectionRevision {
	return []*deltav1.CollectionRevision{
		{Collection: "bench/jobs.v1.batch", Revision: &deltav1.Revision{Epoch: 1, ResourceVersion: "1048576"}},
		{Collection: "bench/pods.v1", Revision: &deltav1.Revision{Epoch: 1, ResourceVersion: "1048570"}},
	}
}

// acknowledged counts a compact Settled, all of which must have ended as asked.
func acknowledged(a *queuev1.Settled) (int, error) {
	for i, status := range a.GetStatuses() {
		if status != queuev1.SettleStatus_SETTLE_STATUS_SETTLED && status != queuev1.SettleStatus_SETTLE_STATUS_REQUEUED {
			return 0, fmt.Errorf("settlement %d answered %v", i, status)
		}
	}
	return len(a.GetStatuses()), nil
}

// left is what the queue still holds.
func (l *driver) left(ctx context.Context) (*queuev1.Counts, error) {
	got, err := l.client(0).Len(ctx, &queuev1.LenRequest{Queue: l.queue})
	return got.GetCounts(), err
}

// balance checks the books: every accepted add became a cycle, joined one, or
// is among the keys that may still be queued.
func (l *driver) balance(ctx context.Context, queued int64) error {
	n, err := l.left(ctx)
	if err != nil {
		return err
	}
	left := n.GetReady() + n.GetProcessing() + n.GetDirty()
	adds, settled, deduped := l.adds.Load(), l.settled.Load(), l.deduped.Load()
	if left != queued || adds != settled+deduped+left {
		return errors.Join(load.ErrBooks, fmt.Errorf("queue %s: %d adds, %d settled, %d deduplicated, %d left of which %d may be", l.queue, adds, settled, deduped, left, queued))
	}
	return nil
}
