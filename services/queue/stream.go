package queue

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
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
	s       *server
	ss      *session
	grpc    queuev1.QueueService_WorkServer
	compact bool
	leases  time.Duration // the longest that is asked for
	credit  credit
	queues  map[string]*station
	all     []*station

	mu        sync.Mutex
	out       outbox        // guarded by mu, as is all that follows
	finished  int           // takers that will get nothing more
	live      int           // leases assigned and not settled
	holds     bool          // the worker counts its credit itself
	leaving   bool          // no more keys: goodbye, shutdown or server stop
	closed    error         // why the stream ends
	extending int           // extensions under way
	sending   time.Time     // since when a message is on its way; zero for none
	wake      chan struct{} // of the sender
	room      chan struct{} // of the receiver
	done      chan struct{} // closed when the stream ends
}

// station is a stream in line for one queue, in each of its partitions.
type station struct {
	l      *lines
	takers []*taker
	purse  purse
}

func (st *stream) takers() int {
	n := 0
	for _, q := range st.all {
		n += len(q.takers)
	}
	return n
}

// Work hands out keys and takes their settlements.
func (s *server) Work(grpc queuev1.QueueService_WorkServer) error {
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
	go func() { st.close(st.receive(ctx)) }() // ends with the RPC at the latest
	st.watch(ctx)
	err = st.reason()
	cancel()
	select {
	case <-sent:
	case <-time.After(time.Second): // it is stuck in Send, which ends with this call
	}
	st.part(context.WithoutCancel(grpc.Context()))
	if errors.Is(err, io.EOF) || errors.Is(err, errOver) {
		return nil
	}
	return err
}

// errOver ends a stream as it was asked to end.
var errOver = errors.New("stream is over")

// open checks hello, takes the session over and answers Welcome.
func (s *server) open(grpc queuev1.QueueService_WorkServer, h *queuev1.Hello) (*stream, error) {
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
	ss, err := s.sessions.get(h.GetSessionId())
	if err != nil {
		return nil, err
	}
	st := &stream{
		s: s, ss: ss, grpc: grpc, compact: h.GetCompact(), queues: map[string]*station{},
		wake: make(chan struct{}, 1), room: make(chan struct{}, 1), done: make(chan struct{}),
	}
	inForce := time.Duration(0)
	for _, name := range h.GetQueues() {
		l, err := s.queue(ctx, name)
		if err != nil {
			return nil, err
		}
		if st.queues[name] != nil {
			continue
		}
		q := st.station(l, leaseFor)
		st.queues[name], st.all = q, append(st.all, q)
		lasts := l.of.Config().LeaseFor
		if inForce == 0 || lasts < inForce {
			inForce = lasts
		}
		st.leases = max(st.leases, lasts)
	}
	if leaseFor > 0 {
		inForce = time.Duration(leaseFor) * time.Microsecond
		st.leases = inForce
	}
	ss.mu.Lock()
	old := ss.stream
	ss.stream = st
	ss.mu.Unlock()
	if old != nil {
		old.close(errMoved)
	}
	kept, lost, err := st.resume(ctx, h.GetResume(), leaseFor)
	if err != nil {
		st.part(context.WithoutCancel(ctx))
		return nil, err
	}
	st.push(&queuev1.WorkResponse{Kind: &queuev1.WorkResponse_Welcome{Welcome: &queuev1.Welcome{
		ServerTime: timestamppb.Now(), LeaseDuration: durationpb.New(inForce), Generation: s.engine.Generation(), Kept: kept, Lost: lost,
	}}})
	for _, q := range st.all {
		if q.l.paused.Load() {
			st.control(&queuev1.Control{Action: queuev1.Action_ACTION_PAUSE, Reason: "the queue is paused", Queue: q.l.name})
		}
		for i, t := range q.takers {
			if ss.enter(t, q.l.all[i]) {
				q.l.all[i].finalize(t)
			}
		}
	}
	return st, nil
}

// station makes the takers of one queue.
func (st *stream) station(l *lines, leaseFor int64) *station {
	q := &station{l: l}
	for _, d := range l.all {
		t := &taker{holder: st.ss.id, leaseFor: leaseFor, credit: &st.credit, purse: &q.purse}
		t.again = func() {
			if !st.parting() {
				d.offer(t)
			}
		}
		t.deliver = func(d *dispatcher, leases []workqueue.Lease, now int64) bool { return st.deliver(t, d, leases, now) }
		t.finish = st.finish
		q.takers = append(q.takers, t)
	}
	return q
}

// deliver queues leases for the sender.
func (st *stream) deliver(t *taker, d *dispatcher, leases []workqueue.Lease, now int64) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed != nil || st.leaving {
		return false
	}
	st.ss.hold(d, leases, now, t, st)
	for i := range leases {
		if st.compact {
			st.out.encode(d.name, &leases[i], now)
		} else {
			st.out.lease(lease(d.name, &leases[i], now))
		}
	}
	if st.out.bytes > maxBehind {
		st.credit.block(true)
	}
	st.live += len(leases)
	d.later(st)
	return true
}

// finish notes that a taker will get nothing more.
func (st *stream) finish(err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.finished++
	if st.finished < st.takers() || st.leaving || err != nil {
		return
	}
	st.leaving = true
	st.out.control(&queuev1.Control{Action: queuev1.Action_ACTION_SHUT_DOWN, Reason: "the session was shut down"})
	st.nudge()
}

// resume keeps the leases a worker believes it holds, and soon ends those of
// the session that it does not know of.
func (st *stream) resume(ctx context.Context, refs []*queuev1.LeaseRef, leaseFor int64) (kept, lost []*queuev1.LeaseRef, err error) {
	type lease struct {
		queue, key string
		token      uint64
	}
	known := make(map[lease]bool, len(refs))
	once := refs[:0:0]
	for _, r := range refs {
		l := lease{r.GetQueue(), r.GetKey(), r.GetToken()}
		if !known[l] {
			known[l] = true
			once = append(once, r)
		}
	}
	var unknown []*queuev1.LeaseRef
	st.ss.mu.Lock()
	for k, h := range st.ss.leases {
		if h.stream != nil && !known[lease{k.d.name, h.key, k.token}] {
			unknown = append(unknown, &queuev1.LeaseRef{Queue: k.d.name, Key: h.key, Token: k.token})
		}
	}
	st.ss.mu.Unlock()
	if len(unknown) > 0 {
		st.s.shorten(ctx, st.ss, unknown)
	}
	if len(once) == 0 {
		return nil, nil, nil
	}
	done := make(chan extension, 1)
	st.s.extend(ctx, st.ss, once, leaseFor, func(e extension) { done <- e })
	select {
	case e := <-done:
		if e.err != nil {
			return nil, nil, e.err
		}
		return e.kept, e.lost, st.adopt(ctx, e)
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
}

// adopt makes resumed leases the stream's own.
func (st *stream) adopt(ctx context.Context, e extension) error {
	until := time.Now().Add(e.remaining)
	for i, r := range e.kept {
		l, err := st.s.queue(ctx, r.GetQueue())
		if err != nil {
			return err
		}
		d := l.at(r.GetKey())
		var from *taker
		if q := st.queues[r.GetQueue()]; q != nil {
			from = q.takers[d.part]
		}
		st.ss.mu.Lock()
		h := st.ss.find(d, r)
		if h == nil {
			st.ss.put(leaseKey{d, r.GetToken()}, held{key: r.GetKey(), since: time.Now(), deadline: until, known: e.deadlines[i]})
			h = st.ss.find(d, r)
		}
		h.stream, h.from, h.paid = st, from, false
		st.ss.mu.Unlock()
	}
	st.mu.Lock()
	st.live += len(e.kept)
	st.mu.Unlock()
	return nil
}

// shorten ends leases soon and forgets them here. It does not wait.
func (s *Service) shorten(ctx context.Context, ss *session, refs []*queuev1.LeaseRef) {
	s.extend(ctx, ss, refs, -s.cfg.CloseGrace.Microseconds(), func(extension) {})
}

// receive takes messages until the worker's side ends or fails.
func (st *stream) receive(ctx context.Context) error {
	var m workMessage
	for {
		if err := st.await(ctx); err != nil {
			return err
		}
		if err := st.grpc.RecvMsg(&m); err != nil {
			return err
		}
		var err error
		if m.settle != nil {
			if err := st.settle(ctx, m.settle); err != nil {
				return err
			}
			continue
		}
		switch k := m.GetKind().(type) {
		case *queuev1.WorkRequest_Credit:
			err = st.give(k.Credit)
		case *queuev1.WorkRequest_Extend:
			err = st.extend(ctx, k.Extend)
		case *queuev1.WorkRequest_Goodbye:
			st.leave()
		default:
			err = errNotHello
		}
		if err != nil {
			return err
		}
	}
}

// await waits until the worker has read enough of its answers.
func (st *stream) await(ctx context.Context) error {
	for {
		st.mu.Lock()
		full := len(st.out.messages) > maxBacklog
		st.mu.Unlock()
		if !full {
			return nil
		}
		select {
		case <-st.room:
		case <-st.done:
			return st.reason()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (st *stream) give(cr *queuev1.Credit) error {
	c := &checks{}
	c.count("credit.items", int(cr.GetItems()), 1, maxCredit)
	q := st.queues[cr.GetQueue()]
	if cr.GetQueue() != "" && q == nil {
		c.add("credit.queue", "%.64q was not named in hello", cr.GetQueue())
	}
	if err := c.err(); err != nil {
		return err
	}
	if q == nil {
		st.credit.give(nil, int(cr.GetItems()))
	} else {
		st.credit.give(&q.purse, int(cr.GetItems()))
	}
	st.offer(q)
	return nil
}

// parting says that the stream takes no more keys.
func (st *stream) parting() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.leaving || st.closed != nil
}

// offer puts the stream in line for a queue, or for all of them.
func (st *stream) offer(only *station) {
	if st.parting() {
		return
	}
	for _, q := range st.all {
		if only == nil || only == q {
			for i, t := range q.takers {
				q.l.all[i].offer(t)
			}
		}
	}
}

func (st *stream) settle(ctx context.Context, m *settleMessage) error {
	if m.err != nil {
		return m.err
	}
	st.mu.Lock()
	st.holds = m.hold
	st.mu.Unlock()
	if !m.hold {
		defer callAll(st.reuse(m.plan)) // after the settlements are in line
	}
	st.s.settle(ctx, st.ss, m.id, m.plan, func(out *settled) {
		if out.err != nil {
			st.close(out.err)
			return
		}
		var msg any
		if st.compact {
			msg = settledMessage(m.id, out)
		} else {
			msg = &queuev1.WorkResponse{Kind: &queuev1.WorkResponse_Settled{
				Settled: &queuev1.Settled{RequestId: m.id, Results: out.results()},
			}}
		}
		st.mu.Lock()
		st.out.messages = append(st.out.messages, msg)
		st.mu.Unlock()
		ended(out.freed, m.hold)
		if out.via != nil {
			out.via.later(st)
		} else {
			st.nudge()
		}
	})
	return nil
}

// reuse gives the credit of leases back that are about to end, whatever comes
// of it, so that the turn that settles them leases the next keys. It returns
// takers elsewhere that waited for it.
func (st *stream) reuse(p *plan) (fed []*taker) {
	var again []*taker
	st.ss.mu.Lock()
	for n := range p.parts {
		pt := &p.parts[n]
		q := st.queues[pt.queue]
		if q == nil {
			l, _ := st.s.known(pt.queue)
			if l == nil {
				continue
			}
			q = &station{l: l}
		}
		count := len(p.ops)
		if pt.at != nil {
			count = len(pt.at)
		}
		for i := range count {
			op := &p.ops[pt.place(i)]
			d := q.l.at(op.Key)
			h := st.ss.leases[leaseKey{d, op.Token}]
			if h == nil || h.key != op.Key || h.stream != st || h.paid {
				continue
			}
			h.paid = true
			if h.from == nil {
				fed = append(fed, st.credit.give(nil, 1)...)
				continue
			}
			fed = append(fed, st.credit.refund(h.from, 1)...)
			if d.part < len(q.takers) && (len(again) == 0 || again[len(again)-1] != q.takers[d.part]) {
				again = append(again, q.takers[d.part])
			}
		}
	}
	st.ss.mu.Unlock()
	if st.parting() {
		return nil
	}
	for _, q := range st.all {
		for i, t := range q.takers {
			if slices.Contains(again, t) {
				q.l.all[i].join(t)
			}
		}
	}
	return slices.DeleteFunc(fed, func(t *taker) bool { return slices.Contains(again, t) })
}

// ended accounts for leases that ended, each to the stream it came from, and
// gives their credit back unless that has been done or they hold it.
func ended(all []freed, hold bool) {
	for _, f := range all {
		st := f.stream
		st.mu.Lock()
		st.live -= f.leases
		idle := st.leaving && st.live <= 0
		st.mu.Unlock()
		if idle {
			st.nudge()
		}
		if f.unpaid == 0 || hold {
			continue
		}
		if f.from == nil {
			callAll(st.credit.give(nil, f.unpaid))
		} else {
			callAll(st.credit.refund(f.from, f.unpaid))
		}
	}
}

func (st *stream) extend(ctx context.Context, b *queuev1.ExtendBatch) error {
	c := &checks{}
	c.refs("extend.leases", b.GetLeases())
	if err := c.err(); err != nil {
		return err
	}
	st.mu.Lock()
	st.extending++
	st.mu.Unlock()
	st.s.extend(ctx, st.ss, b.GetLeases(), 0, func(e extension) {
		st.mu.Lock()
		st.extending--
		holds := st.holds
		st.mu.Unlock()
		if e.err != nil {
			st.close(e.err)
			return
		}
		st.push(&queuev1.WorkResponse{Kind: &queuev1.WorkResponse_Extended{Extended: &queuev1.Extended{
			Extended: int64(len(e.kept)), Lost: e.lost, Remaining: durationpb.New(e.remaining),
		}}})
		ended(e.freed, holds)
	})
	return nil
}

// leave takes no more keys; the stream ends when all are settled.
func (st *stream) leave() {
	st.mu.Lock()
	st.leaving = true
	st.mu.Unlock()
	st.withdraw()
	st.nudge()
}

func (st *stream) withdraw() {
	for _, q := range st.all {
		for i, t := range q.takers {
			q.l.all[i].withdraw(t)
		}
	}
}

// push queues a message for the sender.
func (st *stream) push(m any) {
	st.mu.Lock()
	st.out.messages = append(st.out.messages, m)
	st.mu.Unlock()
	st.nudge()
}

// control queues a control message.
func (st *stream) control(c *queuev1.Control) {
	st.push(&queuev1.WorkResponse{Kind: &queuev1.WorkResponse_Control{Control: c}})
}

func (st *stream) nudge() {
	select {
	case st.wake <- struct{}{}:
	default:
	}
}

// send is the one sender of the stream. What gathered while a message was under
// way leaves together.
func (st *stream) send(ctx context.Context) {
	var out outbox
	for {
		st.mu.Lock()
		out, st.out = st.out, out
		over := st.leaving && st.live <= 0 && out.empty() && !st.ss.shutDown()
		if !out.empty() {
			st.sending = time.Now()
		}
		st.mu.Unlock()
		if over {
			st.close(errOver)
			return
		}
		if out.empty() {
			select {
			case <-st.wake:
				continue
			case <-ctx.Done():
				return
			case <-st.done:
				return
			}
		}
		if err := out.send(st.grpc); err != nil {
			st.close(err)
			return
		}
		st.mu.Lock()
		st.sending = time.Time{}
		behind := st.out.bytes > maxBehind
		st.mu.Unlock()
		select {
		case st.room <- struct{}{}:
		default:
		}
		if out.bytes > maxBehind && !behind {
			callAll(st.credit.block(false))
		}
		out.reset()
	}
}

// close ends the stream for a reason; only the first counts.
func (st *stream) close(err error) {
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

// part takes the stream out of its lines and shortens its leases, unless
// another stream of the session took over.
func (st *stream) part(ctx context.Context) {
	st.close(errOver)
	st.withdraw()
	for _, q := range st.all {
		for _, t := range q.takers {
			st.ss.leave(t)
		}
	}
	st.ss.mu.Lock()
	mine := st.ss.stream == st
	if mine {
		st.ss.stream = nil
	}
	st.ss.mu.Unlock()
	if refs := st.ss.refs(st); mine && len(refs) > 0 {
		st.s.shorten(ctx, st.ss, refs)
	}
}
