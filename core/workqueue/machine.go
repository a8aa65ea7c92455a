package workqueue

import (
	"math"

	"github.com/deltaplane/deltaplane/core/backoff"
	"github.com/deltaplane/deltaplane/core/expectations"
)

// item is all that is known of one key. An item about which nothing is known
// any more is dropped.
type item struct {
	key     string
	state   State // Idle, Ready, Processing, Dirty or Buried
	level   uint8 // of the place in line, or of the lease
	again   uint8 // Dirty: level of the next run
	dueLvl  uint8 // level of the pending due time
	limited bool  // the limiter set the due time
	attempt uint16

	failures uint32
	seq      uint64
	token    uint64
	holder   string
	deadline int64
	addedAt  int64
	readyAt  int64
	dirtyAt  int64
	due      int64 // pending due time, zero for none

	duePos, leasePos, barrierPos int32
	slot                         int32
	saved                        uint32 // the last snapshot that has it, or need not
	*aux
}

// aux is what few keys have.
type aux struct {
	barrier      Barrier
	barrierUntil int64 // zero: while the key waits or is held
	traces       []string
	data         []byte
	expect       expectations.Set
	reason       string
	once         uint64 // name of the limited add that set the due time, zero for none
	expectPos    int32
}

// Machine is one queue. Make it with [New].
type Machine struct {
	cfg       Config
	items     slots[item]
	ready     [Levels]ring
	due       timers[item]
	leases    timers[item]
	barriers  timers[item]
	expects   timers[item] // by when expectations are void
	spare     []*item      // dropped items to use again; a place in line tells them apart by its number
	entries   slots[entry]
	aging     timers[entry] // back-off entries by when they were last moved
	counts    Counts        // Delayed is len(due.all)
	lastToken uint64
	granted   uint64 // leases ever granted
	seq       uint64
	tats      []float64        // of the limiter's buckets
	throttle  backoff.Throttle // of the dispatch limiter
	closed    bool
	paused    bool
	saving    *saving // the snapshot being taken
	snapshots uint32  // ever begun

	warmth int // keeps warm from being left out

	// Of the turn that is being applied.
	away  bool
	froms []float64
}

// big is from how many keys on their memory is far away.
const big = 1 << 16

// New returns an empty queue. The configuration must be valid.
func New(cfg Config) *Machine {
	m := &Machine{spare: make([]*item, 0, 1024)}
	m.items.init(func(i *item) *int32 { return &i.slot })
	m.entries.init(func(e *entry) *int32 { return &e.slot })
	key := func(i *item) string { return i.key }
	m.due = timers[item]{at: func(i *item) int64 { return i.due }, key: key, pos: func(i *item) *int32 { return &i.duePos }}
	m.leases = timers[item]{at: func(i *item) int64 { return i.deadline }, key: key, pos: func(i *item) *int32 { return &i.leasePos }}
	m.barriers = timers[item]{at: func(i *item) int64 { return i.barrierUntil }, key: key, pos: func(i *item) *int32 { return &i.barrierPos }}
	m.expects = timers[item]{
		at:  func(i *item) int64 { return i.expect.StoredAt + expectations.Expiry.Microseconds() },
		key: key,
		pos: func(i *item) *int32 { return &i.expectPos },
	}
	m.aging = timers[entry]{
		at:  func(e *entry) int64 { return e.Updated },
		key: func(e *entry) string { return e.id },
		pos: func(e *entry) *int32 { return &e.pos },
	}
	m.Configure(cfg)
	return m
}

// Configure changes the queue while it runs. Buckets and the dispatch limiter
// start full; keys keep their failures, due times and leases.
func (m *Machine) Configure(cfg Config) {
	m.cfg = cfg.WithDefaults()
	m.tats = make([]float64, m.cfg.Limiter.Buckets())
	m.throttle = backoff.Throttle{}
}

// Config is the configuration in force, defaults filled in.
func (m *Machine) Config() Config { return m.cfg }

// Closed says whether adds are refused.
func (m *Machine) Closed() bool { return m.closed }

// Paused says whether leases are refused.
func (m *Machine) Paused() bool { return m.paused }

// Turn applies one turn at a time and reports what it did. Time may stand
// still or step back; tokens grow nevertheless.
func (m *Machine) Turn(now int64, t *Turn) *Result {
	r := &Result{Now: now, Replies: make([]Reply, len(t.Ops))}
	m.begin(t)
	m.warm(t)
	for i := range t.Ops {
		m.apply(now, &t.Ops[i], &r.Replies[i], r)
	}
	m.promote(now, r)
	m.reclaim(now, r)
	m.lease(now, t, r)
	m.sweep(now)
	m.sweepBackoff(now, t, r)
	r.Counts = m.Counts()
	r.NextDue = m.nextDue(now)
	return r
}

// warm looks the keys of a turn up in a big queue before they are needed one
// after another: the processor then waits for several at a time.
func (m *Machine) warm(t *Turn) {
	if len(m.items.of) < big {
		return
	}
	for i := range t.Ops {
		if it := m.items.of[t.Ops[i].Key]; it != nil {
			m.warmth += int(it.state)
		}
	}
}

// begin takes over what the turn says of the buckets.
func (m *Machine) begin(t *Turn) {
	if m.away = t.Away; !m.away {
		return
	}
	m.froms = make([]float64, len(m.tats))
	for b := range min(len(m.froms), len(t.Reserved)) {
		m.froms[b] = t.Reserved[b].From
	}
}

// Counts is how many keys are in each state.
func (m *Machine) Counts() Counts {
	c := m.counts
	c.Delayed = len(m.due.all)
	return c
}

// OldestReady is when the longest waiting ready key became ready, zero when
// none is ready.
func (m *Machine) OldestReady() int64 {
	var oldest int64
	for l := range m.ready {
		if it := m.ready[l].first(); it != nil {
			oldest = earliest(oldest, it.readyAt)
		}
	}
	return oldest
}

func earliest(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// find is the item of a key that is about to be read or changed, or nil.
func (m *Machine) find(key string) *item {
	it := m.items.of[key]
	if it != nil && m.saving != nil {
		m.keep(it)
	}
	return it
}

func (m *Machine) get(key string) *item {
	it := m.find(key)
	if it == nil {
		if n := len(m.spare); n > 0 {
			it, m.spare = m.spare[n-1], m.spare[:n-1]
		} else {
			it = new(item)
		}
		*it = item{key: key, duePos: -1, leasePos: -1, barrierPos: -1}
		if m.saving != nil {
			it.saved = m.saving.number // it came after the snapshot
		}
		m.items.put(key, it)
	}
	return it
}

func (it *item) more() *aux {
	if it.aux == nil {
		it.aux = &aux{expectPos: -1}
	}
	return it.aux
}

// tidy drops what is not needed any more of an item that may have become idle,
// and arms the expiry of its barrier when nothing keeps it.
func (m *Machine) tidy(now int64, it *item) {
	if a := it.aux; a != nil {
		switch {
		case len(a.barrier) == 0:
			a.barrier, a.barrierUntil = nil, 0
			m.barriers.remove(it)
		case it.state == Idle || it.state == Buried:
			a.barrierUntil = max(now, it.due) + m.cfg.BarrierRetention.Microseconds()
			m.barriers.fix(it)
		default:
			a.barrierUntil = 0
			m.barriers.remove(it)
		}
	}
	m.drop(it)
}

// drop forgets the item if nothing is known of it.
func (m *Machine) drop(it *item) {
	if a := it.aux; a != nil && len(a.barrier) == 0 && len(a.traces) == 0 && len(a.data) == 0 && a.reason == "" && a.once == 0 && a.expect.Owner == "" {
		it.aux = nil
	}
	if it.state == Idle && it.due == 0 && it.failures == 0 && it.aux == nil && m.items.of[it.key] == it {
		m.items.remove(it.key, it)
		*it = item{} // let what it held go
		if len(m.spare) < cap(m.spare) {
			m.spare = append(m.spare, it)
		}
	}
}

// enqueue makes a key wait now, or run once more when it is held.
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
		if level > it.level { // P-01: a raised key goes to the tail of its new level
			it.level = level
			m.line(it)
		}
		return AlreadyQueued
	case Buried:
		m.counts.Dead--
		it.failures = 0
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
	m.ready[it.level].push(place{it, m.seq})
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
// run once more, where delays are absorbed (P-03). What time does (a key falls
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
		m.keep(it)
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
		m.keep(it)
		m.requeue(now, it)
		r.Expired++
	}
}

// requeue makes a held key wait again, at the tail of its line.
func (m *Machine) requeue(now int64, it *item) {
	level := it.level
	if it.state == Dirty {
		level = max(level, it.again)
	}
	m.unlease(it)
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

func (m *Machine) grant(now int64, it *item, take int, t *Take) Lease {
	lease := t.For
	if lease == 0 {
		lease = m.cfg.LeaseFor.Microseconds()
	}
	m.keep(it)
	m.lastToken = max(m.lastToken+1, uint64(max(now, 0)))
	it.state, it.token, it.holder, it.deadline = Processing, m.lastToken, t.Holder, now+lease
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

// expireBarrier drops an idle key's barrier whose time is over.
func (m *Machine) expireBarrier(now int64, it *item) {
	if a := it.aux; a != nil && a.barrierUntil != 0 && a.barrierUntil <= now {
		a.barrier, a.barrierUntil = nil, 0
		m.barriers.remove(it)
	}
}

// sweep frees what idle keys kept past its time. It changes nothing that can
// be seen: readers compare the times themselves.
func (m *Machine) sweep(now int64) {
	for range SweepMax {
		it := m.barriers.due(now)
		if it == nil {
			break
		}
		m.keep(it)
		m.expireBarrier(now, it)
		m.drop(it)
	}
	for range SweepMax {
		it := m.expects.due(now)
		if it == nil {
			return
		}
		m.keep(it)
		m.expect(it, expectations.Set{})
		m.drop(it)
	}
}

// expect replaces what is expected of a key that has an aux.
func (m *Machine) expect(it *item, s expectations.Set) {
	it.expect = s
	if s.Owner == "" {
		m.expects.remove(it)
	} else {
		m.expects.fix(it)
	}
}
