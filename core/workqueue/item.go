package workqueue

import "github.com/deltaplane/deltaplane/core/expectations"

// item is all that is known of one key. An item about which nothing is known
// any more is dropped.
type item struct {
	key     string
	state   State // Idle, Ready, Processing, Dirty or StateDead
	level   uint8 // of the place in line, or of the lease
	again   uint8 // Dirty: level of the next run
	dueLvl  uint8 // level of the pending due time
	limited bool  // the limiter set the due time
	attempt uint16

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
	failures                     uint32
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
	holders      []string // never changed in place
	once         uint64   // name of the limited add that set the due time, zero for none
	expectPos    int32
}

// find is the item of a key, or nil.
func (m *Machine) find(key string) *item { return m.items.of[key] }

func (m *Machine) get(key string) *item {
	it := m.find(key)
	if it == nil {
		if n := len(m.spare); n > 0 {
			it, m.spare = m.spare[n-1], m.spare[:n-1]
		} else {
			it = new(item)
		}
		*it = item{key: key, duePos: -1, leasePos: -1, barrierPos: -1}
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
		case it.state == Idle || it.state == StateDead:
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
	if a := it.aux; a != nil && len(a.barrier) == 0 && len(a.traces) == 0 && len(a.data) == 0 && a.reason == "" && len(a.holders) == 0 && a.once == 0 && a.expect.Owner == "" {
		it.aux = nil
	}
	if it.state == Idle && it.due == 0 && it.failures == 0 && it.aux == nil && m.items.of[it.key] == it {
		m.items.remove(it.key, it)
		*it = item{} // so that its objects can be collected
		if len(m.spare) < cap(m.spare) {
			m.spare = append(m.spare, it)
		}
	}
}

// expireBarrier drops an idle key's barrier whose time is over.
func (m *Machine) expireBarrier(now int64, it *item) {
	if a := it.aux; a != nil && a.barrierUntil != 0 && a.barrierUntil <= now {
		a.barrier, a.barrierUntil = nil, 0
		m.barriers.remove(it)
	}
}

// sweep frees what idle keys kept past its time. It changes nothing that can
// be seen: readers compare the times themselves. A transaction without operations,
// which nobody waits for, frees more.
func (m *Machine) sweep(now int64, t *Transaction) {
	most := SweepMax
	if len(t.Ops) == 0 {
		most *= 16
	}
	for range most {
		it := m.barriers.due(now)
		if it == nil {
			break
		}
		m.expireBarrier(now, it)
		m.drop(it)
	}
	for range most {
		it := m.expects.due(now)
		if it == nil {
			return
		}
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
