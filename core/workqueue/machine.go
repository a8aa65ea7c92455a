package workqueue

import (
	"github.com/deltaplane/deltaplane/core/backoff"
	"github.com/deltaplane/deltaplane/core/expectations"
)

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
	orphans   []*item // held without a deadline when the queue was restored
	last      int64   // when the latest transaction was

	// Of the transaction that is being applied.
	away  bool
	froms []float64
}

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
	m.Configure(0, cfg)
	return m
}

// Configure changes the queue while it runs. Keys keep their failures, due
// times and leases. The limiter's buckets start full. A dispatch limiter keeps
// its bucket with the same rate; with another one it starts full, or empty when
// it was empty, so that no change hands out a key more than either rate
// allows.
func (m *Machine) Configure(now int64, cfg Config) {
	was := m.cfg.Dispatch
	m.cfg = cfg.WithDefaults()
	m.tats = make([]float64, m.cfg.Limiter.Buckets())
	switch d := m.cfg.Dispatch; {
	case was == nil || d == nil:
		m.throttle = backoff.Throttle{}
	case *was != *d:
		m.throttle.Swap(now, was.QPS, was.Burst, d.QPS, d.Burst)
	}
}

// Config is the configuration in force, defaults filled in.
func (m *Machine) Config() Config { return m.cfg }

// Last is the time of the latest transaction, zero before the first.
func (m *Machine) Last() int64 { return m.last }

// Closed says whether adds are refused.
func (m *Machine) Closed() bool { return m.closed }

// Paused says whether leases are refused.
func (m *Machine) Paused() bool { return m.paused }

// Apply applies one transaction at a time and reports what it did. Time may stand
// still or step back; tokens grow nevertheless.
func (m *Machine) Apply(now int64, t *Transaction) *Result {
	r := &Result{Now: now, Replies: make([]Reply, len(t.Ops))}
	m.last = max(m.last, now)
	m.begin(t)
	for i := range t.Ops {
		m.applyOp(now, &t.Ops[i], &r.Replies[i], r)
	}
	m.promote(now, r)
	if !t.KeepLeases {
		m.reclaim(now, r)
	}
	m.lease(now, t, r)
	m.sweep(now, t)
	m.sweepBackoff(now)
	r.Counts = m.Counts()
	r.NextDue = m.nextDue(now, t.KeepLeases)
	if len(t.Ops) == 0 {
		r.NextSweep = m.nextSweep()
	}
	return r
}

// begin takes over what the transaction says of the buckets.
func (m *Machine) begin(t *Transaction) {
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
