package store

// vector maps slot ids to objects. Like tree it is persistent: a vector value
// never changes, writes return another one that shares most of it.
type vector struct{ root []*page }

const (
	pageBits = 6
	pageLen  = 1 << pageBits
	pageMask = pageLen - 1
)

type page struct {
	owner  *edit
	leaves [pageLen]*leaf
}

type leaf struct {
	owner   *edit
	objects [pageLen]*Object
}

// get returns the object of a slot, nil when the slot is empty.
func (v vector) get(id uint32) *Object {
	r := int(id >> (2 * pageBits))
	if r >= len(v.root) || v.root[r] == nil {
		return nil
	}
	l := v.root[r].leaves[id>>pageBits&pageMask]
	if l == nil {
		return nil
	}
	return l.objects[id&pageMask]
}

// editor writes into a vector on behalf of one edit.
type editor struct {
	v      vector
	copied bool // whether v.root is the edit's own
}

func (w *editor) set(e *edit, id uint32, o *Object) {
	r := int(id >> (2 * pageBits))
	if !w.copied {
		root := make([]*page, max(r+1, len(w.v.root)))
		copy(root, w.v.root)
		w.v.root, w.copied = root, true
	}
	for r >= len(w.v.root) {
		w.v.root = append(w.v.root, nil)
	}
	p := w.v.root[r]
	switch {
	case p == nil:
		p = &page{owner: e}
	case p.owner != e:
		p = &page{owner: e, leaves: p.leaves}
	}
	w.v.root[r] = p
	l := p.leaves[id>>pageBits&pageMask]
	switch {
	case l == nil:
		l = &leaf{owner: e}
	case l.owner != e:
		l = &leaf{owner: e, objects: l.objects}
	}
	p.leaves[id>>pageBits&pageMask] = l
	l.objects[id&pageMask] = o
}
