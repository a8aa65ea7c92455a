package workqueue

import "github.com/deltaplane/deltaplane/core/backoff"

// entry is one back-off id. Ids are a name space apart from keys.
type entry struct {
	id string
	backoff.Entry
	pos, slot int32
}

// backoffGet reads an entry as it is, expired or not; entries that were swept
// are zero.
func (m *Machine) backoffGet(op *Op, rep *Reply) {
	if e := m.entries.of[op.Key]; e != nil {
		rep.Backoff = e.Entry
	}
}

func (m *Machine) backoffNext(now int64, op *Op, rep *Reply) {
	e := m.entries.of[op.Key]
	if e == nil {
		e = &entry{id: op.Key, pos: -1}
		m.entries.put(op.Key, e)
	}
	event := op.Event
	if event == 0 {
		event = now
	}
	e.Entry = m.cfg.Backoff.Growth().Next(e.Entry, event, now, op.Random)
	m.aging.fix(e)
	rep.Backoff = e.Entry
}

func (m *Machine) backoffReset(op *Op) {
	if e := m.entries.of[op.Key]; e != nil {
		m.forgetEntry(e)
	}
}

func (m *Machine) forgetEntry(e *entry) {
	m.aging.remove(e)
	m.entries.remove(e.id, e)
}

// nextSweep is when what is kept for a time expires next, zero for never.
func (m *Machine) nextSweep() int64 {
	next := earliest(m.barriers.next(), m.expects.next())
	if at := m.aging.next(); at != 0 {
		next = earliest(next, at+m.cfg.Backoff.ExpireAfter.Microseconds()+1)
	}
	return next
}

// sweepBackoff drops entries that expired at now, at most SweepMax, those that
// were not moved for the longest first (of equals the smaller id). It ends
// every transaction.
func (m *Machine) sweepBackoff(now int64) {
	for range SweepMax {
		e := m.aging.due(now - m.cfg.Backoff.ExpireAfter.Microseconds() - 1) // strictly longer
		if e == nil {
			return
		}
		m.forgetEntry(e)
	}
}
