package workqueue

import (
	"fmt"
	"slices"
)

// settle ends a lease with an outcome, if the token is the live one.
func (m *Machine) settle(now int64, op *Op, more *More, rep *Reply, r *Result) {
	it, st := m.held(op)
	if rep.Status = st; st != Settled {
		return
	}
	if it.aux != nil || len(more.Wrote) > 0 || more.Reason != "" {
		a := it.more()
		// What was written stays whatever was read: the next worker may read elsewhere.
		read := slices.DeleteFunc(slices.Clone(more.Barrier), func(r Mark) bool {
			return slices.ContainsFunc(more.Wrote, func(w Mark) bool { return w.Collection == r.Collection })
		})
		a.barrier = a.barrier.Merge(more.Wrote).Above(read)
		if len(a.barrier) > MaxMarks {
			a.barrier = a.barrier[:MaxMarks]
		}
		if more.Reason != "" || op.Outcome == Done || op.Outcome == Forget {
			a.reason = more.Reason
		}
		a.holders = nil
	}
	level, added, dirty := it.level, it.addedAt, it.state == Dirty
	if op.Relevel {
		level = op.Level
	}
	m.unlease(it)
	it.attempt = 0

	dead := op.Outcome == Dead
	delay := int64(-1) // no second run
	switch op.Outcome {
	case Done:
		dead = m.cfg.MaxRetries > 0 && int(it.failures) > m.cfg.MaxRetries && it.due == 0 // a retry was refused
	case Forget:
		it.failures = 0
	case Retry:
		if dead = m.exhausted(it); !dead {
			delay = m.charge(now, it, r)
			r.Retried++
		}
	case After:
		it.failures = 0
		delay = op.Delay
		r.Retried++
	case Release:
		delay = op.Delay
	}
	rep.Requeues = int(it.failures)

	if delay > 0 && !(dirty && m.cfg.AbsorbDelays) {
		m.schedule(it, now+delay, level, false, op.Outcome == Retry, 0)
		rep.ReadyAt = it.due
	}
	switch {
	case dirty: // exactly one more run, at the tail
		rep.Status, rep.ReadyAt = Requeued, now
		if delay == 0 {
			level = max(level, it.again)
		} else {
			level = it.again
		}
		it.addedAt = it.dirtyAt
		m.push(now, it, level)
		m.absorb(it)
	case delay == 0:
		rep.ReadyAt = now
		it.addedAt = now
		if op.Outcome == Release {
			it.addedAt = added
		} else {
			r.Added++
		}
		m.push(now, it, level)
		m.absorb(it)
	case dead:
		m.markDead(it, r)
		m.unschedule(it)
		if op.Outcome != Dead {
			m.retriedOut(it)
		}
	}
	m.tidy(now, it)
}

// exhausted says that a key was retried as often as MaxRetries allows.
func (m *Machine) exhausted(it *item) bool {
	return m.cfg.MaxRetries > 0 && int(it.failures) >= m.cfg.MaxRetries
}

// retriedOut says why a key is dead, unless its worker did.
func (m *Machine) retriedOut(it *item) {
	if a := it.more(); a.reason == "" {
		a.reason = fmt.Sprintf("retried %d times (max_retries)", m.cfg.MaxRetries)
	}
}

// refuse answers a limited add beyond MaxRetries. A key that runs anyway runs;
// one that is held is dead once it is settled as Done, which failures above
// MaxRetries tell; any other is dead now.
func (m *Machine) refuse(now int64, it *item, op *Op, rep *Reply, r *Result) {
	switch {
	case it.state == Ready || it.state == Dirty:
		rep.Status = m.enqueue(now, it, op.Level, r)
	case it.due != 0:
		it.dueLvl = max(it.dueLvl, op.Level)
		rep.Status, rep.ReadyAt = Delayed, it.due
	case it.state == Processing:
		it.failures = uint32(m.cfg.MaxRetries) + 1 //nolint:gosec // at most 2^30
		rep.Status = Died
	default:
		if it.state != StateDead {
			m.markDead(it, r)
			m.retriedOut(it)
		}
		rep.Status = Died
	}
}
