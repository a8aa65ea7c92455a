package store

import "slices"

// kid returns which kid a place is under.
func (n *inner) kid(p place) int {
	i, j := 0, len(n.seps)
	for i < j {
		m := int(uint(i+j) >> 1)
		if n.seps[m].compare(p) <= 0 {
			i = m + 1
		} else {
			j = m
		}
	}
	return i
}

// fan is the number of kids.
func (n *inner) fan() int { return len(n.seps) + 1 }

// own returns a node that e may change: n itself or a copy of it.
func (n *inner) own(e *edit) *inner {
	if n.owner == e {
		return n
	}
	return &inner{owner: e, seps: slices.Clone(n.seps), kids: slices.Clone(n.kids), leaves: slices.Clone(n.leaves)}
}

// put puts a slot below n. right, if not nil, is a new node after n, whose keys
// begin at sep.
func (n *inner) put(e *edit, ks keyring, p place, id uint32, k *key) (self, right *inner, sep *key, added bool) {
	i := n.kid(p)
	if n.leaves == nil {
		kid, half, at, ok := n.kids[i].put(e, ks, p, id, k)
		if !ok {
			return n, nil, nil, false
		}
		n = n.own(e)
		n.kids[i] = kid
		if half != nil {
			n.kids, n.seps = slices.Insert(n.kids, i+1, half), slices.Insert(n.seps, i, at)
		}
		right, sep = n.split(e)
		return n, right, sep, true
	}
	l := n.leaves[i]
	at, found := search(ks, l.ids, p)
	if found {
		return n, nil, nil, false
	}
	n = n.own(e)
	if len(l.ids) < flatMax {
		n.leaves[i] = idLeaf{e, insertID(l.ids, at, id, l.owner == e)}
		return n, nil, nil, true
	}
	cut := flatMax / 2
	if at == flatMax && i == len(n.leaves)-1 {
		cut = flatMax // keys come in order: leave full leaves behind
	}
	low, high := slices.Clone(l.ids[:cut]), slices.Clone(l.ids[cut:])
	if at < cut {
		low = insertID(low, at, id, true)
	} else {
		high = insertID(high, at-cut, id, true)
	}
	first := k
	if high[0] != id {
		first = ks.get(high[0])
	}
	n.leaves[i] = idLeaf{e, low}
	n.leaves, n.seps = slices.Insert(n.leaves, i+1, idLeaf{e, high}), slices.Insert(n.seps, i, first)
	right, sep = n.split(e)
	return n, right, sep, true
}

// split moves the upper half of a node that is too full into a new one.
func (n *inner) split(e *edit) (right *inner, sep *key) {
	if n.fan() <= innerMax {
		return nil, nil
	}
	m := n.fan() / 2
	sep = n.seps[m-1]
	right = &inner{owner: e, seps: slices.Clone(n.seps[m:])}
	clear(n.seps[m-1:])
	n.seps = n.seps[:m-1]
	if n.leaves != nil {
		right.leaves = slices.Clone(n.leaves[m:])
		clear(n.leaves[m:])
		n.leaves = n.leaves[:m]
	} else {
		right.kids = slices.Clone(n.kids[m:])
		clear(n.kids[m:])
		n.kids = n.kids[:m]
	}
	return right, sep
}

// del takes out the slot at a place below n. A node keeps at least one kid and
// a leaf one id, but for a root whose last goes.
func (n *inner) del(e *edit, ks keyring, p place) (self *inner, removed bool) {
	i := n.kid(p)
	if n.leaves == nil {
		kid, ok := n.kids[i].del(e, ks, p)
		if !ok {
			return n, false
		}
		n = n.own(e)
		n.kids[i] = kid
		n.mend(e, i)
		return n, true
	}
	l := n.leaves[i]
	at, found := search(ks, l.ids, p)
	if !found {
		return n, false
	}
	n = n.own(e)
	n.leaves[i] = idLeaf{e, deleteID(l.ids, at, l.owner == e)}
	n.mend(e, i)
	return n, true
}

// size is how full kid i is, and how full it may be.
func (n *inner) size(i int) (size, limit int) {
	if n.leaves != nil {
		return len(n.leaves[i].ids), flatMax
	}
	return n.kids[i].fan(), innerMax
}

// mend merges kid i with a sibling when it has become small and they fit into
// one. That way an empty leaf vanishes too.
func (n *inner) mend(e *edit, i int) {
	size, limit := n.size(i)
	if size >= limit/4 || n.fan() == 1 {
		return
	}
	for _, at := range [...]int{i - 1, i} {
		if at < 0 || at+1 >= n.fan() {
			continue
		}
		a, _ := n.size(at)
		b, _ := n.size(at + 1)
		if size == 0 || n.leaves == nil && size == 1 || a+b <= limit*3/4 {
			n.merge(e, at)
			return
		}
	}
}

// merge makes one kid of kids i and i+1.
func (n *inner) merge(e *edit, i int) {
	if n.leaves != nil {
		n.leaves[i] = idLeaf{e, slices.Concat(n.leaves[i].ids, n.leaves[i+1].ids)}
		n.leaves = slices.Delete(n.leaves, i+1, i+2)
	} else {
		low, high := n.kids[i].own(e), n.kids[i+1]
		low.seps = append(append(low.seps, n.seps[i]), high.seps...)
		low.kids, low.leaves = append(low.kids, high.kids...), append(low.leaves, high.leaves...)
		n.kids[i] = low
		n.kids = slices.Delete(n.kids, i+1, i+2)
	}
	n.seps = slices.Delete(n.seps, i, i+1)
}

func (n *inner) each(visit func(uint32) bool) bool {
	for _, kid := range n.kids {
		if !kid.each(visit) {
			return false
		}
	}
	return eachLeaf(n.leaves, visit)
}

func eachLeaf(leaves []idLeaf, visit func(uint32) bool) bool {
	for i := range leaves {
		for _, id := range leaves[i].ids {
			if !visit(id) {
				return false
			}
		}
	}
	return true
}

func (n *inner) from(ks keyring, p place, visit func(uint32) bool) bool {
	i := n.kid(p)
	if n.leaves == nil {
		if !n.kids[i].from(ks, p, visit) {
			return false
		}
		for _, kid := range n.kids[i+1:] {
			if !kid.each(visit) {
				return false
			}
		}
		return true
	}
	ids := n.leaves[i].ids
	at, _ := search(ks, ids, p)
	for _, id := range ids[at:] {
		if !visit(id) {
			return false
		}
	}
	return eachLeaf(n.leaves[i+1:], visit)
}

// bulkFill is how full bulk-built nodes are, in eighths.
const bulkFill = 7

// setOf makes a set of ids that are in key order. It does not keep ids.
func setOf(ks keyring, ids []uint32) set {
	if len(ids) <= flatMax {
		return flatSet(append(make([]uint32, 0, len(ids)), ids...))
	}
	var level []*inner
	var firsts []*key
	leaves := make([]idLeaf, 0, len(ids)/(flatMax*bulkFill/8)+1)
	for part := range evenly(ids, flatMax*bulkFill/8) {
		leaves = append(leaves, idLeaf{ids: slices.Clone(part)})
		firsts = append(firsts, ks.get(part[0]))
	}
	for part := range evenly(leaves, innerMax*bulkFill/8) {
		level = append(level, &inner{leaves: slices.Clone(part)})
	}
	for {
		up := make([]*key, len(level))
		for i, n := range level {
			up[i] = firsts[0]
			count := len(n.leaves) + len(n.kids)
			n.seps = slices.Clone(firsts[1:count])
			firsts = firsts[count:]
		}
		if len(level) == 1 {
			return set{root: level[0], n: uint32(len(ids))}
		}
		var above []*inner
		for part := range evenly(level, innerMax*bulkFill/8) {
			above = append(above, &inner{kids: slices.Clone(part)})
		}
		level, firsts = above, up
	}
}

// evenly cuts a list into the fewest parts of at most limit, all about as long.
func evenly[E any](list []E, limit int) func(func([]E) bool) {
	return func(yield func([]E) bool) {
		for parts := (len(list) + limit - 1) / limit; parts > 0; parts-- {
			n := (len(list) + parts - 1) / parts
			if !yield(list[:n]) {
				return
			}
			list = list[n:]
		}
	}
}
