package workqueue

// timers is a four-way heap of T by (time, key). The time of each is kept in
// the heap, so that sifting touches no T; each T keeps its place in it, -1 for
// not in, so that removal costs no search.
type timers[T any] struct {
	all []timed[T]
	at  func(*T) int64
	key func(*T) string
	pos func(*T) *int32
}

type timed[T any] struct {
	at int64
	it *T
}

const ways = 4

func (h *timers[T]) less(a, b *timed[T]) bool {
	if a.at != b.at {
		return a.at < b.at
	}
	return h.key(a.it) < h.key(b.it)
}

// fix puts a T in its place after its time was set or changed.
func (h *timers[T]) fix(it *T) {
	p := h.pos(it)
	if *p < 0 {
		*p = int32(len(h.all))
		h.all = append(h.all, timed[T]{})
	}
	h.down(h.up(int(*p), timed[T]{h.at(it), it}))
}

// remove takes a T out; it is nothing when it is not in.
func (h *timers[T]) remove(it *T) {
	p := h.pos(it)
	i := int(*p)
	if i < 0 {
		return
	}
	*p = -1
	last := len(h.all) - 1
	moved := h.all[last]
	h.all[last] = timed[T]{}
	h.all = h.all[:last]
	if i < last {
		h.down(h.up(i, moved))
	}
}

// next is the time of the first, zero when there is none.
func (h *timers[T]) next() int64 {
	if len(h.all) == 0 {
		return 0
	}
	return h.all[0].at
}

// due is the first if its time has come, else nil.
func (h *timers[T]) due(now int64) *T {
	if len(h.all) > 0 && h.all[0].at <= now {
		return h.all[0].it
	}
	return nil
}

func (h *timers[T]) put(i int, e timed[T]) {
	h.all[i] = e
	*h.pos(e.it) = int32(i)
}

// up puts e at i or above.
func (h *timers[T]) up(i int, e timed[T]) int {
	for i > 0 {
		parent := (i - 1) / ways
		if !h.less(&e, &h.all[parent]) {
			break
		}
		h.put(i, h.all[parent])
		i = parent
	}
	h.put(i, e)
	return i
}

func (h *timers[T]) down(i int) {
	e := h.all[i]
	for {
		first := ways*i + 1
		if first >= len(h.all) {
			break
		}
		child := first
		for c := first + 1; c < min(first+ways, len(h.all)); c++ {
			if h.less(&h.all[c], &h.all[child]) {
				child = c
			}
		}
		if !h.less(&h.all[child], &e) {
			break
		}
		h.put(i, h.all[child])
		i = child
	}
	h.put(i, e)
}
