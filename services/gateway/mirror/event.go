package mirror

import (
	"cmp"
	"slices"
	"sync"

	"github.com/deltaplane/deltaplane/core/store"
)

// Event is one change of an object.
type Event struct {
	// Version of the change.
	Version uint64
	// Namespace of the object.
	Namespace string
	// Old is nil for a creation, New for a deletion.
	Old, New *store.Object
	// Final is the object as it was deleted, with the version of that; nil where nobody knows it.
	Final *store.Object
	// Unknown, of a deletion: what the object was in the end is not known.
	Unknown bool
}

const (
	maxEvents = 16_384
	maxBytes  = 64 << 20
)

// History is the events between the views of a mirror since it was last filled. It is safe for
// concurrent use.
type History struct {
	// Ended is closed when no event follows any more: history was lost.
	Ended chan struct{}

	epoch uint64 // of its versions

	mu      sync.RWMutex
	events  []*Event // guarded by mu, as what follows
	first   uint64   // number of events[0]
	bytes   int      // of objects that only events hold
	unknown uint64   // number of the last unknown deletion, plus one
	cuts    []cut
	readers map[string]map[*Reader]struct{} // by namespace, "" for all
	woken   uint64                          // up to which event everybody was woken
}

// cut is a view's place in the events: all that is before next is in it, and nothing else. It is
// the exact state at every version from upper to revision.
type cut struct{ upper, revision, next uint64 }

func newHistory() *History {
	return &History{Ended: make(chan struct{}), first: 1, readers: map[string]map[*Reader]struct{}{}}
}

// publish adds the events that lead to a view, and wakes who waits for them.
func (h *History) publish(events []*Event, upper, revision uint64) (next uint64) {
	slices.SortStableFunc(events, func(a, b *Event) int { return cmp.Compare(a.Version, b.Version) })
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range events {
		if e.Unknown {
			h.unknown = h.next() + 1
		}
		h.bytes += e.size()
		h.events = append(h.events, e)
	}
	h.trim()
	next = h.next()
	if n := len(h.cuts); n > 0 && h.cuts[n-1].next == next {
		h.cuts[n-1].revision = revision // the state is as it was
		return next
	}
	h.cuts = append(h.cuts, cut{upper, revision, next})
	h.wake(events, next)
	return next
}

func (h *History) next() uint64 { return h.first + uint64(len(h.events)) }

// size is what an event alone keeps in memory.
func (e *Event) size() int {
	n := 0
	for _, o := range []*store.Object{e.Old, e.Final} {
		if o != nil {
			n += o.StoredSize()
		}
	}
	return n
}

// trim drops the oldest events, and the cuts before them. h.mu is locked.
func (h *History) trim() {
	drop := 0
	for len(h.events)-drop > maxEvents || h.bytes > maxBytes && drop < len(h.events) {
		h.bytes -= h.events[drop].size()
		drop++
	}
	if drop == 0 {
		return
	}
	clear(h.events[:drop])
	h.events, h.first = h.events[drop:], h.first+uint64(drop)
	old := 0
	for old < len(h.cuts) && h.cuts[old].next < h.first {
		old++
	}
	h.cuts = h.cuts[old:]
}

// wake tells readers of events that concern them, and now and then all, so that none falls behind
// that has nothing to read. h.mu is locked.
func (h *History) wake(events []*Event, next uint64) {
	if next-h.woken > maxEvents/4 {
		h.woken = next
		for _, some := range h.readers {
			for r := range some {
				r.wake()
			}
		}
		return
	}
	last := ""
	for _, e := range events {
		if e.Namespace == "" || e.Namespace == last {
			continue
		}
		last = e.Namespace
		for r := range h.readers[e.Namespace] {
			r.wake()
		}
	}
	for r := range h.readers[""] {
		r.wake()
	}
}

// Reader reads events in order. It is for one goroutine.
type Reader struct {
	// More has something once there may be more to read.
	More chan struct{}

	h         *History
	namespace string
	next      uint64
}

func (r *Reader) wake() {
	select {
	case r.More <- struct{}{}:
	default:
	}
}

// From is a reader of the events behind a view.
func (h *History) From(v *View, namespace string) *Reader {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.add(namespace, v.next)
}

// Behind is a reader of the events behind a version; false where they are not all known. They are
// behind a version of which a view is the exact state: between two views objects may have come and
// gone, and a client that has seen one would never hear of its deletion.
func (h *History) Behind(version uint64, namespace string) (*Reader, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range slices.Backward(h.cuts) {
		if c.upper > version {
			continue
		}
		if version > c.revision || c.next < h.first || h.unknown > c.next {
			return nil, false
		}
		return h.add(namespace, c.next), true
	}
	return nil, false
}

func (h *History) add(namespace string, next uint64) *Reader {
	r := &Reader{More: make(chan struct{}, 1), h: h, namespace: namespace, next: next}
	if h.readers[namespace] == nil {
		h.readers[namespace] = map[*Reader]struct{}{}
	}
	h.readers[namespace][r] = struct{}{}
	r.wake() // what is there already
	return r
}

// History is what the reader reads.
func (r *Reader) History() *History { return r.h }

// Close gives the reader up.
func (r *Reader) Close() {
	r.h.mu.Lock()
	defer r.h.mu.Unlock()
	delete(r.h.readers[r.namespace], r)
	if len(r.h.readers[r.namespace]) == 0 {
		delete(r.h.readers, r.namespace)
	}
}

// Read appends the next events of the reader's namespace to into, at most so many. It reports false
// when events were dropped before the reader came for them.
func (r *Reader) Read(into []*Event, most int) (events []*Event, ok bool) {
	r.h.mu.RLock()
	defer r.h.mu.RUnlock()
	if r.next < r.h.first {
		return into, false
	}
	for ; r.next < r.h.next() && len(into) < most; r.next++ {
		e := r.h.events[r.next-r.h.first]
		if r.namespace == "" || e.Namespace == r.namespace {
			into = append(into, e)
		}
	}
	if r.next < r.h.next() {
		r.wake()
	}
	return into, true
}

// At reports whether the reader has read what led to a view, and nothing that followed it.
func (r *Reader) At(v *View) bool {
	return v != nil && v.history == r.h && r.next == v.next
}
