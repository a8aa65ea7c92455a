package workqueue

import (
	"cmp"
	"slices"
)

// Restore makes a queue from a snapshot.
func Restore(s *Snapshot) *Machine {
	r := NewRestorer(s)
	r.Add(s.Items, s.Entries)
	return r.Done()
}

// Restorer makes a queue from a snapshot in parts.
type Restorer struct {
	m     *Machine
	ready []*item
}

// NewRestorer begins with all of a snapshot but its Items and Entries.
func NewRestorer(s *Snapshot) *Restorer {
	m := New(s.Config)
	m.closed, m.paused, m.lastToken, m.granted, m.seq = s.Closed, s.Paused, s.LastToken, s.Granted, s.Seq
	copy(m.tats, s.Buckets)
	m.throttle.TAT, m.last = s.Throttle, s.Last
	return &Restorer{m: m}
}

// Add takes keys and ids in any order, each once.
func (r *Restorer) Add(items []SavedItem, entries []SavedEntry) {
	for i := range items {
		r.add(&items[i])
	}
	for _, v := range entries {
		e := &entry{id: v.ID, Entry: v.BackoffEntry, pos: -1}
		r.m.entries.put(v.ID, e)
		r.m.aging.fix(e)
	}
}

func (r *Restorer) add(v *SavedItem) {
	m := r.m
	it := m.get(v.Key)
	it.state, it.level, it.again, it.dueLvl, it.limited = v.State, v.Level%Levels, v.Again%Levels, v.DueLevel%Levels, v.DueLimited
	it.attempt, it.failures, it.seq = v.Attempt, v.Failures, v.Seq
	it.addedAt, it.readyAt, it.dirtyAt, it.due = v.AddedAt, v.ReadyAt, v.DirtyAt, v.Due
	if v.Barrier != nil || v.Traces != nil || v.Data != nil || v.Reason != "" || v.Holders != nil || v.DueOnce != 0 || v.Expect != nil {
		it.aux = &aux{barrier: v.Barrier, barrierUntil: v.BarrierUntil, traces: v.Traces, data: v.Data, reason: v.Reason, holders: v.Holders, once: v.DueOnce, expectPos: -1}
		if v.Expect != nil {
			m.expect(it, *v.Expect)
		}
		if it.barrierUntil != 0 {
			m.barriers.fix(it)
		}
	}
	switch it.state {
	case Ready:
		m.counts.Ready++
		r.ready = append(r.ready, it)
	case Dirty:
		m.counts.Dirty++
		fallthrough
	case Processing:
		m.counts.Processing++
		it.token, it.holder, it.deadline = v.Token, v.Holder, v.Deadline
		if it.deadline == 0 { // nobody knows until when it was granted
			m.orphans = append(m.orphans, it)
		} else {
			m.leases.fix(it)
		}
	case StateDead:
		m.counts.Dead++
	}
	if it.due != 0 {
		m.due.fix(it)
	}
	m.drop(it)
}

// Done lines the ready keys up and is the queue.
func (r *Restorer) Done() *Machine {
	slices.SortFunc(r.ready, func(a, b *item) int { return cmp.Compare(a.seq, b.seq) })
	for _, it := range r.ready {
		r.m.ready[it.level].push(place{it, it.seq})
	}
	return r.m
}

// Correct takes in that the clock was set right by so much, to now, after it
// had stepped. Leases may have been granted while it was wrong: each lasts as
// long as it was granted for at least, and none longer than the longest there is.
func (m *Machine) Correct(now, by int64) {
	most := now + m.cfg.MaxLease.Microseconds()
	for _, e := range slices.Clone(m.leases.all) {
		e.it.deadline = min(max(e.it.deadline, e.it.deadline+by), most)
		m.leases.fix(e.it)
	}
	if d := m.cfg.Dispatch; d != nil {
		m.throttle.TAT = min(m.throttle.TAT, float64(now)+float64(d.Burst)*(1e6/d.QPS))
	}
}

// EndLeases brings the deadline of every lease forward to at, when it is later.
func (m *Machine) EndLeases(at int64) {
	for _, e := range slices.Clone(m.leases.all) {
		if it := e.it; it.deadline > at {
			it.deadline = at
			m.leases.fix(it)
		}
	}
}

// audit gives keys that are held without a deadline one, as late as any that a
// living holder can have been granted. Only a queue that was restored can have
// such keys: everywhere else a deadline is set and ends with the lease.
func (m *Machine) audit(now int64, rep *Reply) {
	for n := 0; n < SweepMax && len(m.orphans) > 0; n++ {
		it := m.orphans[0]
		m.orphans = m.orphans[1:]
		if (it.state == Processing || it.state == Dirty) && it.leasePos < 0 { // not settled or extended meanwhile
			it.deadline = now + m.cfg.MaxLease.Microseconds()
			m.leases.fix(it)
			rep.Count++
		}
	}
	if len(m.orphans) == 0 {
		m.orphans = nil
		return
	}
	rep.Next = 1
}
