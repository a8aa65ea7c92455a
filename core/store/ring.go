package store

import (
	"fmt"
	"sync/atomic"
)

// ChangeType is what a change did to its key.
type ChangeType uint8

// The types of a change.
const (
	Added ChangeType = iota + 1
	Updated
	Deleted
)

// Change is one step in the history of a collection as this store saw it. It
// is shared by all watchers and must not be changed.
type Change struct {
	// N numbers the changes of one store from 1, without gaps.
	N      uint64
	Type   ChangeType
	Reason Reason // of Deleted
	Key    string
	// Old is nil for Added, New is nil for Deleted.
	Old, New *Object
	// Final, of Deleted, is the object as it was deleted, nil when that is not known.
	Final *Object
	// RV, Epoch and Sequence of a delete, as its Reason, come from its tombstone, or
	// from what caused it; for the other types they are those of New.
	RV              string
	Epoch, Sequence uint64
	// Run grows whenever sequences may start over: those of two changes can be
	// compared only when they are of the same run.
	Run uint64

	through uint64  // the largest sequence of its run so far
	trace   *string // nil for nearly all
}

// Trace is that of the op which made the change, or empty.
func (c *Change) Trace() string {
	if c.trace == nil {
		return ""
	}
	return *c.trace
}

// OverrunError says that changes were dropped from the ring before the reader
// came for them.
type OverrunError struct{ Missed uint64 }

func (e *OverrunError) Error() string {
	return fmt.Sprintf("store: %d changes overrun", e.Missed)
}

// ring keeps the latest changes, bounded by number and by the bytes that only
// the ring still holds. One writer; readers need no lock.
type ring struct {
	slots []atomic.Pointer[Change]
	first atomic.Uint64 // oldest number kept
	// floor is the oldest number behind which no reader may resume, and base the
	// log sequence it begins after, plus one; zero while not known.
	floor, base atomic.Uint64
	next        uint64 // number of the next change; the writer's
	run         uint64 // the writer's
	through     uint64 // the writer's
	bytes       int    // superseded payloads held; the writer's
	limit       int
}

func newRing(changes, limit int) *ring {
	r := &ring{slots: make([]atomic.Pointer[Change], changes), next: 1, limit: limit}
	r.first.Store(1)
	r.floor.Store(1)
	return r
}

// cut makes everything so far useless for resuming: the sequences of what
// follows may start over.
func (r *ring) cut() {
	r.base.Store(0)
	r.floor.Store(r.next)
	r.run++
	r.through = 0
}

// complete says that the changes since the last cut lead to the log sequence
// that is applied now; the first call after a cut sets where they begin.
func (r *ring) complete(sequence uint64) {
	if r.base.Load() == 0 {
		r.floor.Store(r.next)
		r.base.Store(sequence + 1)
		r.through = 0
	}
}

// after returns the number of the first change up to last of those behind a log
// sequence: all before it are at or below the sequence. Changes that the batch
// did not bring in the log's order may be at or below it too.
func (r *ring) after(last, sequence uint64) (uint64, bool) {
	base := r.base.Load()
	if base == 0 || sequence+1 < base {
		return 0, false
	}
	floor, first := r.floor.Load(), r.first.Load()
	if floor > last+1 { // the reader's snapshot is from before the cut
		return 0, false
	}
	low, high := max(floor, first), last+1
	for low < high {
		mid := low + (high-low)/2
		c, err := r.get(mid)
		if err != nil {
			return 0, false
		}
		if c.through > sequence {
			high = mid
		} else {
			low = mid + 1
		}
	}
	// The first that is kept may have had others before it that count.
	return low, (low > first || first <= floor) && r.base.Load() == base
}

func (r *ring) add(c *Change) {
	r.through = max(r.through, c.Sequence)
	c.N, c.Run, c.through = r.next, r.run, r.through
	r.next++
	if c.N-r.first.Load() >= uint64(len(r.slots)) {
		r.drop()
	}
	r.slots[c.N%uint64(len(r.slots))].Store(c)
	r.bytes += c.held()
	for r.bytes > r.limit && r.first.Load() < c.N {
		r.drop()
	}
}

// swap puts another stored form of an object into the change that brought it,
// so that the ring does not keep the one before.
func (r *ring) swap(old, now *Object) {
	low, high := max(r.floor.Load(), r.first.Load()), r.next
	for low < high {
		mid := low + (high-low)/2
		if c := r.slots[mid%uint64(len(r.slots))].Load(); c.through >= old.seq {
			high = mid
		} else {
			low = mid + 1
		}
	}
	for n := low; n < min(low+2, r.next); n++ { // a recreated key takes two changes
		slot := &r.slots[n%uint64(len(r.slots))]
		if c := slot.Load(); c.New == old {
			c := *c
			c.New = now
			slot.Store(&c)
			return
		}
	}
}

func (r *ring) drop() {
	n := r.first.Load()
	s := &r.slots[n%uint64(len(r.slots))]
	r.bytes -= s.Load().held()
	r.first.Store(n + 1)
	s.Store(nil)
}

// held is what the change keeps alive that the store itself would not.
func (c *Change) held() int {
	n := len(c.Trace())
	for _, o := range [...]*Object{c.Old, c.Final} {
		if o != nil {
			n += o.StoredSize()
		}
	}
	return n
}

func (r *ring) get(n uint64) (*Change, error) {
	if c := r.slots[n%uint64(len(r.slots))].Load(); c != nil && c.N == n {
		return c, nil
	}
	first := r.first.Load()
	if n >= first {
		return nil, fmt.Errorf("store: change %d is not made yet", n)
	}
	return nil, &OverrunError{Missed: first - n}
}
