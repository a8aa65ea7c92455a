package workqueue

import "github.com/deltaplane/deltaplane/core/expectations"

// putBack gives a key that nobody holds what a backup has of it. What the key has by now stays:
// barriers are merged, the earlier due time and the larger number of failures hold, and data,
// reason and expectations are taken where there are none. A key that is dead by now stays so; one
// that the backup has as dead is so only where nothing is to be run.
func (m *Machine) putBack(now int64, op *Op, more *More, rep *Reply, r *Result) {
	it := m.get(op.Key)
	if it.state == Processing || it.state == Dirty {
		rep.Status = Held
		return
	}
	m.expireBarrier(now, it)
	if !m.mergeBarrier(it, more.Barrier, rep) {
		return
	}
	a := it.more()
	if len(a.data) == 0 {
		a.data = more.Data
	}
	if a.reason == "" {
		a.reason = more.Reason
	}
	if more.Owner != "" && a.expect.Live(now) == nil {
		m.expect(it, expectations.Set{Owner: more.Owner, Creates: more.Creates, Deletes: more.Deletes, StoredAt: now})
		if a.expect.Live(now) == nil {
			m.expect(it, expectations.Set{})
		}
	}
	failures := min(max(op.Count, 0), 1<<30)
	if m.cfg.MaxRetries > 0 {
		failures = min(failures, m.cfg.MaxRetries) // more would say that a retry was refused while it is held
	}
	it.failures = max(it.failures, uint32(failures)) //nolint:gosec // at most 2^30
	switch {
	case it.state == StateDead:
	case op.Outcome == Dead && it.state == Idle && it.due == 0:
		m.markDead(it, r)
	case op.Outcome != Dead:
		if op.Outcome == Release {
			m.enqueue(now, it, op.Level, r)
		}
		if op.Delay > 0 && !(m.cfg.AbsorbDelays && it.state == Ready) {
			m.schedule(it, now+op.Delay, op.Level, false, false, 0)
		}
	}
	m.tidy(now, it)
}
