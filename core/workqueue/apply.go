package workqueue

import (
	"cmp"

	"github.com/deltaplane/deltaplane/core/expectations"
)

var nothing = &More{}

// applyOp does one operation.
func (m *Machine) applyOp(now int64, op *Op, rep *Reply, r *Result) {
	more := cmp.Or(op.More, nothing)
	switch op.Kind {
	case OpAdd:
		m.add(now, op, more, rep, r)
	case OpSettle:
		m.settle(now, op, more, rep, r)
	case OpExtend:
		it, st := m.held(op)
		if rep.Status = st; st == Settled {
			m.extend(now, it, op)
			rep.Deadline = it.deadline
		}
	case OpForget:
		if it := m.find(op.Key); it != nil {
			it.failures = 0
			m.drop(it)
		}
	case OpRequeues:
		if it := m.find(op.Key); it != nil {
			rep.Requeues = int(it.failures)
		}
	case OpSave:
		it, st := m.held(op)
		if rep.Status = st; st == Settled && (len(more.Data) > 0 || it.aux != nil) {
			it.more().data = more.Data
			m.drop(it)
		}
	case OpExpect:
		it, st := m.held(op)
		if rep.Status = st; st == Settled {
			it.more()
			m.expect(it, expectations.Set{Owner: more.Owner, Creates: more.Creates, Deletes: more.Deletes, Token: op.Token, StoredAt: now})
			m.settleExpect(now, it)
		}
	case OpObserve:
		if it := m.find(op.Key); it != nil && it.aux != nil {
			m.expect(it, it.expect.Observe(more.Owner, more.Creates, more.Deletes))
			rep.Expect = it.expect.Live(now)
			m.settleExpect(now, it)
		}
	case OpUnexpect:
		if it := m.find(op.Key); it != nil && it.aux != nil {
			m.expect(it, expectations.Set{})
			m.drop(it)
		}
	case OpInspect:
		rep.Item = m.inspect(now, op.Key)
	case OpClose:
		m.closed = true
	case OpOpen:
		m.closed = false
	case OpPause:
		m.paused = true
	case OpResume:
		m.paused = false
	case OpRetryNow:
		m.retryNow(now, op, rep, r)
	case OpRevoke:
		m.revoke(now, op, rep)
	case OpDelete:
		m.remove(now, op, rep)
	case OpBackoffGet:
		m.backoffGet(op, rep)
	case OpBackoffNext:
		m.backoffNext(now, op, rep)
	case OpBackoffReset:
		m.backoffReset(op)
	case OpReserve:
		m.reserve(now, op.Count, rep)
	case OpAdmit:
		m.admit(now, op.Count, rep)
	case OpAudit:
		m.audit(now, rep)
	case OpPutBack:
		m.putBack(now, op, more, rep, r)
	}
}

// extend moves a deadline: later, but not past MaxProcessing after the lease's
// start, which its token tells (it is the time of the lease, or just after);
// or sooner, unless it was extended since Known.
func (m *Machine) extend(now int64, it *item, op *Op) {
	until := now + min(op.For, m.cfg.MaxLease.Microseconds())
	if op.Shorten {
		moved := op.Known != 0 && it.deadline > op.Known
		if moved || until > it.deadline {
			return
		}
	} else {
		if m.cfg.MaxProcessing > 0 {
			until = min(until, int64(it.token)+m.cfg.MaxProcessing.Microseconds())
		}
		if until <= it.deadline {
			return
		}
	}
	it.deadline = until
	m.leases.fix(it)
}

// settleExpect drops expectations that expect nothing any more.
func (m *Machine) settleExpect(now int64, it *item) {
	if it.expect.Live(now) == nil {
		m.expect(it, expectations.Set{})
	}
	m.drop(it)
}

// held checks a token: only the live lease's may change anything.
func (m *Machine) held(op *Op) (*item, Status) {
	it := m.find(op.Key)
	switch {
	case it == nil:
		return nil, NotLeased
	case it.state == Processing || it.state == Dirty:
		if it.token != op.Token {
			return it, Lost
		}
		return it, Settled
	case it.state == Ready && it.attempt > 0:
		return it, Lost
	}
	return it, NotLeased
}

// mergeBarrier adds marks to a key's barrier. Where that would be too many, the key stays as it is
// and the reply says so.
func (m *Machine) mergeBarrier(it *item, marks Barrier, rep *Reply) bool {
	a := it.more()
	merged := a.barrier.Merge(marks)
	if len(merged) > MaxMarks {
		rep.Status = BarrierFull
		m.drop(it)
		return false
	}
	a.barrier = merged
	return true
}

func (m *Machine) add(now int64, op *Op, more *More, rep *Reply, r *Result) {
	if m.closed {
		rep.Status = Closed
		return
	}
	it := m.get(op.Key)
	m.expireBarrier(now, it)
	if len(more.Barrier) > 0 && !m.mergeBarrier(it, more.Barrier, rep) {
		return
	}
	if op.Trace != "" {
		a := it.more()
		a.traces = append(a.traces[max(0, len(a.traces)-MaxTraces+1):len(a.traces):len(a.traces)], op.Trace)
	}
	if op.Limited || op.Delay > 0 {
		r.Retried++
	}
	switch delay := op.Delay; {
	case op.Limited && m.reserved(it, op):
		it.dueLvl = max(it.dueLvl, op.Level)
		rep.Status, rep.ReadyAt = Delayed, it.due
	case op.Limited && m.exhausted(it):
		m.refuse(now, it, op, rep, r)
	default:
		if op.Limited {
			delay = m.charge(now, it, r)
		}
		m.addIn(now, it, delay, op, rep, r)
	}
	rep.Requeues = int(it.failures)
	m.tidy(now, it)
}

// reserved says whether a limited add is free and changes nothing but the
// level, because the delay that the limiter gave the key before is pending:
// any with ReserveOnce, else that of an add with the same name.
func (m *Machine) reserved(it *item, op *Op) bool {
	return it.due != 0 && it.limited && (m.cfg.ReserveOnce || op.Once != 0 && it.aux != nil && op.Once == it.once)
}

// addIn adds after a delay in microseconds, now when it is not above zero.
func (m *Machine) addIn(now int64, it *item, delay int64, op *Op, rep *Reply, r *Result) {
	switch {
	case delay <= 0:
		rep.Status = m.enqueue(now, it, op.Level, r)
		m.absorb(it)
	case m.cfg.AbsorbDelays && (it.state == Ready || it.state == Dirty): // it waits or runs again anyway
		rep.Status = m.enqueue(now, it, op.Level, r)
	default:
		once := op.Once
		if !op.Limited {
			once = 0
		}
		m.schedule(it, now+delay, op.Level, op.Last, op.Limited, once)
		rep.Status, rep.ReadyAt = Delayed, it.due
	}
}
