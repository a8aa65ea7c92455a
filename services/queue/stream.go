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
	// maxAssign is how many leases one Assign message holds.
	maxAssign = 500
	// maxAssignBytes is about what their keys, states, barriers and expectations
	// may take, well below the 4 MiB that stock clients accept.
	maxAssignBytes = 1 << 20
	// maxBacklog is how many messages may wait for a worker that does not read.
	maxBacklog = 10_000
)

// stream is one Work stream: the handler's goroutine receives, one other sends.
type stream struct {
	s      *server
	ss     *session
	grpc   queuev1.QueueService_WorkServer
	credit credit
	takers map[string]*taker
	lines  map[string]*dispatcher

	mu       sync.Mutex
	leases   []*queuev1.Lease        // to be assigned; guarded by mu, as is all that follows
	messages []*queuev1.WorkResponse // to be sent before them
	finished map[*taker]bool         // those that will get nothing more
	live     int                     // leases assigned and not settled
	holds    bool                    // the worker counts its credit itself
	leaving  bool                    // no more keys: goodbye, shutdown or server stop
	closed   error                   // why the stream ends
	wake     chan struct{}
	done     chan struct{} // closed when the stream ends
}

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
	ctx, cancel := context.WithCancel(grpc.Context())
	defer cancel()
	sent := make(chan struct{})
	go func() { defer close(sent); st.send(ctx) }()
	go st.watch(ctx)
	received := make(chan error, 1)
	go func() { received <- st.receive(ctx) }() // ends with the RPC at the latest
	select {
	case err = <-received:
	case <-st.done:
		err = st.reason()
	}
	st.close(err)
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
		s: s, ss: ss, grpc: grpc, takers: map[string]*taker{}, lines: map[string]*dispatcher{},
		finished: map[*taker]bool{}, wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
	inForce := time.Duration(0)
	for _, name := range h.GetQueues() {
		d, err := s.queue(ctx, name)
		if err != nil {
			return nil, err
		}
		st.lines[name] = d
		st.takers[name] = st.taker(name, leaseFor)
		if lasts := d.of.Config().LeaseFor; inForce == 0 || lasts < inForce {
			inForce = lasts
		}
	}
	if leaseFor > 0 {
		inForce = time.Duration(leaseFor) * time.Microsecond
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
	for name, t := range st.takers {
		if ss.enter(t, st.lines[name]) {
			st.lines[name].finalize(t)
		}
	}
	return st, nil
}

func (st *stream) taker(queue string, leaseFor int64) *taker {
	t := &taker{holder: st.ss.id, leaseFor: leaseFor, credit: &st.credit, again: func() { st.offer(queue) }}
	t.deliver = func(d *dispatcher, leases []workqueue.Lease, now int64) bool {
		st.mu.Lock()
		defer st.mu.Unlock()
		if st.closed != nil || st.leaving {
			return false
		}
		st.ss.hold(d.name, leases, now, t, st)
		for i := range leases {
			st.leases = append(st.leases, lease(d.name, &leases[i], now))
		}
		st.live += len(leases)
		st.nudge()
		return true
	}
	t.finish = func(err error) {
		st.mu.Lock()
		defer st.mu.Unlock()
		st.finished[t] = true
		if len(st.finished) < len(st.takers) || st.leaving || err != nil {
			return
		}
		st.leaving = true
		st.control(queuev1.Action_ACTION_SHUT_DOWN, "the session was shut down")
	}
	return t
}

// resume keeps the leases a worker believes it holds, and soon ends those of
// the session that it does not know of.
func (st *stream) resume(ctx context.Context, refs []*queuev1.LeaseRef, leaseFor int64) (kept, lost []*queuev1.LeaseRef, err error) {
	known := make(map[leaseKey]bool, len(refs))
	for _, r := range refs {
		known[leaseKey{r.GetQueue(), r.GetKey(), r.GetToken()}] = true
	}
	var unknown []*queuev1.LeaseRef
	for _, r := range st.ss.refs(nil) {
		if !known[leaseKey{r.GetQueue(), r.GetKey(), r.GetToken()}] && st.s.ofStream(st.ss, r) {
			unknown = append(unknown, r)
		}
	}
	if len(unknown) > 0 {
		st.s.shorten(ctx, st.ss, unknown)
	}
	if len(refs) == 0 {
		return nil, nil, nil
	}
	done := make(chan extension, 1)
	st.s.extend(ctx, st.ss, refs, leaseFor, func(e extension) { done <- e })
	select {
	case e := <-done:
		if e.err != nil {
			return nil, nil, e.err
		}
		st.adopt(e)
		return e.kept, e.lost, nil
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
}

// adopt makes resumed leases the stream's own.
func (st *stream) adopt(e extension) {
	until := time.Now().Add(e.remaining)
	st.ss.mu.Lock()
	for i, r := range e.kept {
		k := leaseKey{r.GetQueue(), r.GetKey(), r.GetToken()}
		h, ok := st.ss.leases[k]
		if !ok {
			h = held{since: time.Now(), deadline: until, known: e.deadlines[i]}
		}
		h.stream, h.from, h.paid = st, st.takers[r.GetQueue()], false
		st.ss.leases[k] = h
	}
	st.ss.mu.Unlock()
	st.mu.Lock()
	st.live += len(e.kept)
	st.mu.Unlock()
}

// ofStream says whether a lease was handed out on a stream.
func (s *Service) ofStream(ss *session, r *queuev1.LeaseRef) bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return ss.leases[leaseKey{r.GetQueue(), r.GetKey(), r.GetToken()}].stream != nil
}

// shorten ends leases soon and forgets them here. It does not wait.
func (s *Service) shorten(ctx context.Context, ss *session, refs []*queuev1.LeaseRef) {
	s.extend(ctx, ss, refs, -s.cfg.CloseGrace.Microseconds(), func(extension) {})
}

// receive takes messages until the worker's side ends or fails.
func (st *stream) receive(ctx context.Context) error {
	for {
		m, err := st.grpc.Recv()
		if err != nil {
			return err
		}
		switch k := m.GetKind().(type) {
		case *queuev1.WorkRequest_Credit:
			err = st.give(k.Credit)
		case *queuev1.WorkRequest_Settle:
			err = st.settle(ctx, k.Settle)
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

func (st *stream) give(cr *queuev1.Credit) error {
	c := &checks{}
	c.count("credit.items", int(cr.GetItems()), 1, maxCredit)
	var t *taker
	if cr.GetQueue() != "" {
		if t = st.takers[cr.GetQueue()]; t == nil {
			c.add("credit.queue", "%.64q was not named in hello", cr.GetQueue())
		}
	}
	if err := c.err(); err != nil {
		return err
	}
	st.credit.give(t, int(cr.GetItems()))
	st.offer(cr.GetQueue())
	return nil
}

// offer puts the stream in line for a queue, or for all of them.
func (st *stream) offer(only string) {
	st.mu.Lock()
	leaving := st.leaving || st.closed != nil
	st.mu.Unlock()
	if leaving {
		return
	}
	for name, t := range st.takers {
		if only == "" || name == only {
			st.lines[name].offer(t)
		}
	}
}

func (st *stream) settle(ctx context.Context, b *queuev1.SettleBatch) error {
	c := &checks{}
	p := st.s.plan(c, b.GetSettlements())
	if err := c.err(); err != nil {
		return err
	}
	st.mu.Lock()
	st.holds = b.GetHoldCredit()
	st.mu.Unlock()
	elsewhere := !b.GetHoldCredit() && st.reuse(b.GetSettlements())
	st.s.settle(ctx, st.ss, b.GetRequestId(), p, func(out settled) {
		if out.err != nil {
			st.close(out.err)
			return
		}
		st.push(&queuev1.WorkResponse{Kind: &queuev1.WorkResponse_Settled{
			Settled: &queuev1.Settled{RequestId: b.GetRequestId(), Results: out.results},
		}})
		ended(out.freed, b.GetHoldCredit())
	})
	if elsewhere {
		st.offer("")
	}
	return nil
}

// reuse gives the credit of leases back that are about to end, whatever comes
// of it, so that the turn that settles them leases the next keys. It reports
// whether the credit may be of use to other queues than those of the turn.
func (st *stream) reuse(settlements []*queuev1.Settlement) (elsewhere bool) {
	var again []*taker
	elsewhere = len(st.takers) > 1
	st.ss.mu.Lock()
	for _, s := range settlements {
		k := leaseKey{s.GetQueue(), s.GetKey(), s.GetToken()}
		if h, ok := st.ss.leases[k]; ok && h.stream == st && !h.paid {
			h.paid = true
			st.ss.leases[k] = h
			st.credit.refund(h.from, 1)
			if t := st.takers[s.GetQueue()]; t == nil {
				elsewhere = true
			} else if !slices.Contains(again, t) {
				again = append(again, t)
			}
		}
	}
	st.ss.mu.Unlock()
	st.mu.Lock()
	leaving := st.leaving || st.closed != nil
	st.mu.Unlock()
	if leaving {
		return false
	}
	for name, t := range st.takers {
		if slices.Contains(again, t) {
			st.lines[name].join(t)
		}
	}
	return elsewhere
}

// ended accounts for leases that ended, each to the stream it came from, and
// gives their credit back unless that has been done or they hold it.
func ended(leases []held, hold bool) {
	type sum struct{ leases, credit int }
	streams := map[*stream]sum{}
	for _, h := range leases {
		if h.stream == nil {
			continue
		}
		n := streams[h.stream]
		n.leases++
		if !h.paid && !hold {
			h.stream.credit.refund(h.from, 1)
			n.credit++
		}
		streams[h.stream] = n
	}
	for st, n := range streams {
		st.mu.Lock()
		st.live -= n.leases
		st.mu.Unlock()
		st.nudge()
		if n.credit > 0 {
			st.offer("")
		}
	}
}

func (st *stream) extend(ctx context.Context, b *queuev1.ExtendBatch) error {
	c := &checks{}
	c.refs("extend.leases", b.GetLeases())
	if err := c.err(); err != nil {
		return err
	}
	st.s.extend(ctx, st.ss, b.GetLeases(), 0, func(e extension) {
		if e.err != nil {
			st.close(e.err)
			return
		}
		st.push(&queuev1.WorkResponse{Kind: &queuev1.WorkResponse_Extended{Extended: &queuev1.Extended{
			Extended: int64(len(e.kept)), Lost: e.lost, Remaining: durationpb.New(e.remaining),
		}}})
		st.mu.Lock()
		holds := st.holds
		st.mu.Unlock()
		ended(e.freed, holds)
	})
	return nil
}

// leave takes no more keys; the stream ends when all are settled.
func (st *stream) leave() {
	st.mu.Lock()
	st.leaving = true
	st.mu.Unlock()
	for name, t := range st.takers {
		st.lines[name].withdraw(t)
	}
	st.nudge()
}

// watch moves the worker elsewhere when the server stops.
func (st *stream) watch(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-st.done:
		return
	case <-st.s.stopping:
	}
	st.mu.Lock()
	st.control(queuev1.Action_ACTION_RECONNECT, "the server is stopping")
	st.mu.Unlock()
	st.leave()
	timer := time.NewTimer(st.s.cfg.StopGrace)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-st.done:
	case <-timer.C:
		st.close(errOver)
	}
}

// control queues a control message. Mu must be held.
func (st *stream) control(a queuev1.Action, reason string) {
	st.messages = append(st.messages, &queuev1.WorkResponse{Kind: &queuev1.WorkResponse_Control{
		Control: &queuev1.Control{Action: a, Reason: reason},
	}})
	st.nudge()
}

// push queues a message for the sender.
func (st *stream) push(m *queuev1.WorkResponse) {
	st.mu.Lock()
	st.messages = append(st.messages, m)
	full := len(st.messages) > maxBacklog
	st.mu.Unlock()
	if full {
		st.close(errOverrun)
		return
	}
	st.nudge()
}

func (st *stream) nudge() {
	select {
	case st.wake <- struct{}{}:
	default:
	}
}

// send is the one sender of the stream. Assignments that gathered while a
// message was under way leave together.
func (st *stream) send(ctx context.Context) {
	for {
		st.mu.Lock()
		messages, leases := st.messages, st.leases
		st.messages, st.leases = nil, nil
		over := st.leaving && st.live <= 0 && len(messages) == 0 && len(leases) == 0 && st.s.quiet(st)
		st.mu.Unlock()
		if over {
			st.close(errOver)
			return
		}
		for _, m := range messages {
			if err := st.grpc.Send(m); err != nil {
				st.close(err)
				return
			}
		}
		for len(leases) > 0 {
			n := fitting(leases)
			m := &queuev1.WorkResponse{Kind: &queuev1.WorkResponse_Assign{Assign: &queuev1.Assign{Leases: leases[:n]}}}
			if err := st.grpc.Send(m); err != nil {
				st.close(err)
				return
			}
			leases = leases[n:]
		}
		if len(messages) > 0 {
			continue
		}
		select {
		case <-st.wake:
		case <-ctx.Done():
			return
		case <-st.done:
			return
		}
	}
}

// fitting is how many leases go into one assignment.
func fitting(leases []*queuev1.Lease) int { return within(leases[:min(maxAssign, len(leases))]) }

// within is how many leases go into one message of any kind, at least one.
func within(leases []*queuev1.Lease) int {
	size := 0
	for n, l := range leases {
		size += len(l.GetKey()) + len(l.GetState())
		for _, m := range l.GetBarrier() {
			size += len(m.GetCollection()) + len(m.GetRevision().GetResourceVersion()) + 16
		}
		for _, trace := range l.GetTraceparents() {
			size += len(trace)
		}
		for _, names := range [][]string{l.GetExpectations().GetCreations(), l.GetExpectations().GetDeletions()} {
			for _, name := range names {
				size += len(name)
			}
		}
		if size > maxAssignBytes && n > 0 {
			return n
		}
	}
	return len(leases)
}

// quiet says that a stream that leaves may end: a session that was shut down
// keeps its stream until the worker closes it.
func (s *Service) quiet(st *stream) bool { return !st.ss.shutDown() }

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
	for name, t := range st.takers {
		st.lines[name].withdraw(t)
		st.ss.leave(t)
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
