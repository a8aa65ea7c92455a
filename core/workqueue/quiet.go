package workqueue

import "slices"

// Quiet says that a transaction would change nothing and lease nothing: it need not
// be remembered.
func (m *Machine) Quiet(now int64, t *Transaction) bool {
	for i := range t.Ops {
		switch t.Ops[i].Kind {
		case OpRequeues, OpInspect, OpBackoffGet:
		case OpAudit:
			if len(m.orphans) > 0 {
				return false
			}
		default:
			return false
		}
	}
	if m.due.due(now) != nil || !t.KeepLeases && m.leases.due(now) != nil || m.aging.due(now-m.cfg.Backoff.ExpireAfter.Microseconds()-1) != nil {
		return false
	}
	if m.counts.Ready == 0 || m.paused {
		return true
	}
	if d := m.cfg.Dispatch; d != nil && (t.Away && t.Admitted <= 0 || !t.Away && m.tokenAt(now) > now) {
		return true
	}
	return !slices.ContainsFunc(t.Takes, func(k Take) bool { return k.Max > 0 })
}
