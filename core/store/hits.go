package store

import (
	"iter"
	"math"
	"slices"
)

// Hits is the answer of an index: a set of keys in key order. It shares the
// index's own posting list when one value was asked for. The zero value is
// empty.
type Hits struct {
	snap *Snapshot
	one  set
	many []uint32
}

// Len is the number of keys.
func (h Hits) Len() int { return h.one.len() + len(h.many) }

// With returns the keys of both, which are of one snapshot, each once.
func (h Hits) With(others Hits) Hits {
	switch {
	case others.Len() == 0:
		return h
	case h.Len() == 0:
		return others
	}
	return Hits{snap: h.snap, many: merge(h.snap.keyring, h.list(), others.list())}
}

// list returns the ids in key order. It must not be changed.
func (h Hits) list() []uint32 {
	if h.many != nil {
		return h.many
	}
	return h.one.list()
}

// Keys returns the keys in order, so that IndexKeys is sorted.
func (h Hits) Keys() []string {
	keys := make([]string, 0, h.Len())
	for key := range h.KeysAfter("") {
		keys = append(keys, key)
	}
	return keys
}

// After walks the objects in key order, those after the given key; "" begins
// at the first.
func (h Hits) After(after string) iter.Seq[*Object] {
	return func(yield func(*Object) bool) { h.snap.walk(h, after, yield, nil) }
}

// KeysAfter walks the keys alone, which spares a look at each object: that is
// several loads from far memory for each.
func (h Hits) KeysAfter(after string) iter.Seq[string] {
	return func(yield func(string) bool) { h.snap.walk(h, after, nil, yield) }
}

// walk visits the objects, or the keys. It looks some slots ahead, so that
// their loads from far memory overlap: that is most of the time it takes.
func (s *Snapshot) walk(h Hits, after string, objects func(*Object) bool, keys func(string) bool) {
	const ahead = 32
	var ids [ahead]uint32
	n := 0
	flush := func() bool {
		if keys != nil {
			return s.visitKeys(ids[:n], keys)
		}
		return s.visitObjects(ids[:n], objects)
	}
	limit := 4 // who stops early should not pay for many
	if h.each(after, func(id uint32) bool {
		ids[n] = id
		if n++; n < limit {
			return true
		}
		ok := flush()
		n, limit = 0, ahead
		return ok
	}) {
		flush()
	}
}

func (s *Snapshot) visitKeys(ids []uint32, yield func(string) bool) bool {
	var ks [32]*key
	var texts [32]string
	for i, id := range ids {
		ks[i&31] = s.keyring.get(id)
	}
	for i := range ids {
		texts[i&31] = ks[i&31].String()
	}
	for i := range ids {
		if !yield(texts[i&31]) {
			return false
		}
	}
	return true
}

func (s *Snapshot) visitObjects(ids []uint32, yield func(*Object) bool) bool {
	var objects [32]*Object
	var ks [32]*key
	for i, id := range ids {
		objects[i&31] = s.objects.get(id)
	}
	size := uint32(0)
	n := 0
	for i := range ids {
		o := objects[i&31]
		size |= o.size          // lies in the object's other half
		if o.stored <= o.size { // in a frame there is all that most readers want
			ks[n&31] = o.key
			n++
		}
	}
	for i := range n {
		if ks[i&31].n == 0 && size == math.MaxUint32 { // loads the key's first bytes
			return false
		}
	}
	for i := range ids {
		if !yield(objects[i&31]) {
			return false
		}
	}
	return true
}

// each visits the slots after a key. It reports whether it came to the end.
func (h Hits) each(after string, visit func(uint32) bool) bool {
	if h.Len() == 0 {
		return true
	}
	if after != "" {
		next, first := visit, true
		visit = func(id uint32) bool {
			if first {
				first = false
				if h.snap.keyring.get(id).String() == after {
					return true
				}
			}
			return next(id)
		}
	}
	switch {
	case h.many != nil:
		i := 0
		if after != "" {
			i, _ = search(h.snap.keyring, h.many, placeOf(after))
		}
		for _, id := range h.many[i:] {
			if !visit(id) {
				return false
			}
		}
		return true
	case after == "":
		return h.one.each(visit)
	default:
		return h.one.from(h.snap.keyring, placeOf(after), visit)
	}
}

// union is what an index has under any of the values.
func (s *Snapshot) union(x *index, values []string) Hits {
	h := Hits{snap: s}
	var lists [][]uint32
	for i, v := range values {
		p, ok := x.values.get(v, "")
		switch {
		case !ok || slices.Contains(values[:i], v):
		case h.one.n == 0 && lists == nil:
			h.one = p.slots
		default:
			if lists == nil {
				lists = append(lists, h.one.list())
				h.one = set{}
			}
			lists = append(lists, p.slots.list())
		}
	}
	for len(lists) > 1 { // merging halves the number of lists
		for i := 0; i < len(lists)/2; i++ {
			lists[i] = merge(s.keyring, lists[i], lists[len(lists)-1-i])
		}
		lists = lists[:(len(lists)+1)/2]
	}
	if lists != nil {
		h.many = lists[0]
	}
	return h
}

// list returns the ids in key order.
func (s set) list() []uint32 {
	ids := make([]uint32, 0, s.n)
	s.each(func(id uint32) bool {
		ids = append(ids, id)
		return true
	})
	return ids
}

// merge makes one list in key order of two, each id once.
func merge(ks keyring, a, b []uint32) []uint32 {
	out := make([]uint32, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if a[0] == b[0] {
			out, a, b = append(out, a[0]), a[1:], b[1:]
			continue
		}
		if ks.get(a[0]).compare(ks.get(b[0]).place()) < 0 {
			out, a = append(out, a[0]), a[1:]
		} else {
			out, b = append(out, b[0]), b[1:]
		}
	}
	return append(append(out, a...), b...)
}
