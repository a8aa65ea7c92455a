package queue

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"math/bits"
	"slices"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

// ending reports whether the service is stopping.
func (s *Service) ending() bool {
	select {
	case <-s.stopping:
		return true
	default:
		return false
	}
}

// getter is one Get while it waits, in line in every partition of the queue.
type getter struct {
	mu     sync.Mutex
	gone   bool // nobody is there to take a delivery; guarded by mu, as is all that follows
	want   int
	leases []*queuev1.Lease
	left   int // takers that are not finished
	err    error
	some   chan struct{} // closed when there is something
	over   chan struct{} // closed when there is nothing more to wait for
}

func (g *getter) deliver(ss *session, t *taker, d *dispatcher, ls []workqueue.Lease, now int64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gone {
		return false
	}
	ss.hold(d, ls, now, t, nil)
	for i := range ls {
		g.leases = append(g.leases, lease(d.name, &ls[i], now))
	}
	return true
}

func (g *getter) finish(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.left--
	if g.err == nil {
		g.err = err
	}
	if len(g.leases) > 0 {
		shut(g.some)
	}
	if len(g.leases) >= g.want || g.left <= 0 || err != nil {
		shut(g.over)
	}
}

// shut closes a channel once. Whoever calls it must hold a lock.
func shut(ch chan struct{}) {
	select {
	case <-ch:
	default:
		close(ch)
	}
}

// end takes what was delivered; what comes later goes back.
func (g *getter) end() ([]*queuev1.Lease, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.gone = true
	if len(g.leases) > 0 {
		return g.leases, nil
	}
	return nil, g.err
}

// get leases keys for a session, waiting for the first.
func (s *Service) get(ctx context.Context, l *lines, ss *session, n int, leaseFor int64, wait time.Duration) ([]*queuev1.Lease, bool, error) {
	g := &getter{want: n, left: len(l.all), some: make(chan struct{}), over: make(chan struct{})}
	cr := &credit{any: n}
	takers := make([]*taker, len(l.all))
	shut := false
	for i, d := range l.all {
		t := &taker{holder: ss.id, leaseFor: leaseFor, single: true, once: wait == 0, credit: cr, finish: g.finish}
		t.again = func() { d.offer(t) }
		t.deliver = func(d *dispatcher, ls []workqueue.Lease, now int64) bool { return g.deliver(ss, t, d, ls, now) }
		takers[i] = t
		shut = ss.enter(t, d)
	}
	defer func() {
		for i, t := range takers {
			l.all[i].withdraw(t)
			ss.leave(t)
		}
	}()
	// Each Get begins elsewhere, so that no partition is always the last.
	first := int(s.gets.Add(1) % uint32(len(l.all)))
	for i := range takers {
		at := (first + i) % len(takers)
		if shut {
			takers[at].once = true // what is ready, but no waiting
		}
		l.all[at].offer(takers[at])
	}

	var deadline <-chan time.Time
	stopping := s.stopping
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		deadline = timer.C
	}
	// A turn that is under way may bring something yet.
	parted := func() bool {
		all := true
		for i, t := range takers {
			all = l.all[i].withdraw(t) && all
		}
		return all
	}
	some := g.some
	for {
		select {
		case <-some: // what other partitions have ready comes along
			some = nil
			for i, t := range takers {
				if !l.all[i].lastCall(t) {
					g.finish(nil)
				}
			}
		case <-g.over:
			got, err := g.end()
			if len(got) == 0 && err == nil && wait > 0 && !ss.shutDown() && s.ending() {
				err = errStopping // the wait was cut short
			}
			return got, len(got) == 0 && ss.shutDown(), err
		case <-deadline:
			deadline = nil
			if !parted() {
				g.settle(takers, l)
				continue
			}
			got, err := g.end()
			return got, len(got) == 0 && ss.shutDown(), err
		case <-stopping: // do not hold up the server; the caller asks another one
			stopping = nil
			if !parted() {
				g.settle(takers, l)
				continue
			}
			got, err := g.end()
			if len(got) == 0 && err == nil {
				err = errStopping
			}
			return got, false, err
		case <-ctx.Done():
			parted()
			if got, _ := g.end(); len(got) > 0 { // delivered, but the caller has left
				s.giveBack(l, ss, got)
			}
			return nil, false, ctx.Err()
		}
	}
}

// settle counts only those takers as outstanding that a turn still serves.
func (g *getter) settle(takers []*taker, l *lines) {
	for i, t := range takers {
		d := l.all[i]
		d.mu.Lock()
		out := !t.inTurn && !t.leaving
		d.mu.Unlock()
		if out {
			g.finish(nil)
		}
	}
}

// giveBack releases leases whose holder never got them.
func (s *Service) giveBack(l *lines, ss *session, leases []*queuev1.Lease) {
	back := make([][]workqueue.Lease, len(l.all))
	ss.mu.Lock()
	for _, le := range leases {
		d := l.at(le.GetKey())
		ss.drop(leaseKey{d, le.GetToken()}, le.GetKey(), nil)
		back[d.part] = append(back[d.part], workqueue.Lease{Key: le.GetKey(), Token: le.GetToken()})
	}
	ss.mu.Unlock()
	for i, some := range back {
		if len(some) > 0 {
			l.all[i].release(some)
		}
	}
}

// enter registers a waiting taker, so that a shutdown can finish it. It
// reports whether the session was shut down already.
func (s *session) enter(t *taker, d *dispatcher) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gets[t] = d
	return s.shut
}

func (s *session) leave(t *taker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.gets, t)
}

// shutDown ends a session: its takers get what is ready, and no more, and its
// producers are told.
func (s *server) shutDown(id string) (*session, error) {
	c := &checks{}
	c.session("session_id", id, true)
	if err := c.err(); err != nil {
		return nil, err
	}
	ss, err := s.sessions.get(id)
	if err != nil {
		return nil, err
	}
	ss.mu.Lock()
	first := !ss.shut
	ss.shut = true
	takers := make(map[*taker]*dispatcher, len(ss.gets))
	maps.Copy(takers, ss.gets)
	makers := slices.Collect(maps.Keys(ss.makers))
	ss.mu.Unlock()
	for t, d := range takers {
		d.finalize(t)
	}
	for _, p := range makers {
		if first {
			p.control(queuev1.Action_ACTION_SHUT_DOWN, "the session was shut down")
		}
	}
	return ss, nil
}

// drained waits until the session holds no lease, and tells how many it still
// holds when time is up.
func (s *session) drained(ctx context.Context, timeout time.Duration, stopping <-chan struct{}) (int, error) {
	var over <-chan time.Time
	if timeout > 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		over = timer.C
	}
	s.mu.Lock()
	s.waiting++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.waiting--
		s.mu.Unlock()
	}()
	for {
		s.mu.Lock()
		changed, live, next := s.remaining(time.Now())
		s.mu.Unlock()
		if live == 0 {
			return 0, nil
		}
		expiry := time.NewTimer(time.Until(next))
		select {
		case <-changed:
		case <-expiry.C:
		case <-over:
			expiry.Stop()
			return live, nil
		case <-stopping:
			expiry.Stop()
			return live, errStopping
		case <-ctx.Done():
			expiry.Stop()
			return live, ctx.Err()
		}
		expiry.Stop()
	}
}

// plan is a settlement request, checked: its operations in order, and the
// queues they are for.
type plan struct {
	ops   []workqueue.Op
	parts []part
}

// part is what a request says of one queue.
type part struct {
	queue string
	at    []int // places of its operations; nil for all of them
}

var outcomes = map[queuev1.Outcome]workqueue.Outcome{
	queuev1.Outcome_OUTCOME_DONE:               workqueue.Done,
	queuev1.Outcome_OUTCOME_FORGET:             workqueue.Forget,
	queuev1.Outcome_OUTCOME_RETRY_RATE_LIMITED: workqueue.Retry,
	queuev1.Outcome_OUTCOME_RETRY_AFTER:        workqueue.After,
	queuev1.Outcome_OUTCOME_RELEASE:            workqueue.Release,
	queuev1.Outcome_OUTCOME_DEAD:               workqueue.Dead,
}

// plan checks settlements.
func (s *server) plan(c *checks, in []*queuev1.Settlement) *plan {
	p := &plan{}
	if !c.count("settlements", len(in), 1, maxItems) {
		return p
	}
	p.ops = make([]workqueue.Op, 0, len(in))
	for i, st := range in {
		p.add(st.GetQueue(), c.settlement("settlements["+strconv.Itoa(i)+"]", st))
	}
	return p
}

// add puts an operation on a queue behind the others.
func (p *plan) add(queue string, op workqueue.Op) {
	i := len(p.ops)
	p.ops = append(p.ops, op)
	switch {
	case i == 0:
		p.parts = append(p.parts, part{queue: queue})
		return
	case len(p.parts) == 1 && p.parts[0].queue == queue && p.parts[0].at == nil:
		return
	case p.parts[0].at == nil: // the second queue
		for n := range i {
			p.parts[0].at = append(p.parts[0].at, n)
		}
	}
	n := slices.IndexFunc(p.parts, func(pt part) bool { return pt.queue == queue })
	if n < 0 {
		n = len(p.parts)
		p.parts = append(p.parts, part{queue: queue})
	}
	p.parts[n].at = append(p.parts[n].at, i)
}

// take is the operations of one part.
func (p *plan) take(pt *part) []workqueue.Op {
	if pt.at == nil {
		return p.ops
	}
	ops := make([]workqueue.Op, len(pt.at))
	for n, i := range pt.at {
		ops[n] = p.ops[i]
	}
	return ops
}

// place is where operation n of a part stands in the request.
func (pt *part) place(n int) int {
	if pt.at == nil {
		return n
	}
	return pt.at[n]
}

var seed = maphash.MakeSeed()

// sum tells plans apart that settle different leases or settle them otherwise.
func (p *plan) sum() uint64 {
	const prime = 0x9E3779B97F4A7C15
	h := uint64(len(p.ops))
	for i := range p.parts {
		h = (h ^ maphash.String(seed, p.parts[i].queue)) * prime
	}
	for i := range p.ops {
		op := &p.ops[i]
		h = (bits.RotateLeft64(h, 23) ^ maphash.String(seed, op.Key) ^ op.Token<<3 ^ uint64(op.Outcome)) * prime
	}
	return h
}

func (c *checks) settlement(at string, st *queuev1.Settlement) workqueue.Op {
	c.queue(at+".queue", st.GetQueue())
	c.key(at+".key", st.GetKey())
	c.token(at+".token", st.GetToken())
	outcome, known := outcomes[st.GetOutcome()]
	if !known {
		c.add(at+".outcome", "%v is not allowed", st.GetOutcome())
	}
	op := workqueue.Op{
		Kind: workqueue.OpSettle, Key: st.GetKey(), Token: st.GetToken(), Outcome: outcome,
		Delay: c.duration(at+".delay", st.GetDelay(), workqueue.MaxDelay).Microseconds(),
	}
	if st.GetDelay() != nil && op.Delay != 0 && outcome != workqueue.After && outcome != workqueue.Release {
		c.add(at+".delay", "only with OUTCOME_RETRY_AFTER and OUTCOME_RELEASE")
	}
	if st.Priority != nil {
		op.Relevel, op.Level = true, c.level(at+".priority", st.GetPriority().GetValue())
	}
	if r := st.GetReason(); len(r) > workqueue.MaxReasonLen || !utf8.ValidString(r) {
		c.add(at+".reason", "%d bytes, at most %d of UTF-8", len(r), workqueue.MaxReasonLen)
	}
	read, wrote := c.barrier(at+".read_at", st.GetReadAt()), c.barrier(at+".wrote", st.GetWrote())
	if st.GetReason() != "" || len(read) > 0 || len(wrote) > 0 {
		op.More = &workqueue.More{Reason: st.GetReason(), Barrier: read, Wrote: wrote}
	}
	return op
}

// row is the outcome of one settlement.
type row struct {
	status   workqueue.Status
	requeues int
	readyAt  int64
}

// settled is the outcome of a settlement request.
type settled struct {
	plan  *plan
	rows  []row   // one per settlement, in order
	freed []freed // leases of the session that ended, with their credit
	via   *dispatcher
	err   error
}

// results is the outcome as the contract has it.
func (s *settled) results() []*queuev1.SettleResult {
	out := make([]*queuev1.SettleResult, len(s.rows))
	for i, r := range s.rows {
		out[i] = s.result(i, r)
	}
	return out
}

func (s *settled) result(i int, r row) *queuev1.SettleResult {
	op := &s.plan.ops[i]
	return &queuev1.SettleResult{
		Key: op.Key, Token: op.Token, Status: settleStatus(r.status), NumRequeues: int64(r.requeues), ReadyAt: stamp(r.readyAt),
	}
}

// settle does a settlement request, one turn per partition, and calls done
// once, possibly from a dispatcher: it must not block. A repeated request gets
// the first answer.
func (s *Service) settle(ctx context.Context, ss *session, id uint64, p *plan, done func(*settled)) {
	sum := uint64(0)
	if id != 0 {
		sum = p.sum()
	}
	a, repeat, err := ss.begin(id, sum)
	if err != nil {
		done(&settled{err: err})
		return
	}
	if repeat {
		// The first one may still be under way; nothing else waits here.
		go func() {
			select {
			case <-a.ready:
				done(&settled{plan: p, rows: a.rows, err: a.err})
			case <-ctx.Done():
				done(&settled{err: ctx.Err()})
			}
		}()
		return
	}
	queues := make([]*lines, len(p.parts))
	for i := range p.parts {
		if queues[i], err = s.queue(ctx, p.parts[i].queue); err != nil {
			ss.end(a, nil, err)
			done(&settled{err: err})
			return
		}
	}
	w := &settling{ss: ss, a: a, left: len(p.parts), done: done, out: settled{plan: p, rows: make([]row, len(p.ops))}}
	for i, l := range queues {
		l.submit(&call{ops: p.take(&p.parts[i]), by: ss.id, done: func(c *call) { w.part(l, &p.parts[i], c) }})
	}
}

// settling is a settlement request under way.
type settling struct {
	ss   *session
	a    *answer
	done func(*settled)

	mu   sync.Mutex
	out  settled // guarded by mu, as is all that follows
	left int
	some bool // were applied
}

func (w *settling) part(l *lines, pt *part, c *call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.err != nil {
		w.out.err = errors.Join(w.out.err, c.err)
	}
	if c.err == nil || c.failed != nil {
		w.some = true
		w.ss.mu.Lock()
		for i := range c.replies {
			if c.failed != nil && c.failed[i] != nil {
				continue
			}
			r, op := &c.replies[i], &c.ops[i]
			w.out.rows[pt.place(i)] = row{r.Status, r.Requeues, r.ReadyAt}
			w.out.freed = w.ss.drop(leaseKey{l.at(op.Key), op.Token}, op.Key, w.out.freed)
			l.line.settled(r.Status, c.now, op.Token)
		}
		w.ss.mu.Unlock()
		w.ss.touch()
	}
	if w.left--; w.left > 0 {
		return
	}
	if w.out.err != nil && w.some { // no single cause tells what became of all of them
		w.out.err = fmt.Errorf("%w: the settlements of some queues were applied, of others not: %v", engine.ErrUnknown, w.out.err) //nolint:errorlint // the cause must not decide the code
	}
	w.ss.end(w.a, w.out.rows, w.out.err)
	w.out.via = c.via
	w.done(&w.out)
}

// extension is the outcome of extending leases.
type extension struct {
	kept, lost []*queuev1.LeaseRef
	deadlines  []int64 // of what is kept, by the store's clock
	freed      []freed
	remaining  time.Duration // of the lease that ends first; zero when none is kept
	err        error
}

func (c *checks) refs(field string, refs []*queuev1.LeaseRef) {
	c.count(field, len(refs), 0, maxResume)
	for i, r := range refs {
		at := field + "[" + strconv.Itoa(i) + "]"
		c.queue(at+".queue", r.GetQueue())
		c.key(at+".key", r.GetKey())
		c.token(at+".token", r.GetToken())
	}
}

// extend moves the deadlines of leases, or of all the session holds when there
// are none, to now plus a lease time in microseconds; zero means what each was
// leased for, or else its queue's.
// A negative one shortens: no later than now plus its amount, but not what
// another server has extended since. Done is called once, possibly from a
// dispatcher.
func (s *Service) extend(ctx context.Context, ss *session, refs []*queuev1.LeaseRef, leaseFor int64, done func(extension)) {
	if len(refs) == 0 {
		refs = ss.refs(nil)
	}
	if len(refs) == 0 {
		done(extension{})
		return
	}
	byQueue := map[string][]*queuev1.LeaseRef{}
	for _, r := range refs {
		byQueue[r.GetQueue()] = append(byQueue[r.GetQueue()], r)
	}
	var (
		mu   sync.Mutex
		out  extension
		left = len(byQueue)
	)
	part := func(l *lines, refs []*queuev1.LeaseRef, c *call, err error) {
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			out.err = errors.Join(out.err, err)
		} else {
			at := time.Now()
			ss.mu.Lock()
			for i, r := range refs {
				d := l.at(r.GetKey())
				if c.replies[i].Status != workqueue.Settled {
					out.lost = append(out.lost, r)
					l.line.lostExt.Inc()
					out.freed = ss.drop(leaseKey{d, r.GetToken()}, r.GetKey(), out.freed)
					continue
				}
				remaining := time.Duration(c.replies[i].Deadline-c.now) * time.Microsecond
				if h := ss.find(d, r); h != nil {
					h.deadline, h.known = at.Add(remaining), c.replies[i].Deadline
				}
				out.kept, out.deadlines = append(out.kept, r), append(out.deadlines, c.replies[i].Deadline)
				if out.remaining == 0 || remaining < out.remaining {
					out.remaining = remaining
				}
			}
			ss.mu.Unlock()
			ss.touch()
		}
		if left--; left == 0 {
			done(out)
		}
	}
	for queue, refs := range byQueue {
		l, err := s.queue(ctx, queue)
		if err != nil {
			part(nil, refs, nil, err)
			continue
		}
		op := workqueue.Op{Kind: workqueue.OpExtend, For: leaseFor, Shorten: leaseFor < 0}
		switch {
		case leaseFor < 0:
			op.For = -leaseFor
		case leaseFor == 0:
			op.For = l.of.Config().LeaseFor.Microseconds()
		}
		ops := make([]workqueue.Op, len(refs))
		ss.mu.Lock()
		for i, r := range refs {
			ops[i] = op
			ops[i].Key, ops[i].Token = r.GetKey(), r.GetToken()
			h := ss.find(l.at(r.GetKey()), r)
			if h == nil {
				continue
			}
			if leaseFor == 0 && h.from != nil && h.from.leaseFor > 0 {
				ops[i].For = h.from.leaseFor
			}
			if op.Shorten {
				ops[i].Known = h.known
			}
		}
		ss.mu.Unlock()
		l.submit(&call{ops: ops, by: ss.id, done: func(c *call) { part(l, refs, c, c.err) }})
	}
}
