package store

import (
	"slices"
	"unsafe"
)

// keyring says which key a slot has.
type keyring = vector[key]

// set is a set of slots in key order. The zero value is empty. A set value is
// never changed by later writes. Sets up to flatMax are one array of ids, a set
// of one is the id itself; larger ones are trees of such arrays, whose inner
// nodes hold keys, so that only the last steps of a search go through the
// keyring.
type set struct {
	root *inner
	flat *uint32 // the ids, if root is nil and there are several
	n    uint32
	room uint32 // capacity of flat; or the id of a set of one
}

const (
	flatMax  = 128 // ids in a flat set and in a leaf
	innerMax = 32  // kids of an inner node
)

// inner is a node of a set's tree: either over other inner nodes or over leaves.
type inner struct {
	owner  *edit
	seps   []*key // seps[i] is at or before the first of kid i+1, and after all of kid i
	kids   []*inner
	leaves []idLeaf
}

type idLeaf struct {
	owner *edit
	ids   []uint32
}

func (s set) len() int { return int(s.n) }

// ids returns the ids of a set without a tree; one is room for a set of one.
func (s set) ids(one *[1]uint32) []uint32 {
	if s.n == 1 {
		one[0] = s.room
		return one[:]
	}
	return unsafe.Slice(s.flat, s.n)
}

// flatSet makes a set of ids that are in order. It keeps ids.
func flatSet(ids []uint32) set {
	switch len(ids) {
	case 0:
		return set{}
	case 1:
		return set{n: 1, room: ids[0]}
	}
	return set{flat: unsafe.SliceData(ids), n: uint32(len(ids)), room: uint32(cap(ids))}
}

// search returns where a place is among ids, and whether its key is there.
func search(ks keyring, ids []uint32, p place) (int, bool) {
	i, j := 0, len(ids)
	for i < j {
		m := int(uint(i+j) >> 1)
		switch c := ks.get(ids[m]).compare(p); {
		case c == 0:
			return m, true
		case c < 0:
			i = m + 1
		default:
			j = m
		}
	}
	return i, false
}

// find returns the slot at a place.
func (s set) find(ks keyring, p place) (uint32, bool) {
	var one [1]uint32
	var ids []uint32
	if s.root == nil {
		ids = s.ids(&one)
	}
	for n := s.root; n != nil; {
		i := n.kid(p)
		if n.leaves != nil {
			ids = n.leaves[i].ids
			break
		}
		n = n.kids[i]
	}
	i, ok := search(ks, ids, p)
	if !ok {
		return 0, false
	}
	return ids[i], true
}

// put returns the set with a slot in it; nothing changes when it is there.
// owned says that the flat array, if any, was made by this edit.
func (s set) put(e *edit, ks keyring, id uint32, k *key, owned bool) set {
	p := k.place()
	if s.root == nil {
		ids := s.ids(new([1]uint32))
		i, found := search(ks, ids, p)
		switch {
		case found:
			return s
		case s.n == 0:
			return set{n: 1, room: id}
		case s.n < flatMax:
			owned = owned && s.n > 1
			if owned {
				ids = unsafe.Slice(s.flat, s.room)[:s.n]
			}
			return flatSet(insertID(ids, i, id, owned))
		}
		s.root = &inner{owner: e, leaves: []idLeaf{{ids: ids}}}
		s.flat, s.room = nil, 0
	}
	root, right, sep, added := s.root.put(e, ks, p, id, k)
	if !added {
		return s
	}
	s.n++
	s.root = root
	if right != nil {
		s.root = &inner{owner: e, seps: []*key{sep}, kids: []*inner{root, right}}
	}
	return s
}

// del returns the set without the slot at a place, and whether it was there.
func (s set) del(e *edit, ks keyring, p place, owned bool) (set, bool) {
	if s.root == nil {
		ids := s.ids(new([1]uint32))
		i, found := search(ks, ids, p)
		if !found {
			return s, false
		}
		return flatSet(deleteID(ids, i, owned && s.n > 1)), true
	}
	root, removed := s.root.del(e, ks, p)
	if !removed {
		return s, false
	}
	s.n--
	for root.leaves == nil && len(root.kids) == 1 {
		root = root.kids[0]
	}
	switch len(root.leaves) {
	case 1:
		return flatSet(slices.Clone(root.leaves[0].ids)), true
	default:
		s.root = root
		return s, true
	}
}

// insertID returns ids with one more, in place if they are owned and have room.
func insertID(ids []uint32, i int, id uint32, owned bool) []uint32 {
	if !owned || len(ids) == cap(ids) {
		room := len(ids) + 1
		if owned { // more will come
			room += len(ids)/4 + 3
		}
		ids = append(slices.Grow([]uint32(nil), room), ids...)
	}
	return slices.Insert(ids, i, id)
}

func deleteID(ids []uint32, i int, owned bool) []uint32 {
	if owned {
		return slices.Delete(ids, i, i+1)
	}
	return append(append(slices.Grow([]uint32(nil), len(ids)-1), ids[:i]...), ids[i+1:]...)
}

// each visits all slots in key order until visit says stop. It reports whether
// the walk came to its end.
func (s set) each(visit func(uint32) bool) bool {
	if s.root != nil {
		return s.root.each(visit)
	}
	var one [1]uint32
	for _, id := range s.ids(&one) {
		if !visit(id) {
			return false
		}
	}
	return true
}

// from is each from a place on, the key there included.
func (s set) from(ks keyring, p place, visit func(uint32) bool) bool {
	if s.root != nil {
		return s.root.from(ks, p, visit)
	}
	var one [1]uint32
	ids := s.ids(&one)
	i, _ := search(ks, ids, p)
	for _, id := range ids[i:] {
		if !visit(id) {
			return false
		}
	}
	return true
}

// bytes is about what the set takes beside its own struct.
func (s set) bytes() int {
	switch {
	case s.root != nil:
		return int(s.n)*4 + int(s.n)/flatMax*96
	case s.n > 1:
		return int(s.room) * 4
	}
	return 0
}
