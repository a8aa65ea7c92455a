package store

import (
	"errors"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/internal/devcluster/kinds"
)

// ErrRaced means that the object changed between the read and the commit.
var ErrRaced = errors.New("devcluster: object changed meanwhile")

// PullLimit is how many events a watcher takes between looks at its context.
const PullLimit = 256

// Ref points at an object of a table.
type Ref struct{ Table, Key string }

// Store holds every object under one growing resource version. A commit encodes
// once, is written to the log before it becomes visible, and never waits for a
// reader: watchers pull from the tables' histories.
type Store struct {
	maxEvents int
	maxAge    time.Duration
	wal       *wal // nil when nothing is kept on disk
	// changed is notified of every commit, under the lock; it must not block.
	changed func(in Locked, t *Table, e *Event)

	mu     sync.RWMutex // guards everything below
	rv     uint64
	moved  chan struct{} // closed and replaced by every change of rv
	tables map[string]*Table
	uids   map[types.UID]Ref              // every live object
	owned  map[types.UID]map[Ref]struct{} // dependents by owner
}

// New makes an empty store that keeps so many events of a resource, for so long. changed is
// called for every commit, under the lock: it must not block.
func New(maxEvents int, maxAge time.Duration, changed func(in Locked, t *Table, e *Event)) *Store {
	return &Store{
		maxEvents: maxEvents, maxAge: maxAge, changed: changed,
		rv:     1,
		moved:  make(chan struct{}),
		tables: map[string]*Table{},
		uids:   map[types.UID]Ref{},
		owned:  map[types.UID]map[Ref]struct{}{},
	}
}

// Ensure creates the table of a resource if it does not exist.
func (s *Store) Ensure(r *kinds.Resource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ensureLocked(r)
}

func (s *Store) ensureLocked(r *kinds.Resource) *Table {
	t := s.tables[r.ID()]
	if t == nil {
		t = newTable(r, s.rv)
		s.tables[r.ID()] = t
	}
	return t
}

// removeTable forgets a table and cuts its watchers.
func (s *Store) removeTable(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tables[id]; t != nil {
		delete(s.tables, id)
		close(t.wake)
	}
}

// Now is the time of what is written.
func (s *Store) Now() time.Time { return time.Now() }

// Version is the resource version of the newest change.
func (s *Store) Version() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.rv
}

// Get returns the object at key, or nil.
func (s *Store) Get(r *kinds.Resource, key string) *Object {
	s.mu.RLock()
	defer s.mu.RUnlock()
	t := s.tables[r.ID()]
	if t == nil {
		return nil
	}
	o, _ := t.live.Get(&Object{Key: key})
	return o
}

// Snapshot returns the state of a resource at rv, or now when rv is 0, and its version.
func (s *Store) Snapshot(r *kinds.Resource, rv uint64) (*Tree, uint64, error) {
	s.mu.Lock() // not RLock: cloning a tree writes to it
	defer s.mu.Unlock()
	t := s.ensureLocked(r)
	if rv == 0 || rv == s.rv {
		return t.live.Clone(), s.rv, nil
	}
	snap, err := t.at(rv)
	return snap, rv, err
}

// Commit replaces old (nil: create) by next (nil: delete) if the table still
// holds old, and returns what is stored now, or the final state of a deletion.
// next belongs to the store afterwards.
func (s *Store) Commit(r *kinds.Resource, old *Object, next kinds.APIObject) (*Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.ensureLocked(r)
	var key string
	if old != nil {
		key = old.Key
	} else {
		key = kinds.ObjectKey(next.GetNamespace(), next.GetName())
	}
	if cur, _ := t.live.Get(&Object{Key: key}); cur != old {
		return nil, ErrRaced
	}
	e := &Event{rv: s.rv + 1, at: s.Now(), Prev: old}
	final := next
	if next == nil {
		final = old.Clone()
	}
	raw, err := kinds.Encode(r, final, e.rv)
	if err != nil {
		return nil, err
	}
	o := &Object{Key: key, RV: e.rv, Decoded: final, Raw: raw}
	if err := s.wal.write(r.ID(), o, next == nil); err != nil {
		return nil, fmt.Errorf("write-ahead log: %w", err)
	}
	if next == nil {
		e.Gone = o
	} else {
		e.Cur = o
	}
	s.apply(t, e)
	return o, nil
}

// apply makes an event visible.
func (s *Store) apply(t *Table, e *Event) {
	s.rv = e.rv
	close(s.moved)
	s.moved = make(chan struct{})
	if e.Prev != nil {
		s.index(t, e.Prev, false)
	}
	switch {
	case e.Cur != nil:
		t.live.ReplaceOrInsert(e.Cur)
		s.index(t, e.Cur, true)
	case e.Gone != nil:
		t.live.Delete(e.Gone)
	}
	t.append(e, s.maxEvents, s.maxAge)
	s.changed(Locked{s}, t, e)
}

// index adds or removes an object from the uid and owner indexes.
func (s *Store) index(t *Table, o *Object, add bool) {
	at := Ref{t.Resource.ID(), o.Key}
	if add {
		s.uids[o.Decoded.GetUID()] = at
	} else {
		delete(s.uids, o.Decoded.GetUID())
	}
	for _, owner := range o.Decoded.GetOwnerReferences() {
		set := s.owned[owner.UID]
		switch {
		case add && set == nil:
			s.owned[owner.UID] = map[Ref]struct{}{at: {}}
		case add:
			set[at] = struct{}{}
		default:
			delete(set, at)
			if len(set) == 0 {
				delete(s.owned, owner.UID)
			}
		}
	}
}

// Dependents returns where the objects owned by uid are.
func (s *Store) Dependents(uid types.UID) []Ref {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := make([]Ref, 0, len(s.owned[uid]))
	for at := range s.owned[uid] {
		out = append(out, at)
	}
	return out
}

// Owner resolves an owner reference seen from a namespace; nil when it does not exist.
func (s *Store) Owner(o metav1.OwnerReference, namespace string) *Object {
	s.mu.RLock()
	defer s.mu.RUnlock()
	at, ok := s.uids[o.UID]
	if !ok {
		return nil
	}
	t := s.tables[at.Table]
	if t == nil || t.Resource.Kind != o.Kind {
		return nil
	}
	obj, _ := t.live.Get(&Object{Key: at.Key})
	if obj == nil || obj.Decoded.GetName() != o.Name || (t.Resource.Namespaced && obj.Decoded.GetNamespace() != namespace) {
		return nil
	}
	return obj
}

// Batch is what a watcher gets from one pull.
type Batch struct {
	Events []*Event
	RV     uint64 // everything at or below has been handed out
	Wake   <-chan struct{}
}

// Quiet is the version up to which a watcher of t at rv has seen everything: the store's, unless t
// has moved.
func (s *Store) Quiet(t *Table, rv uint64) uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if t.after(rv) == len(t.log) {
		return s.rv
	}
	return rv
}

// Progress is the version of the newest change, and what is closed by the next one.
func (s *Store) Progress() (uint64, <-chan struct{}) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.rv, s.moved
}

// Each calls visit for every object, under the lock.
func (s *Store) Each(visit func(at Ref, o *Object)) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for id, t := range s.tables {
		t.live.Ascend(func(o *Object) bool {
			visit(Ref{id, o.Key}, o)
			return true
		})
	}
}

// Unserve stops serving what a CRD defined, and deletes it.
func (s *Store) Unserve(served *kinds.Registry, crd kinds.APIObject) {
	if r := served.Defined(crd); r != nil {
		served.Remove(r.ID())
		s.removeTable(r.ID())
	}
}

// Close ends the log; nothing is written afterwards.
func (s *Store) Close() error { return s.wal.close() }

// Pull returns up to limit events of a resource above rv. It fails with
// errExpired when some of them are gone, also when the table itself is.
func (s *Store) Pull(r *kinds.Resource, t *Table, rv uint64, limit int) (Batch, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.tables[r.ID()] != t || rv < t.dropped {
		return Batch{}, errExpired
	}
	tail := t.log[t.after(rv):]
	if len(tail) > limit {
		tail = tail[:limit]
		return Batch{Events: tail, RV: tail[limit-1].rv, Wake: t.wake}, nil
	}
	return Batch{Events: tail, RV: s.rv, Wake: t.wake}, nil
}

// Open checks that a watch from rv is possible and returns the table; rv 0 asks
// for the state now, which is returned with its version.
func (s *Store) Open(r *kinds.Resource, rv uint64) (*Table, *Tree, uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.ensureLocked(r)
	if rv == 0 {
		return t, t.live.Clone(), s.rv, nil
	}
	if rv < t.floor {
		return nil, nil, t.floor, errExpired
	}
	return t, nil, rv, nil
}

// Compact forgets the history of every table up to now.
func (s *Store) Compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tables {
		t.drop(len(t.log))
		t.floor = s.rv
		t.snaps = nil
	}
}

// Inject appends a line to a resource's history as if it were an event.
func (s *Store) Inject(r *kinds.Resource, line []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.apply(s.ensureLocked(r), &Event{rv: s.rv + 1, at: s.Now(), Junk: line})
}
