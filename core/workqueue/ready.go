package workqueue

// ring is a FIFO of places in line. A place whose number is no longer its
// item's is skipped: that is how a key leaves a line without a search.
type ring struct {
	buf        []place
	head, size int
}

type place struct {
	it  *item
	seq uint64
}

func (r *ring) push(p place) {
	if r.size == len(r.buf) {
		r.resize(max(16, 2*len(r.buf)))
	}
	r.buf[(r.head+r.size)&(len(r.buf)-1)] = p
	r.size++
}

// compact leaves out the places of items that left the line, and makes room
// for more when those were few.
func (r *ring) compact() {
	kept := 0
	for i := range r.size {
		if p := r.buf[(r.head+i)&(len(r.buf)-1)]; p.it.state == Ready && p.it.seq == p.seq {
			r.buf[(r.head+kept)&(len(r.buf)-1)] = p
			kept++
		}
	}
	for i := kept; i < r.size; i++ {
		r.buf[(r.head+i)&(len(r.buf)-1)] = place{}
	}
	if r.size = kept; kept > len(r.buf)/2 {
		r.resize(2 * len(r.buf))
	}
}

// resize moves to a buffer of n places, a power of two.
func (r *ring) resize(n int) {
	buf := make([]place, n)
	for i := range r.size {
		buf[i] = r.buf[(r.head+i)&(len(r.buf)-1)]
	}
	r.buf, r.head = buf, 0
}

// first is the first item still in line here, nil when there is none.
func (r *ring) first() *item {
	for r.size > 0 {
		if p := r.buf[r.head]; p.it.state == Ready && p.it.seq == p.seq {
			return p.it
		}
		r.skip()
	}
	return nil
}

// pop takes the first item still in line here, nil when there is none.
func (r *ring) pop() *item {
	it := r.first()
	if it != nil {
		r.skip()
	}
	return it
}

func (r *ring) skip() {
	r.buf[r.head] = place{} // so that the item can be collected
	r.head = (r.head + 1) & (len(r.buf) - 1)
	r.size--
	if len(r.buf) > 1024 && r.size < len(r.buf)/8 {
		r.resize(len(r.buf) / 2)
	}
}

// pick takes the next key to lease; one must be ready. It is the first of the
// highest level, except that every [AgedShare]th lease of the partition goes
// to the longest waiting of the first keys of all levels once that has waited
// longer than the aging, of equals to the higher level.
func (m *Machine) pick(now int64) *item {
	if m.granted%AgedShare == AgedShare-1 {
		if l := m.aged(now); l >= 0 {
			return m.ready[l].pop()
		}
	}
	for l := Levels - 1; l > 0; l-- {
		if it := m.ready[l].pop(); it != nil {
			return it
		}
	}
	return m.ready[0].pop()
}

// aged is the level whose first key has waited too long, -1 for none.
func (m *Machine) aged(now int64) int {
	level, oldest := -1, int64(0)
	for l := Levels - 1; l >= 0; l-- {
		if it := m.ready[l].first(); it != nil && (level < 0 || it.readyAt < oldest) {
			level, oldest = l, it.readyAt
		}
	}
	if level >= 0 && now-oldest > m.cfg.Aging.Microseconds() {
		return level
	}
	return -1
}
