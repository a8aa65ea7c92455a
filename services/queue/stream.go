package queue

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/engine"
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
	s       *workServer
	ss      *session
	grpc    queuev1.QueueService_WorkServer
	compact bool
	partial bool                    // the worker knows answers in parts
	refused []*queuev1.RefusedQueue // of hello
	leases  time.Duration           // the longest that is asked for
	credit  credit
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
	l       *lines
	waiters []*waiter
	credit  queueCredit
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
func (s *workServer) Work(grpc queuev1.QueueService_WorkServer) error {
	first, err := grpc.Recv()
	if err != nil {
		return err
	}
	hello := first.GetHello()
	if hello == nil {
		return errNotHello
	}
	st, err := s.open(grpc, hello)
	if err != nil {
		return err
	}
	defer s.metrics.open("work")()
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

// open checks hello, takes the session over and answers Welcome.
func (s *workServer) open(grpc queuev1.QueueService_WorkServer, h *queuev1.Hello) (*stream, error) {
	ctx := grpc.Context()
	c := &checks{}
	c.session("hello.session_id", h.GetSessionId(), true)
	c.session("hello.client", h.GetClient(), false)
	c.count("hello.queues", len(h.GetQueues()), 1, maxQueues)
	for _, q := range h.GetQueues() {
		c.queue("hello.queues", q)
	}
	leaseFor := c.lease("hello.lease_duration", h.GetLeaseDuration())
	c.refs("hello.resume", h.GetResume())
	if err := c.err(); err != nil {
		return nil, err
	}
	ss, err := s.sessions.get(owned(ctx, h.GetSessionId()))
	if err != nil {
		return nil, err
	}
	resume := distinct(h.GetResume())
	whose, err := s.leases.verify(ctx, ss, len(resume), refAt(resume), partitionTimeout)
	if err != nil {
		return nil, err
	}
	st := &stream{
		s: s, ss: ss, grpc: grpc, compact: h.GetCompact(), partial: h.GetPartial(), queues: map[string]*subscription{},
		signal: make(chan struct{}, 1), room: make(chan struct{}, 1), done: make(chan struct{}),
	}
	inForce := time.Duration(0)
	var refusal error
	for _, name := range h.GetQueues() {
		l, err := s.queues.use(ctx, name)
		if err != nil {
			if !st.refuse(name, err) || ctx.Err() != nil {
				return nil, err
			}
			refusal = err
			continue
		}
		if st.queues[name] != nil {
			continue
		}
		q := st.subscribe(l, leaseFor)
		st.queues[name], st.all = q, append(st.all, q)
		cfg := l.of.Config()
		lasts := time.Duration(cfg.Capped(leaseFor)) * time.Microsecond
		if inForce == 0 || lasts < inForce {
			inForce = lasts
		}
		st.leases = max(st.leases, lasts)
	}
	if len(st.all) == 0 {
		return nil, refusal
	}
	if old := ss.takeOver(st); old != nil {
		old.Close(errMoved)
	}
	for _, q := range st.all {
		s.queues.keep(q.l)
		q.unbind = context.AfterFunc(q.l.ctx, func() {
			if err := q.l.ended(); errors.Is(err, engine.ErrNoQueue) {
				st.Close(err)
			}
		})
	}
	resumed, err := st.resume(ctx, resume, whose, leaseFor)
	if err != nil {
		st.disconnect(context.WithoutCancel(ctx))
		return nil, err
	}
	st.push(&queuev1.WorkResponse{Kind: &queuev1.WorkResponse_Welcome{Welcome: &queuev1.Welcome{
		ServerTime: timestamppb.Now(), LeaseDuration: durationpb.New(inForce), Generation: s.queues.Engine.Generation(), Kept: resumed.kept, Lost: resumed.lost,
		Unreachable: resumed.unreachable, Refused: st.refused, ClockUs: s.queues.clock(time.Now()),
	}}})
	for _, q := range st.all {
		if q.l.paused.Load() {
			st.control(&queuev1.Control{Action: queuev1.Action_ACTION_PAUSE, Reason: "the queue is paused", Queue: q.l.name})
		}
		for i, t := range q.waiters {
			if ss.enter(t, q.l.all[i]) {
				q.l.all[i].finalize(t)
			}
		}
	}
	return st, nil
}

// refuse notes that a queue is no part of the stream. It reports false when the
// worker does not know of that, and the stream cannot be opened.
func (st *stream) refuse(name string, err error) bool {
	if !st.partial || errors.Is(err, errStopping) {
		return false
	}
	for _, q := range st.refused {
		if q.GetQueue() == name {
			return true
		}
	}
	e := produceError(err)
	st.refused = append(st.refused, &queuev1.RefusedQueue{Queue: name, Code: e.GetCode(), Reason: e.GetReason(), Message: e.GetMessage()})
	return true
}

// subscribe makes the waiters of one queue.
func (st *stream) subscribe(l *lines, leaseFor int64) *subscription {
	q := &subscription{l: l}
	for _, d := range l.all {
		t := &waiter{holder: st.ss.id, leaseFor: leaseFor, credit: &st.credit, own: &q.credit}
		t.rejoin = func() {
			if !st.ending() {
				d.offer(t)
			}
		}
		t.deliver = func(d *dispatcher, leases []workqueue.Lease, now int64) bool { return st.deliver(t, d, leases, now) }
		t.finish = st.finish
		q.waiters = append(q.waiters, t)
	}
	return q
}

// deliver queues leases for the sender.
func (st *stream) deliver(t *waiter, d *dispatcher, leases []workqueue.Lease, now int64) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed != nil || st.draining {
		return false
	}
	st.ss.hold(d, leases, now, t, st)
	for i := range leases {
		if st.compact {
			st.out.encode(d.name, &leases[i], now, leases[i].Deadline+d.ahead)
		} else {
			st.out.lease(lease(d.name, &leases[i], now, leases[i].Deadline+d.ahead))
		}
	}
	if st.out.bytes > maxUnsent {
		st.credit.block(true)
	}
	st.live += len(leases)
	d.later(st)
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
	st.wakeUp()
}

// drain takes no more keys; the stream ends when all are settled.
func (st *stream) drain() {
	st.mu.Lock()
	st.draining = true
	st.mu.Unlock()
	st.withdraw()
	st.wakeUp()
}

func (st *stream) withdraw() {
	for _, q := range st.all {
		for i, t := range q.waiters {
			q.l.all[i].withdraw(t)
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
		q.l.release()
		for _, t := range q.waiters {
			st.ss.leave(t)
		}
	}
	mine := st.ss.handOver(st)
	if refs := st.ss.refs(st); mine && len(refs) > 0 {
		st.s.leases.shorten(ctx, st.ss, refs)
	}
}
