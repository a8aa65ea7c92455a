package devcluster

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/google/btree"
)

// errExpired means that the history needed to answer was dropped.
var errExpired = errors.New("devcluster: resource version is too old")

// event is one change of one object. Exactly one of cur and prev may be nil:
// a creation has no prev; a deletion has gone set, the last state at the
// deletion's resource version. junk is a line injected by a test instead.
type event struct {
	rv   uint64
	at   time.Time
	cur  *object
	prev *object
	gone *object
	junk []byte

	mu   sync.Mutex
	left *object // prev at rv, for watchers whose selection the object left
}

// departed is the previous state stamped with the event's resource version:
// what a watcher is sent when the object leaves its selection.
func (e *event) departed(r *resource) *object {
	if e.gone != nil {
		return e.gone
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.left == nil {
		obj := e.prev.clone()
		raw, err := encode(r, obj, e.rv)
		if err != nil {
			return e.prev
		}
		e.left = &object{key: e.prev.key, rv: e.rv, obj: obj, raw: raw}
	}
	return e.left
}

type tree = btree.BTreeG[*object]

// table holds the objects of one resource and the recent events. All of it is
// guarded by the store's mutex; trees handed out are clones that nobody writes.
type table struct {
	res  *resource
	live *tree
	log  []*event // ascending rv
	// floor is the lowest resource version a new watch or exact list may name;
	// dropped is the newest event no longer in log.
	floor, dropped uint64
	wake           chan struct{} // closed and replaced by every change
	snaps          []snapshot    // recent snapshots that page tokens point into
}

type snapshot struct {
	rv   uint64
	tree *tree
}

// kept snapshots per table; a token of an older one rolls the log back again.
const maxSnapshots = 8

func newTable(r *resource, rv uint64) *table {
	return &table{
		res:   r,
		live:  btree.NewG(32, func(a, b *object) bool { return a.key < b.key }),
		floor: rv, dropped: rv,
		wake: make(chan struct{}),
	}
}

// append adds an event and forgets those beyond the window.
func (t *table) append(e *event, maxEvents int, maxAge time.Duration) {
	t.log = append(t.log, e)
	drop := 0
	if n := len(t.log); n > maxEvents+maxEvents/4 {
		drop = n - maxEvents
	}
	t.drop(drop)
	if oldest := t.log[0]; e.at.Sub(oldest.at) > maxAge+maxAge/4 {
		cut := e.at.Add(-maxAge)
		t.drop(slices.IndexFunc(t.log, func(e *event) bool { return !e.at.Before(cut) }))
	}
	close(t.wake)
	t.wake = make(chan struct{})
}

// drop forgets the n oldest events.
func (t *table) drop(n int) {
	if n <= 0 {
		return
	}
	t.dropped = t.log[n-1].rv
	t.floor = max(t.floor, t.dropped)
	t.log = slices.Clone(t.log[n:])
	t.snaps = slices.DeleteFunc(t.snaps, func(s snapshot) bool { return s.rv < t.floor })
}

// after returns the index of the first event above rv.
func (t *table) after(rv uint64) int {
	i, found := slices.BinarySearchFunc(t.log, rv, func(e *event, rv uint64) int {
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
func (t *table) at(rv uint64) (*tree, error) {
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
		case e.junk != nil:
		case e.prev != nil:
			snap.ReplaceOrInsert(e.prev)
		default:
			snap.Delete(e.cur)
		}
	}
	if len(t.snaps) == maxSnapshots {
		t.snaps = t.snaps[1:]
	}
	t.snaps = append(t.snaps, snapshot{rv: rv, tree: snap})
	return snap, nil
}
