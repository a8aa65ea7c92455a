package workqueue

import (
	"fmt"
	"slices"
)

// enqueue makes a key wait now, or run once more when it is leased.
func (m *Machine) enqueue(now int64, it *item, level uint8, r *Result) Status {
	switch it.state {
	case Processing:
		it.state, it.again, it.dirtyAt = Dirty, level, now
		m.counts.Dirty++
		r.Added++
		return MarkedDirty
	case Dirty:
		it.again = max(it.again, level)
		return MarkedDirty
	case Ready:
		if level > it.level { // a raised key goes to the tail of its new level
			it.level = level
			m.line(it)
		}
		return AlreadyQueued
	case StateDead:
		m.counts.Dead--
		it.failures = 0
		if it.aux != nil {
			it.holders = nil
		}
	}
	m.expireBarrier(now, it)
	it.addedAt = now
	it.attempt = 0
	r.Added++
	m.push(now, it, level)
	return Queued
}

// push puts an item at the tail of its line.
func (m *Machine) push(now int64, it *item, level uint8) {
	it.state, it.level, it.readyAt = Ready, level, now
	m.counts.Ready++
	m.line(it)
}

func (m *Machine) line(it *item) {
	m.seq++
	it.seq = m.seq
	r := &m.ready[it.level]
	if r.size > 0 && r.size == len(r.buf) && m.left() > r.size/2 {
		r.compact()
	}
	r.push(place{it, m.seq})
}

// left is how many places in all lines are of keys that left them, about.
func (m *Machine) left() int {
	n := -m.counts.Ready
	for l := range m.ready {
		n += m.ready[l].size
	}
	return n
}

// schedule sets the pending due time: the earliest wins unless last.
// Whose it is, the limiter's and the add's of that name, is kept beside it.
func (m *Machine) schedule(it *item, due int64, level uint8, last, limited bool, once uint64) {
	if it.due == 0 || last || due < it.due {
		if it.due == 0 {
			it.dueLvl = level
		}
		it.due, it.limited = due, limited
		if once != 0 {
			it.more().once = once
		} else if it.aux != nil {
			it.once = 0
		}
	}
	it.dueLvl = max(it.dueLvl, level)
	m.due.fix(it)
}

// unschedule clears the pending due time, if there is one.
func (m *Machine) unschedule(it *item) {
	it.due, it.limited = 0, false
	if it.aux != nil {
		it.once = 0
	}
	m.due.remove(it)
}

// absorb clears the pending due time of a key that an operation makes wait or
// run once more, where delays are absorbed. What time does (a key falls
// due, a lease expires) and a revoked lease leave it alone.
func (m *Machine) absorb(it *item) {
	if m.cfg.AbsorbDelays {
		m.unschedule(it)
	}
}

// promote adds the keys whose due time has come.
func (m *Machine) promote(now int64, r *Result) {
	for range SweepMax {
		it := m.due.due(now)
		if it == nil {
			return
		}
		m.unschedule(it)
		m.enqueue(now, it, it.dueLvl, r)
		m.tidy(now, it)
		r.Promoted++
	}
}

// reclaim makes keys whose lease expired wait again, exactly once, uncounted.
func (m *Machine) reclaim(now int64, r *Result) {
	for range SweepMax {
		it := m.leases.due(now)
		if it == nil {
			return
		}
		m.expire(now, it, r)
		r.Expired++
	}
}

// expire ends a lease that was not settled in time. A key whose leases ended so
// too often is dead, unless it was added meanwhile: an add is never lost.
func (m *Machine) expire(now int64, it *item, r *Result) {
	if m.cfg.MaxDeliveries > 0 {
		a := it.more()
		a.holders = append(slices.Clone(a.holders[max(0, len(a.holders)-MaxHolders+1):]), it.holder)
		if it.state == Processing && int(it.attempt) >= m.cfg.MaxDeliveries {
			a.reason = fmt.Sprintf("handed out %d times and never settled (max_deliveries %d)", it.attempt, m.cfg.MaxDeliveries)
			m.unlease(it)
			it.attempt = 0
			m.markDead(it, r)
			m.tidy(now, it)
			return
		}
	}
	m.requeue(now, it)
}

// markDead makes a key dead that nobody holds and that does not wait.
func (m *Machine) markDead(it *item, r *Result) {
	it.state = StateDead
	m.counts.Dead++
	r.Died++
}

// requeue makes a held key wait again, at the tail of its line.
func (m *Machine) requeue(now int64, it *item) {
	level := it.level
	if it.state == Dirty {
		level = max(level, it.again)
	}
	m.unlease(it)
	if m.cfg.MaxRetries > 0 { // a retry that was refused while it was held: it runs again all the same
		it.failures = min(it.failures, uint32(m.cfg.MaxRetries)) //nolint:gosec // at most 2^30
	}
	m.push(now, it, level)
}

// unlease ends the lease; the caller decides what comes next.
func (m *Machine) unlease(it *item) {
	if it.state == Dirty {
		m.counts.Dirty--
	}
	m.counts.Processing--
	m.leases.remove(it)
	it.state, it.token, it.holder, it.deadline = Idle, 0, "", 0
}
