package store

import "strings"

// edit is the identity of one write. A node made by the edit in progress may
// be changed in place; any other node belongs to a published snapshot.
type edit struct{ _ byte }

// sorted is an element with a place in a tree: by hi, then by lo.
type sorted interface{ at() (hi, lo string) }

const (
	maxItems = 31
	minItems = maxItems / 2
)

// tree is a persistent B-tree. The zero value is empty. A tree value is never
// changed by later writes, so copying the struct is taking a snapshot.
type tree[T sorted] struct {
	root *node[T]
	n    int
}

type node[T sorted] struct {
	owner *edit
	items []T
	kids  []*node[T] // nil in a leaf, else len(items)+1
}

// own returns a node that e may change: n itself or a copy of it.
func (n *node[T]) own(e *edit) *node[T] {
	if n.owner == e {
		return n
	}
	c := &node[T]{owner: e, items: make([]T, len(n.items), min(len(n.items)+1, maxItems))}
	copy(c.items, n.items)
	if n.kids != nil {
		c.kids = make([]*node[T], len(n.kids), min(len(n.kids)+1, maxItems+1))
		copy(c.kids, n.kids)
	}
	return c
}

// find returns the place of the first item not before (hi, lo), and whether it
// is exactly that one.
func (n *node[T]) find(hi, lo string) (int, bool) {
	i, j := 0, len(n.items)
	for i < j {
		m := int(uint(i+j) >> 1)
		h, l := n.items[m].at()
		c := strings.Compare(h, hi)
		if c == 0 {
			if c = strings.Compare(l, lo); c == 0 {
				return m, true
			}
		}
		if c < 0 {
			i = m + 1
		} else {
			j = m
		}
	}
	return i, false
}

func (t tree[T]) get(hi, lo string) (x T, ok bool) {
	for n := t.root; n != nil; {
		i, found := n.find(hi, lo)
		if found {
			return n.items[i], true
		}
		if n.kids == nil {
			break
		}
		n = n.kids[i]
	}
	return x, false
}

// put returns the tree with x in it, in place of an item at the same key.
func (t tree[T]) put(e *edit, x T) tree[T] {
	if t.root == nil {
		return tree[T]{root: &node[T]{owner: e, items: []T{x}}, n: 1}
	}
	root := t.root.own(e)
	if len(root.items) >= maxItems {
		mid, right := root.split(e)
		root = &node[T]{owner: e, items: []T{mid}, kids: []*node[T]{root, right}}
	}
	hi, lo := x.at()
	if root.insert(e, hi, lo, x) {
		t.n++
	}
	t.root = root
	return t
}

// split moves the upper half of a full node into a new one.
func (n *node[T]) split(e *edit) (mid T, right *node[T]) {
	const m = maxItems / 2
	mid = n.items[m]
	right = &node[T]{owner: e, items: append(make([]T, 0, maxItems), n.items[m+1:]...)}
	clear(n.items[m:])
	n.items = n.items[:m]
	if n.kids != nil {
		right.kids = append(make([]*node[T], 0, maxItems+1), n.kids[m+1:]...)
		clear(n.kids[m+1:])
		n.kids = n.kids[:m+1]
	}
	return mid, right
}

// insert puts x below n, which e owns and which is not full. It reports
// whether the item is new.
func (n *node[T]) insert(e *edit, hi, lo string, x T) bool {
	for {
		i, found := n.find(hi, lo)
		if found {
			n.items[i] = x
			return false
		}
		if n.kids == nil {
			n.items = insertAt(n.items, i, x)
			return true
		}
		kid := n.kids[i].own(e)
		n.kids[i] = kid
		if len(kid.items) >= maxItems {
			mid, right := kid.split(e)
			n.items = insertAt(n.items, i, mid)
			n.kids = insertAt(n.kids, i+1, right)
			continue // the key may now belong to either half, or be mid itself
		}
		n = kid
	}
}

// del returns the tree without the item at (hi, lo), and whether it was there.
func (t tree[T]) del(e *edit, hi, lo string) (tree[T], bool) {
	if _, ok := t.get(hi, lo); !ok {
		return t, false
	}
	root := t.root.own(e)
	root.remove(e, hi, lo)
	if len(root.items) == 0 {
		if root.kids == nil {
			return tree[T]{}, true
		}
		root = root.kids[0]
	}
	return tree[T]{root: root, n: t.n - 1}, true
}

// remove deletes the item at (hi, lo), which is below n. Every node it walks
// into has more than minItems first, so that taking one away never needs a
// second pass.
func (n *node[T]) remove(e *edit, hi, lo string) {
	for {
		i, found := n.find(hi, lo)
		if n.kids == nil {
			n.items = removeAt(n.items, i)
			return
		}
		if len(n.kids[i].items) <= minItems {
			n.feed(e, i)
			continue // feeding moved items between siblings
		}
		kid := n.kids[i].own(e)
		n.kids[i] = kid
		if found {
			n.items[i] = kid.removeMax(e)
			return
		}
		n = kid
	}
}

// removeMax takes the last item below n, which has more than minItems.
func (n *node[T]) removeMax(e *edit) T {
	for n.kids != nil {
		last := len(n.kids) - 1
		if len(n.kids[last].items) <= minItems {
			n.feed(e, last)
			continue
		}
		kid := n.kids[last].own(e)
		n.kids[last] = kid
		n = kid
	}
	last := len(n.items) - 1
	x := n.items[last]
	n.items = removeAt(n.items, last)
	return x
}

// feed gives kid i one more item: from a sibling that can spare it, or by
// merging it with a sibling.
func (n *node[T]) feed(e *edit, i int) {
	if i > 0 && len(n.kids[i-1].items) > minItems {
		kid, left := n.kids[i].own(e), n.kids[i-1].own(e)
		last := len(left.items) - 1
		kid.items = insertAt(kid.items, 0, n.items[i-1])
		n.items[i-1] = left.items[last]
		left.items = removeAt(left.items, last)
		if left.kids != nil {
			last := len(left.kids) - 1
			kid.kids = insertAt(kid.kids, 0, left.kids[last])
			left.kids = removeAt(left.kids, last)
		}
		n.kids[i], n.kids[i-1] = kid, left
		return
	}
	if i < len(n.items) && len(n.kids[i+1].items) > minItems {
		kid, right := n.kids[i].own(e), n.kids[i+1].own(e)
		kid.items = append(kid.items, n.items[i])
		n.items[i] = right.items[0]
		right.items = removeAt(right.items, 0)
		if right.kids != nil {
			kid.kids = append(kid.kids, right.kids[0])
			right.kids = removeAt(right.kids, 0)
		}
		n.kids[i], n.kids[i+1] = kid, right
		return
	}
	if i == len(n.items) {
		i--
	}
	kid, right := n.kids[i].own(e), n.kids[i+1]
	kid.items = append(append(kid.items, n.items[i]), right.items...)
	kid.kids = append(kid.kids, right.kids...)
	n.kids[i] = kid
	n.items = removeAt(n.items, i)
	n.kids = removeAt(n.kids, i+1)
}

// from walks the items from (hi, lo) on, in order, until yield says stop. It
// reports whether the walk came to its end.
func (t tree[T]) from(hi, lo string, yield func(T) bool) bool {
	return t.root == nil || t.root.from(hi, lo, yield)
}

func (n *node[T]) from(hi, lo string, yield func(T) bool) bool {
	i, found := n.find(hi, lo)
	if n.kids != nil && !found && !n.kids[i].from(hi, lo, yield) {
		return false
	}
	for ; i < len(n.items); i++ {
		if !yield(n.items[i]) {
			return false
		}
		if n.kids != nil && !n.kids[i+1].each(yield) {
			return false
		}
	}
	return true
}

// each walks all items in order.
func (t tree[T]) each(yield func(T) bool) bool {
	return t.root == nil || t.root.each(yield)
}

func (n *node[T]) each(yield func(T) bool) bool {
	for i, x := range n.items {
		if n.kids != nil && !n.kids[i].each(yield) {
			return false
		}
		if !yield(x) {
			return false
		}
	}
	return n.kids == nil || n.kids[len(n.items)].each(yield)
}

func insertAt[E any](s []E, i int, x E) []E {
	var zero E
	s = append(s, zero)
	copy(s[i+1:], s[i:])
	s[i] = x
	return s
}

func removeAt[E any](s []E, i int) []E {
	copy(s[i:], s[i+1:])
	clear(s[len(s)-1:])
	return s[:len(s)-1]
}

// treeOf makes a tree of items that are in order. It does not keep the slice.
func treeOf[T sorted](items []T) tree[T] {
	if len(items) == 0 {
		return tree[T]{}
	}
	t := tree[T]{n: len(items)}
	var level []*node[T] // the nodes below items, in order
	for {
		parts := (len(items) + maxItems + 1) / (maxItems + 1)
		nodes := make([]*node[T], 0, parts)
		between := make([]T, 0, parts-1)
		for ; parts > 0; parts-- {
			n := (len(items) - (parts - 1)) / parts
			x := &node[T]{items: append(make([]T, 0, n), items[:n]...)}
			if level != nil {
				x.kids = append(make([]*node[T], 0, n+1), level[:n+1]...)
				level = level[n+1:]
			}
			nodes = append(nodes, x)
			if items = items[n:]; parts > 1 {
				between, items = append(between, items[0]), items[1:]
			}
		}
		if len(nodes) == 1 {
			t.root = nodes[0]
			return t
		}
		items, level = between, nodes
	}
}
