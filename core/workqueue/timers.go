package workqueue

// timers is a heap of items by (time, key), with each item's place in it kept
// by set, so that removal costs no search.
type timers struct {
	all []*item
	at  func(*item) int64
	pos func(*item) *int32
}

func (h *timers) less(a, b *item) bool {
	if x, y := h.at(a), h.at(b); x != y {
		return x < y
	}
	return a.key < b.key
}

// fix puts an item in its place after its time was set or changed.
func (h *timers) fix(it *item) {
	p := h.pos(it)
	if *p < 0 {
		*p = int32(len(h.all))
		h.all = append(h.all, it)
	}
	h.down(h.up(int(*p)))
}

// remove takes an item out; it is nothing when the item is not in.
func (h *timers) remove(it *item) {
	p := h.pos(it)
	i := int(*p)
	if i < 0 {
		return
	}
	*p = -1
	last := len(h.all) - 1
	moved := h.all[last]
	h.all[last] = nil
	h.all = h.all[:last]
	if i < last {
		h.put(i, moved)
		h.down(h.up(i))
	}
}

// next is the time of the first item, zero when there is none.
func (h *timers) next() int64 {
	if len(h.all) == 0 {
		return 0
	}
	return h.at(h.all[0])
}

// due is the first item if its time has come, else nil.
func (h *timers) due(now int64) *item {
	if len(h.all) > 0 && h.at(h.all[0]) <= now {
		return h.all[0]
	}
	return nil
}

func (h *timers) put(i int, it *item) {
	h.all[i] = it
	*h.pos(it) = int32(i)
}

func (h *timers) up(i int) int {
	it := h.all[i]
	for i > 0 {
		parent := (i - 1) / 2
		if !h.less(it, h.all[parent]) {
			break
		}
		h.put(i, h.all[parent])
		i = parent
	}
	h.put(i, it)
	return i
}

func (h *timers) down(i int) {
	it := h.all[i]
	for {
		child := 2*i + 1
		if child >= len(h.all) {
			break
		}
		if r := child + 1; r < len(h.all) && h.less(h.all[r], h.all[child]) {
			child = r
		}
		if !h.less(h.all[child], it) {
			break
		}
		h.put(i, h.all[child])
		i = child
	}
	h.put(i, it)
}
