package workqueue

import "github.com/deltaplane/deltaplane/core/expectations"

// retryNow makes a delayed or dead key wait now, as an immediate add at the
// level of its due time would, also when the queue is closed. A dead key
// without one comes back at the default priority; its retries start over.
// Beside a place in line or a lease the due time is only cleared: the key
// waits, or runs once more. Nothing else is Unchanged.
func (m *Machine) retryNow(now int64, op *Op, rep *Reply, r *Result) {
	it := m.find(op.Key)
	rep.Status = Unchanged
	if it == nil || it.due == 0 && it.state != StateDead {
		return
	}
	level := Level(0)
	if it.due != 0 {
		level = it.dueLvl
		m.unschedule(it)
	}
	m.enqueue(now, it, level, r)
	m.tidy(now, it)
	rep.Status = OK
}

// revoke ends a lease as its expiry would, but is not counted as one: the key
// waits again at the tail of its line, the attempt is kept, nothing counts
// against it, and a pending due time stays.
func (m *Machine) revoke(now int64, op *Op, rep *Reply) {
	it := m.find(op.Key)
	if it == nil || it.state != Processing && it.state != Dirty {
		rep.Status = Unchanged
		return
	}
	m.requeue(now, it)
}

// remove drops everything that is known of a key that nobody holds. A key of
// which nothing can be seen any more is Unchanged.
func (m *Machine) remove(now int64, op *Op, rep *Reply) {
	it := m.find(op.Key)
	if it != nil && (it.state == Processing || it.state == Dirty) {
		rep.Status = Held
		return
	}
	if it != nil {
		m.expireBarrier(now, it)
		if it.aux != nil && it.expect.Live(now) == nil {
			m.expect(it, expectations.Set{})
		}
		m.drop(it)
		it = m.find(op.Key)
	}
	if it == nil {
		rep.Status = Unchanged
		return
	}
	switch it.state {
	case Ready: // its place in line is skipped
		m.counts.Ready--
	case StateDead:
		m.counts.Dead--
	}
	it.state, it.failures = Idle, 0
	m.unschedule(it)
	if it.aux != nil {
		m.barriers.remove(it)
		m.expects.remove(it)
		it.aux = nil
	}
	m.drop(it)
}
