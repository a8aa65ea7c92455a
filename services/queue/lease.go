package queue

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
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

// get leases keys for a session, waiting for the first.
func (s *Service) get(ctx context.Context, d *dispatcher, ss *session, n int, leaseFor int64, wait time.Duration) ([]*queuev1.Lease, bool, error) {
	type outcome struct{ err error }
	var (
		mu     sync.Mutex
		gone   bool // nobody is there to take a delivery
		leases []*queuev1.Lease
		over   = make(chan outcome, 1)
	)
	t := &taker{holder: ss.id, leaseFor: leaseFor, single: true, once: wait == 0, credit: &credit{any: n}}
	t.deliver = func(d *dispatcher, ls []workqueue.Lease, now int64) bool {
		mu.Lock()
		defer mu.Unlock()
		if gone {
			return false
		}
		ss.hold(d.name, ls, now, t, nil)
		for i := range ls {
			leases = append(leases, lease(d.name, &ls[i], now))
		}
		return true
	}
	t.finish = func(err error) { over <- outcome{err} }
	shut := ss.enter(t, d)
	defer ss.leave(t)
	if shut {
		t.once = true // what is ready, but no waiting
	}
	d.offer(t)

	var deadline <-chan time.Time
	stopping := s.stopping
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		deadline = timer.C
	}
	for {
		select {
		case o := <-over:
			if len(leases) > 0 {
				return leases, false, nil
			}
			if o.err == nil && wait > 0 && !ss.shutDown() && s.ending() {
				o.err = errStopping // the wait was cut short
			}
			return nil, ss.shutDown(), o.err
		case <-deadline:
			if !d.withdraw(t) {
				deadline = nil // a turn is under way, it may bring something
				continue
			}
			mu.Lock()
			defer mu.Unlock()
			return leases, len(leases) == 0 && ss.shutDown(), nil
		case <-stopping: // do not hold up the server; the caller asks another one
			if !d.withdraw(t) {
				stopping = nil
				continue
			}
			mu.Lock()
			defer mu.Unlock()
			if len(leases) == 0 {
				return nil, false, errStopping
			}
			return leases, false, nil
		case <-ctx.Done():
			d.withdraw(t)
			mu.Lock()
			gone = true
			got := leases
			mu.Unlock()
			if len(got) > 0 { // delivered, but the caller has left
				s.giveBack(d, ss, got)
			}
			return nil, false, ctx.Err()
		}
	}
}

// giveBack releases leases whose holder never got them.
func (s *Service) giveBack(d *dispatcher, ss *session, leases []*queuev1.Lease) {
	var back []workqueue.Lease
	for _, l := range leases {
		ss.drop(d.name, l.GetKey(), l.GetToken())
		back = append(back, workqueue.Lease{Key: l.GetKey(), Token: l.GetToken()})
	}
	d.release(back)
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

// shutDown ends a session: its takers get what is ready, and no more.
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
	ss.shut = true
	takers := make(map[*taker]*dispatcher, len(ss.gets))
	maps.Copy(takers, ss.gets)
	ss.mu.Unlock()
	for t, d := range takers {
		d.finalize(t)
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

// plan is a settlement request, checked: its operations by queue, and where
// their results belong.
type plan struct {
	settlements []*queuev1.Settlement
	parts       []part
}

type part struct {
	queue string
	ops   []workqueue.Op
	at    []int
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
func (s *server) plan(c *checks, in []*queuev1.Settlement) plan {
	p := plan{settlements: in}
	if !c.count("settlements", len(in), 1, maxItems) {
		return p
	}
	for i, st := range in {
		op := c.settlement("settlements["+strconv.Itoa(i)+"]", st)
		n := 0
		for n < len(p.parts) && p.parts[n].queue != st.GetQueue() {
			n++
		}
		if n == len(p.parts) {
			p.parts = append(p.parts, part{queue: st.GetQueue()})
		}
		p.parts[n].ops = append(p.parts[n].ops, op)
		p.parts[n].at = append(p.parts[n].at, i)
	}
	return p
}

var seed = maphash.MakeSeed()

// sum tells plans apart that settle different leases or settle them otherwise.
func (p *plan) sum() uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	for _, st := range p.settlements {
		maphash.WriteComparable(&h, leaseKey{st.GetQueue(), st.GetKey(), st.GetToken()})
		maphash.WriteComparable(&h, st.GetOutcome())
	}
	return h.Sum64()
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

// settled is the outcome of a settlement request.
type settled struct {
	results []*queuev1.SettleResult
	freed   []held // leases of the session that ended, with their credit
	err     error
}

// settle does a settlement request, one turn per queue, and calls done once,
// possibly from a dispatcher: it must not block. A repeated request gets the
// first answer.
func (s *Service) settle(ctx context.Context, ss *session, id uint64, p plan, done func(settled)) {
	a, repeat, err := ss.begin(id, p.sum())
	if err != nil {
		done(settled{err: err})
		return
	}
	if repeat {
		// The first one may still be under way; nothing else waits here.
		go func() {
			select {
			case <-a.ready:
				done(settled{results: a.results, err: a.err})
			case <-ctx.Done():
				done(settled{err: ctx.Err()})
			}
		}()
		return
	}
	var (
		mu   sync.Mutex
		out  = settled{results: make([]*queuev1.SettleResult, len(p.settlements))}
		left = len(p.parts)
		some bool // were applied
	)
	part := func(d *dispatcher, pt part, c *call, err error) {
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			out.err = errors.Join(out.err, err)
		} else {
			some = true
			for i := range c.replies {
				r, st := &c.replies[i], p.settlements[pt.at[i]]
				out.results[pt.at[i]] = &queuev1.SettleResult{
					Key: st.GetKey(), Token: st.GetToken(), Status: settleStatus(r.Status), NumRequeues: int64(r.Requeues), ReadyAt: stamp(r.ReadyAt),
				}
				h, ok := ss.drop(pt.queue, st.GetKey(), st.GetToken())
				if ok {
					out.freed = append(out.freed, h)
				}
				d.line.settled(r.Status, c.now, st.GetToken())
			}
		}
		if left--; left == 0 {
			if out.err != nil && some { // no single cause tells what became of all of them
				out.err = fmt.Errorf("%w: the settlements of some queues were applied, of others not: %v", engine.ErrUnknown, out.err) //nolint:errorlint // the cause must not decide the code
			}
			ss.end(a, out.results, out.err)
			done(out)
		}
	}
	lines := make([]*dispatcher, len(p.parts))
	for i, pt := range p.parts {
		if lines[i], err = s.queue(ctx, pt.queue); err != nil {
			ss.end(a, nil, err)
			done(settled{err: err})
			return
		}
	}
	for i, pt := range p.parts {
		d := lines[i]
		d.submit(&call{ops: pt.ops, done: func(c *call) { part(d, pt, c, c.err) }})
	}
}

// extension is the outcome of extending leases.
type extension struct {
	kept, lost []*queuev1.LeaseRef
	deadlines  []int64 // of what is kept, by the store's clock
	freed      []held
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
	part := func(d *dispatcher, queue string, refs []*queuev1.LeaseRef, c *call, err error) {
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			out.err = errors.Join(out.err, err)
		} else {
			at := time.Now()
			for i, r := range refs {
				if c.replies[i].Status != workqueue.Settled {
					out.lost = append(out.lost, r)
					d.line.lostExt.Inc()
					if h, ok := ss.drop(queue, r.GetKey(), r.GetToken()); ok {
						out.freed = append(out.freed, h)
					}
					continue
				}
				remaining := time.Duration(c.replies[i].Deadline-c.now) * time.Microsecond
				ss.extended(queue, r.GetKey(), r.GetToken(), at.Add(remaining), c.replies[i].Deadline)
				out.kept, out.deadlines = append(out.kept, r), append(out.deadlines, c.replies[i].Deadline)
				if out.remaining == 0 || remaining < out.remaining {
					out.remaining = remaining
				}
			}
		}
		if left--; left == 0 {
			done(out)
		}
	}
	for queue, refs := range byQueue {
		d, err := s.queue(ctx, queue)
		if err != nil {
			part(nil, queue, refs, nil, err)
			continue
		}
		op := workqueue.Op{Kind: workqueue.OpExtend, For: leaseFor, Shorten: leaseFor < 0}
		switch {
		case leaseFor < 0:
			op.For = -leaseFor
		case leaseFor == 0:
			op.For = d.of.Config().LeaseFor.Microseconds()
		}
		ops := make([]workqueue.Op, len(refs))
		for i, r := range refs {
			ops[i] = op
			ops[i].Key, ops[i].Token = r.GetKey(), r.GetToken()
			if asked := ss.asked(queue, r); leaseFor == 0 && asked > 0 {
				ops[i].For = asked
			}
			if op.Shorten {
				ops[i].Known = ss.known(queue, r)
			}
		}
		d.submit(&call{ops: ops, done: func(c *call) { part(d, queue, refs, c, c.err) }})
	}
}
