package work

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/session"
	"github.com/deltaplane/deltaplane/services/queue/transaction"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

const (
	// maxBacklog is how many answers may wait for a worker that does not read,
	// before it is not read from either.
	maxBacklog = 256
	// maxStuck is how long one message may take to leave.
	maxStuck = time.Minute
)

// stream is one Work stream: one goroutine receives, one sends, and the
// handler's watches.
type stream struct {
	s       *Server
	ss      *session.Session
	grpc    queuev1.QueueService_WorkServer
	compact bool
	partial bool                    // the worker knows answers in parts
	refused []*queuev1.RefusedQueue // of hello
	leases  time.Duration           // the longest that is asked for
	credit  transaction.Credit
	queues  map[string]*subscription
	all     []*subscription

	mu           sync.Mutex
	out          outbox        // guarded by mu, as is all that follows
	finished     int           // waiters that will get nothing more
	live         int           // leases assigned and not settled
	countsCredit bool          // the worker counts its credit itself
	draining     bool          // no more keys: goodbye, shutdown or server stop
	closed       error         // why the stream ends
	extending    int           // extensions under way
	sending      time.Time     // since when a message is on its way; zero for none
	signal       chan struct{} // of the sender
	room         chan struct{} // of the receiver
	done         chan struct{} // closed when the stream ends
}

// subscription is a stream in line for one queue, in each of its partitions.
type subscription struct {
	l       *transaction.Queue
	waiters []*transaction.Waiter
	credit  transaction.QueueCredit
	unbind  func() bool // from the queue's end
}

func (st *stream) waiterCount() int {
	n := 0
	for _, q := range st.all {
		n += len(q.waiters)
	}
	return n
}

// Work hands out keys and takes their settlements.
func (s *Server) Work(grpc queuev1.QueueService_WorkServer) error {
	first, err := grpc.Recv()
	if err != nil {
		return err
	}
	hello := first.GetHello()
	if hello == nil {
		return wire.ErrNotHello
	}
	st, err := s.open(grpc, hello)
	if err != nil {
		return err
	}
	defer s.Metrics.OpenStream("work")()
	ctx, cancel := context.WithCancel(grpc.Context())
	defer cancel()
	sent := make(chan struct{})
	go func() { defer close(sent); st.send(ctx) }()
	go func() { st.Close(st.receive(ctx)) }() // ends with the RPC at the latest
	st.watch(ctx)
	err = st.reason()
	cancel()
	select {
	case <-sent:
	case <-time.After(time.Second): // it is stuck in Send, which ends with this call
	}
	st.disconnect(context.WithoutCancel(grpc.Context()))
	if errors.Is(err, io.EOF) || errors.Is(err, errOver) {
		return nil
	}
	return err
}

// errOver ends a stream as it was asked to end.
var errOver = errors.New("stream is over")

// deliver queues leases for the sender.
func (st *stream) deliver(t *transaction.Waiter, d *transaction.Dispatcher, leases []workqueue.Lease, now int64) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed != nil || st.draining {
		return false
	}
	st.ss.Hold(d, leases, now, t, st)
	for i := range leases {
		if st.compact {
			st.out.encode(d.Name, &leases[i], now, leases[i].Deadline+d.ClockAhead)
		} else {
			st.out.lease(wire.Lease(d.Name, &leases[i], now, leases[i].Deadline+d.ClockAhead))
		}
	}
	if st.out.bytes > maxUnsent {
		st.credit.Block(true)
	}
	st.live += len(leases)
	d.Later(st)
	return true
}

// finish notes that a waiter will get nothing more.
func (st *stream) finish(err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.finished++
	if st.finished < st.waiterCount() || st.draining || err != nil {
		return
	}
	st.draining = true
	st.out.control(&queuev1.Control{Action: queuev1.Action_ACTION_SHUT_DOWN, Reason: "the session was shut down"})
	st.Wake()
}

// drain takes no more keys; the stream ends when all are settled.
func (st *stream) drain() {
	st.mu.Lock()
	st.draining = true
	st.mu.Unlock()
	st.withdraw()
	st.Wake()
}

func (st *stream) withdraw() {
	for _, q := range st.all {
		for i, t := range q.waiters {
			q.l.Partitions[i].Withdraw(t)
		}
	}
}

// Close ends the stream for a reason; only the first counts.
func (st *stream) Close(err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed == nil {
		st.closed = err
		close(st.done)
	}
}

func (st *stream) reason() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.closed
}

// disconnect takes the stream out of its lines and shortens its leases, unless
// another stream of the session took over.
func (st *stream) disconnect(ctx context.Context) {
	st.Close(errOver)
	st.withdraw()
	for _, q := range st.all {
		q.unbind()
		q.l.Release()
		for _, t := range q.waiters {
			st.ss.RemoveGet(t)
		}
	}
	mine := st.ss.HandOver(st)
	if refs := st.ss.Refs(st); mine && len(refs) > 0 {
		st.s.Leases.Shorten(ctx, st.ss, refs)
	}
}
