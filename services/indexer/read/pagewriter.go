package read

import (
	"context"

	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/services/indexer/filter"
	"github.com/deltaplane/deltaplane/services/indexer/message"
)

// pageWriter writes objects until a page is full.
type pageWriter struct {
	p       *page
	o       *message.Writer
	proj    *message.Projection
	at      int // the part being written
	n       int
	lastAt  int
	last    *store.Object // written last
	lastKey string        // instead of it, of a view of keys
	faulty  []located
	beside  int // about what it takes to name them
	visited int
}

// full reports whether the page has no room for one more object of a size.
func (w *pageWriter) full(size int) bool {
	return w.n > 0 && (w.n >= w.p.size || w.o.Len()+w.beside+size > w.p.s.cfg.MaxPageBytes)
}

// written is the key that was written last.
func (w *pageWriter) written() string {
	if w.last != nil {
		return w.last.Key()
	}
	return w.lastKey
}

// objects writes the matching objects of a source; false when the page is full.
func (w *pageWriter) objects(ctx context.Context, src *filter.Source, f *filter.Filter) (bool, error) {
	after, name := "", ""
	if w.at == w.p.at {
		after = w.p.after
	}
	if w.p.many {
		name = w.p.parts[w.at].c.Name
	}
	for obj := range src.After(after) {
		if w.visited++; w.visited%filter.CheckEvery == 0 && ctx.Err() != nil {
			return false, ctx.Err()
		}
		if !src.Exact && !f.Match(src.Snap, obj) {
			continue
		}
		size := w.proj.ObjectLen(obj)
		if obj.Faulty() {
			size += naming(obj.Key(), name)
		}
		if w.full(size) {
			return false, nil
		}
		mark := w.o.Mark()
		ok := w.o.Object(obj, w.proj, name)
		if w.proj.Mask != nil && w.n > 0 && w.o.Len()+w.beside > w.p.s.cfg.MaxPageBytes { // only now its length is known
			w.o.Rewind(mark)
			return false, nil
		}
		if !ok {
			w.faulty = append(w.faulty, located{w.at, obj.Key()})
			w.beside += naming(obj.Key(), name)
		}
		w.last, w.lastAt = obj, w.at
		w.n++
	}
	return true, nil
}

// located is a key in one of a page's collections.
type located struct {
	part int
	key  string
}

// naming is about what a page takes beside an object to name it as faulty; the
// collection is empty where there is but one.
func naming(key, collection string) int {
	const head = 4 // tag and length of a field
	if collection == "" {
		return head + len(key)
	}
	return 4*head + 2*len(key) + len(collection)
}

// keys is objects for a view of keys of objects none of which is faulty.
func (w *pageWriter) keys(hits store.Hits) bool {
	after, bound := "", w.p.s.cfg.MaxPageBytes
	if w.at == w.p.at {
		after = w.p.after
	}
	for key := range hits.KeysAfter(after) {
		if w.n > 0 && (w.n >= w.p.size || w.o.Len()+len(key) > bound) {
			return false
		}
		w.o.Key(1, key)
		w.lastKey = key
		w.n++
	}
	w.lastAt = w.at
	return true
}
