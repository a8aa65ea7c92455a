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
		grown := make([]place, max(16, 2*len(r.buf)))
		for i := range r.size {
			grown[i] = r.buf[(r.head+i)%len(r.buf)]
		}
		r.buf, r.head = grown, 0
	}
	r.buf[(r.head+r.size)%len(r.buf)] = p
	r.size++
}

// pop returns the first item still in line here, nil when there is none.
func (r *ring) pop() *item {
	for r.size > 0 {
		p := r.buf[r.head]
		r.buf[r.head] = place{} // let the item go
		r.head = (r.head + 1) % len(r.buf)
		r.size--
		if p.it.state == Ready && p.it.seq == p.seq {
			return p.it
		}
	}
	return nil
}

// oldest is the first item still in line here without taking it.
func (r *ring) oldest() *item {
	for i := range r.size {
		p := r.buf[(r.head+i)%len(r.buf)]
		if p.it.state == Ready && p.it.seq == p.seq {
			return p.it
		}
	}
	return nil
}
