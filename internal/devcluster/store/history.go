package store

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/google/btree"

	"github.com/deltaplane/deltaplane/internal/devcluster/kinds"
)

// errExpired means that the history needed to answer was dropped.
var errExpired = errors.New("devcluster: resource version is too old")

// Event is one change of one object. Exactly one of cur and prev may be nil:
// a creation has no prev; a deletion has gone set, the last state at the
// deletion's resource version. junk is a line injected by a test instead.
type Event struct {
	rv   uint64
	at   time.Time
	Cur  *Object
	Prev *Object
	Gone *Object
	Junk []byte

	mu   sync.Mutex
	left *Object // prev at rv, for watchers whose selection the object left
}

// Departed is the previous state stamped with the event's resource version:
// what a watcher is sent when the object leaves its selection.
func (e *Event) Departed(r *kinds.Resource) *Object {
	if e.Gone != nil {
		return e.Gone
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.left == nil {
		obj := e.Prev.Clone()
		raw, err := kinds.Encode(r, obj, e.rv)
		if err != nil {
			return e.Prev
		}
		e.left = &Object{Key: e.Prev.Key, RV: e.rv, Decoded: obj, Raw: raw}
	}
	return e.left
}

// Tree is the objects of a table by key; those handed out are clones that nobody writes.
type Tree = btree.BTreeG[*Object]

// Table holds the objects of one resource and the recent events. All of it is
// guarded by the store's mutex; trees handed out are clones that nobody writes.
type Table struct {
	Resource *kinds.Resource
	live     *Tree
	log      []*Event // ascending rv
	// floor is the lowest resource version a new watch or exact list may name;
	// dropped is the newest event no longer in log.
	floor, dropped uint64
	wake           chan struct{} // closed and replaced by every change
	snaps          []snapshot    // recent snapshots that page tokens point into
}

type snapshot struct {
	rv   uint64
	tree *Tree
}

// kept snapshots per table; a token of an older one rolls the log back again.
const maxSnapshots = 8

func newTable(r *kinds.Resource, rv uint64) *Table {
	return &Table{
		Resource: r,
		live:     btree.NewG(32, func(a, b *Object) bool { return a.Key < b.Key }),
		floor:    rv, dropped: rv,
		wake: make(chan struct{}),
	}
}

// append adds an event and forgets those beyond the window.
func (t *Table) append(e *Event, maxEvents int, maxAge time.Duration) {
	t.log = append(t.log, e)
	drop := 0
	if n := len(t.log); n > maxEvents+maxEvents/4 {
		drop = n - maxEvents
	}
	t.drop(drop)
	if oldest := t.log[0]; e.at.Sub(oldest.at) > maxAge+maxAge/4 {
		cut := e.at.Add(-maxAge)
		t.drop(slices.IndexFunc(t.log, func(e *Event) bool { return !e.at.Before(cut) }))
	}
	close(t.wake)
	t.wake = make(chan struct{})
}

// drop forgets the n oldest events.
func (t *Table) drop(n int) {
	if n <= 0 {
		return
	}
	t.dropped = t.log[n-1].rv
	t.floor = max(t.floor, t.dropped)
	t.log = slices.Clone(t.log[n:])
	t.snaps = slices.DeleteFunc(t.snaps, func(s snapshot) bool { return s.rv < t.floor })
}

// after returns the index of the first event above rv.
func (t *Table) after(rv uint64) int {
	i, found := slices.BinarySearchFunc(t.log, rv, func(e *Event, rv uint64) int {
		switch {
		case e.rv < rv:
			return -1
		case e.rv > rv:
			return 1
		}
		return 0
	})
	if found {
		i++
	}
	return i
}

// at returns the state at rv, which must not lie in the future.
func (t *Table) at(rv uint64) (*Tree, error) {
	for _, s := range t.snaps {
		if s.rv == rv {
			return s.tree, nil
		}
	}
	if rv < t.floor {
		return nil, errExpired
	}
	snap := t.live.Clone()
	for _, e := range slices.Backward(t.log[t.after(rv):]) {
		switch {
		case e.Junk != nil:
		case e.Prev != nil:
			snap.ReplaceOrInsert(e.Prev)
		default:
			snap.Delete(e.Cur)
		}
	}
	if len(t.snaps) == maxSnapshots {
		t.snaps = t.snaps[1:]
	}
	t.snaps = append(t.snaps, snapshot{rv: rv, tree: snap})
	return snap, nil
}
