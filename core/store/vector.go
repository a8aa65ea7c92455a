package store

import "math/bits"

// vector maps slot ids to values. Like tree it is persistent: a vector value
// never changes, writes return another one that shares most of it. Parts
// without values are given back.
type vector[T any] struct{ root []*page[T] }

const (
	pageBits = 6
	pageLen  = 1 << pageBits
	pageMask = pageLen - 1
)

type page[T any] struct {
	owner  *edit
	fresh  uint64 // which leaves the owner has made
	counts [pageLen]uint8
	leaves [pageLen]*leaf[T]
}

type leaf[T any] [pageLen]*T

// get returns the value of a slot, nil when the slot is empty.
func (v vector[T]) get(id uint32) *T {
	r := int(id >> (2 * pageBits))
	if r >= len(v.root) || v.root[r] == nil {
		return nil
	}
	l := v.root[r].leaves[id>>pageBits&pageMask]
	if l == nil {
		return nil
	}
	return l[id&pageMask]
}

// bytes is about what the vector takes for values of so many slots.
func (v vector[T]) bytes(slots int) int {
	return 8*len(v.root) + 8*slots + slots/pageLen/pageLen*640
}

// editor writes into a vector on behalf of one edit.
type editor[T any] struct {
	vector[T]
	copied bool // whether the root is the edit's own
}

func (w *editor[T]) set(e *edit, id uint32, x *T) {
	r := int(id >> (2 * pageBits))
	if !w.copied {
		root := make([]*page[T], max(r+1, len(w.root)))
		copy(root, w.root)
		w.root, w.copied = root, true
	}
	for r >= len(w.root) {
		w.root = append(w.root, nil)
	}
	p := w.root[r]
	switch {
	case p == nil:
		p = &page[T]{owner: e}
	case p.owner != e:
		p = &page[T]{owner: e, counts: p.counts, leaves: p.leaves}
	}
	w.root[r] = p
	i := id >> pageBits & pageMask
	l := p.leaves[i]
	switch {
	case l == nil:
		l = new(leaf[T])
	case p.fresh&(1<<i) == 0:
		l = new(*l)
	}
	p.fresh |= 1 << i
	p.leaves[i] = l
	was := l[id&pageMask]
	l[id&pageMask] = x
	switch {
	case was == nil && x != nil:
		p.counts[i]++
	case was != nil && x == nil:
		p.counts[i]--
	}
	if p.counts[i] == 0 {
		p.leaves[i] = nil
		w.trim(r)
	}
}

// trim gives back page r if it is empty, and the end of the root.
func (w *editor[T]) trim(r int) {
	if w.root[r].counts != [pageLen]uint8{} {
		return
	}
	w.root[r] = nil
	n := len(w.root)
	for n > 0 && w.root[n-1] == nil {
		n--
	}
	w.root = w.root[:n]
}

// bitset is a set of slot ids.
type bitset []uint64

func (b *bitset) has(id uint32) bool {
	i := int(id >> 6)
	return i < len(*b) && (*b)[i]&(1<<(id&63)) != 0
}

func (b *bitset) add(id uint32) {
	i := int(id >> 6)
	for i >= len(*b) {
		*b = append(*b, 0)
	}
	(*b)[i] |= 1 << (id & 63)
}

func (b *bitset) del(id uint32) {
	if i := int(id >> 6); i < len(*b) {
		(*b)[i] &^= 1 << (id & 63)
	}
}

// slots gives out slot ids, the lowest free one first, so that what is kept by
// id stays dense after a burst. It is the writer's own.
type slots struct {
	used bitset
	hint int // no word before it has a free id
	n    int
}

func (s *slots) take() uint32 {
	for s.hint < len(s.used) && s.used[s.hint] == ^uint64(0) {
		s.hint++
	}
	id := uint32(s.hint) << 6
	if s.hint < len(s.used) {
		id += uint32(bits.TrailingZeros64(^s.used[s.hint]))
	}
	s.used.add(id)
	s.n++
	return id
}

func (s *slots) give(id uint32) {
	s.used.del(id)
	s.n--
	s.hint = min(s.hint, int(id>>6))
	n := len(s.used)
	for n > 0 && s.used[n-1] == 0 {
		n--
	}
	if s.used = s.used[:n]; cap(s.used) > 4*n+1024 {
		s.used = append(make(bitset, 0, n), s.used...)
	}
}
