package workqueue

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
