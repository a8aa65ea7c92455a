package workqueue

import "math"

// MaxTokens bounds what one OpReserve takes of each bucket and what one
// OpAdmit admits.
const MaxTokens = 4096

// charge is one call of the limiter for an item, in microseconds. In a
// transaction that is Away the buckets' tokens are the reserved ones, in order: token
// k of bucket b is at Reserved[b].From plus k intervals, added one by one.
// More charges than there are tokens go on from there, and a bucket that
// Reserved leaves out delays nothing.
func (m *Machine) charge(now int64, it *item, r *Result) int64 {
	var us float64
	if m.away {
		us = m.cfg.Limiter.Spend(int(it.failures), now, m.froms)
		r.Spent++
	} else {
		us = m.cfg.Limiter.Micros(int(it.failures), now, m.tats)
	}
	it.failures = min(it.failures, math.MaxInt32-1) + 1
	return int64(min(us, float64(MaxDelay.Microseconds())))
}

// reserve takes tokens of every bucket for another partition: From is where
// they begin, max(tat, now), and the bucket goes on n intervals later. Count
// is cut at MaxTokens. A negative count gives back what was not spent: every
// bucket goes back as many intervals.
func (m *Machine) reserve(now int64, n int, rep *Reply) {
	switch n = min(n, MaxTokens); {
	case n > 0:
		rep.Count, rep.From = n, m.cfg.Limiter.Reserve(n, now, m.tats)
	case n < 0:
		m.cfg.Limiter.Return(-n, m.tats)
	}
}

// admit takes tokens of the dispatch limiter for another partition, one by
// one, at most MaxTokens: Count is how many were there, and when that is fewer
// than asked for, Next is when the next one is there, now at the earliest. A
// negative count gives back. Without a dispatch limiter all are admitted.
func (m *Machine) admit(now int64, n int, rep *Reply) {
	d := m.cfg.Dispatch
	switch {
	case d == nil:
		rep.Count = min(max(n, 0), MaxTokens)
	case n < 0:
		m.throttle.Return(-n, d.QPS)
	default:
		for rep.Count < min(n, MaxTokens) && m.throttle.Take(now, d.QPS, d.Burst) {
			rep.Count++
		}
		if rep.Count < n {
			rep.Next = max(now, m.tokenAt(now))
		}
	}
}

// tokenAt is when the dispatch limiter has its next token.
func (m *Machine) tokenAt(now int64) int64 {
	return int64(math.Ceil(m.throttle.At(now, m.cfg.Dispatch.QPS, m.cfg.Dispatch.Burst)))
}

// lease hands out ready keys, as many as are asked for and the dispatch
// limiter allows.
func (m *Machine) lease(now int64, t *Transaction, r *Result) {
	if m.paused || m.counts.Ready == 0 {
		return
	}
	want := 0
	for i := range t.Takes {
		want = min(want+max(t.Takes[i].Max, 0), m.counts.Ready)
	}
	if want == 0 {
		return
	}
	r.Leases = make([]Lease, 0, want)
	d := m.cfg.Dispatch
	for i := range t.Takes {
		for range t.Takes[i].Max {
			switch {
			case m.counts.Ready == 0:
				return
			case d == nil:
			case t.Away && len(r.Leases) >= t.Admitted, !t.Away && !m.throttle.Take(now, d.QPS, d.Burst):
				return
			}
			r.Leases = append(r.Leases, m.grant(now, m.pick(now), i, &t.Takes[i]))
		}
	}
}

func (m *Machine) grant(now int64, it *item, take int, t *Take) Lease {
	m.lastToken = max(m.lastToken+1, uint64(max(now, 0)))
	it.state, it.token, it.holder, it.deadline = Processing, m.lastToken, t.Holder, now+m.cfg.Capped(t.For)
	it.attempt = min(it.attempt, math.MaxUint16-1) + 1
	m.granted++
	m.counts.Ready--
	m.counts.Processing++
	m.leases.fix(it)
	l := Lease{
		Take: take, Key: it.key, Token: it.token, Deadline: it.deadline,
		AddedAt: it.addedAt, ReadyAt: it.readyAt, Level: it.level, Attempt: int(it.attempt), Requeues: int(it.failures),
	}
	if a := it.aux; a != nil {
		l.Barrier, l.Traces, l.State, l.Expect = a.barrier, a.traces, a.data, a.expect.Live(now)
		a.traces = nil
		m.drop(it)
	}
	return l
}

// nextDue is the Result's: a token counts while nothing but its lack holds
// back a ready key, whether somebody asks for one or not.
func (m *Machine) nextDue(now int64, keep bool) int64 {
	next := m.due.next()
	if !keep {
		next = earliest(next, m.leases.next())
	}
	if m.cfg.Dispatch != nil && !m.away && !m.paused && m.counts.Ready > 0 {
		if at := m.tokenAt(now); at > now {
			next = earliest(next, at)
		}
	}
	return next
}
