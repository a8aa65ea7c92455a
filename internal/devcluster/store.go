package devcluster

import (
	"errors"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// errRaced means that the object changed between the read and the commit.
var errRaced = errors.New("devcluster: object changed meanwhile")

// pullLimit is how many events a watcher takes between looks at its context.
const pullLimit = 256

// ref points at an object of a table.
type ref struct{ table, key string }

// store holds every object under one growing resource version. A commit encodes
// once, is written to the log before it becomes visible, and never waits for a
// reader: watchers pull from the tables' histories.
type store struct {
	maxEvents int
	maxAge    time.Duration
	wal       *wal // nil when nothing is kept on disk
	// changed is notified of every commit, under the lock; it must not block.
	changed func(in locked, t *table, e *event)

	mu     sync.RWMutex // guards everything below
	rv     uint64
	moved  chan struct{} // closed and replaced by every change of rv
	tables map[string]*table
	uids   map[types.UID]ref              // every live object
	owned  map[types.UID]map[ref]struct{} // dependents by owner
}

// newStore makes an empty store that keeps so many events of a resource, for so long. changed is
// called for every commit, under the lock: it must not block.
func newStore(maxEvents int, maxAge time.Duration, changed func(in locked, t *table, e *event)) *store {
	return &store{
		maxEvents: maxEvents, maxAge: maxAge, changed: changed,
		rv:     1,
		moved:  make(chan struct{}),
		tables: map[string]*table{},
		uids:   map[types.UID]ref{},
		owned:  map[types.UID]map[ref]struct{}{},
	}
}

// ensure creates the table of a resource if it does not exist.
func (s *store) ensure(r *resource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ensureLocked(r)
}

func (s *store) ensureLocked(r *resource) *table {
	t := s.tables[r.id()]
	if t == nil {
		t = newTable(r, s.rv)
		s.tables[r.id()] = t
	}
	return t
}

// removeTable forgets a table and cuts its watchers.
func (s *store) removeTable(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tables[id]; t != nil {
		delete(s.tables, id)
		close(t.wake)
	}
}

// now is the time of what is written.
func (s *store) now() time.Time { return time.Now() }

// version is the resource version of the newest change.
func (s *store) version() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.rv
}

// get returns the object at key, or nil.
func (s *store) get(r *resource, key string) *object {
	s.mu.RLock()
	defer s.mu.RUnlock()
	t := s.tables[r.id()]
	if t == nil {
		return nil
	}
	o, _ := t.live.Get(&object{key: key})
	return o
}

// snapshot returns the state of a resource at rv, or now when rv is 0, and its version.
func (s *store) snapshot(r *resource, rv uint64) (*tree, uint64, error) {
	s.mu.Lock() // not RLock: cloning a tree writes to it
	defer s.mu.Unlock()
	t := s.ensureLocked(r)
	if rv == 0 || rv == s.rv {
		return t.live.Clone(), s.rv, nil
	}
	snap, err := t.at(rv)
	return snap, rv, err
}

// commit replaces old (nil: create) by next (nil: delete) if the table still
// holds old, and returns what is stored now, or the final state of a deletion.
// next belongs to the store afterwards.
func (s *store) commit(r *resource, old *object, next apiObject) (*object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.ensureLocked(r)
	var key string
	if old != nil {
		key = old.key
	} else {
		key = objectKey(next.GetNamespace(), next.GetName())
	}
	if cur, _ := t.live.Get(&object{key: key}); cur != old {
		return nil, errRaced
	}
	e := &event{rv: s.rv + 1, at: s.now(), prev: old}
	final := next
	if next == nil {
		final = old.clone()
	}
	raw, err := encode(r, final, e.rv)
	if err != nil {
		return nil, err
	}
	o := &object{key: key, rv: e.rv, obj: final, raw: raw}
	if err := s.wal.write(r.id(), o, next == nil); err != nil {
		return nil, fmt.Errorf("write-ahead log: %w", err)
	}
	if next == nil {
		e.gone = o
	} else {
		e.cur = o
	}
	s.apply(t, e)
	return o, nil
}

// apply makes an event visible.
func (s *store) apply(t *table, e *event) {
	s.rv = e.rv
	close(s.moved)
	s.moved = make(chan struct{})
	if e.prev != nil {
		s.index(t, e.prev, false)
	}
	switch {
	case e.cur != nil:
		t.live.ReplaceOrInsert(e.cur)
		s.index(t, e.cur, true)
	case e.gone != nil:
		t.live.Delete(e.gone)
	}
	t.append(e, s.maxEvents, s.maxAge)
	s.changed(locked{s}, t, e)
}

// index adds or removes an object from the uid and owner indexes.
func (s *store) index(t *table, o *object, add bool) {
	at := ref{t.res.id(), o.key}
	if add {
		s.uids[o.obj.GetUID()] = at
	} else {
		delete(s.uids, o.obj.GetUID())
	}
	for _, owner := range o.obj.GetOwnerReferences() {
		set := s.owned[owner.UID]
		switch {
		case add && set == nil:
			s.owned[owner.UID] = map[ref]struct{}{at: {}}
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

// dependents returns where the objects owned by uid are.
func (s *store) dependents(uid types.UID) []ref {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := make([]ref, 0, len(s.owned[uid]))
	for at := range s.owned[uid] {
		out = append(out, at)
	}
	return out
}

// owner resolves an owner reference seen from a namespace; nil when it does not exist.
func (s *store) owner(o metav1.OwnerReference, namespace string) *object {
	s.mu.RLock()
	defer s.mu.RUnlock()
	at, ok := s.uids[o.UID]
	if !ok {
		return nil
	}
	t := s.tables[at.table]
	if t == nil || t.res.kind != o.Kind {
		return nil
	}
	obj, _ := t.live.Get(&object{key: at.key})
	if obj == nil || obj.obj.GetName() != o.Name || (t.res.namespaced && obj.obj.GetNamespace() != namespace) {
		return nil
	}
	return obj
}

// batch is what a watcher gets from one pull.
type batch struct {
	events []*event
	rv     uint64 // everything at or below has been handed out
	wake   <-chan struct{}
}

// quiet is the version up to which a watcher of t at rv has seen everything: the store's, unless t
// has moved.
func (s *store) quiet(t *table, rv uint64) uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if t.after(rv) == len(t.log) {
		return s.rv
	}
	return rv
}

// progress is the version of the newest change, and what is closed by the next one.
func (s *store) progress() (uint64, <-chan struct{}) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.rv, s.moved
}

// each calls visit for every object, under the lock.
func (s *store) each(visit func(at ref, o *object)) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for id, t := range s.tables {
		t.live.Ascend(func(o *object) bool {
			visit(ref{id, o.key}, o)
			return true
		})
	}
}

// unserve stops serving what a CRD defined, and deletes it.
func (s *store) unserve(served *registry, crd apiObject) {
	if r := served.defined(crd); r != nil {
		served.remove(r.id())
		s.removeTable(r.id())
	}
}

// close ends the log; nothing is written afterwards.
func (s *store) close() error { return s.wal.close() }

// pull returns up to limit events of a resource above rv. It fails with
// errExpired when some of them are gone, also when the table itself is.
func (s *store) pull(r *resource, t *table, rv uint64, limit int) (batch, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.tables[r.id()] != t || rv < t.dropped {
		return batch{}, errExpired
	}
	tail := t.log[t.after(rv):]
	if len(tail) > limit {
		tail = tail[:limit]
		return batch{events: tail, rv: tail[limit-1].rv, wake: t.wake}, nil
	}
	return batch{events: tail, rv: s.rv, wake: t.wake}, nil
}

// open checks that a watch from rv is possible and returns the table; rv 0 asks
// for the state now, which is returned with its version.
func (s *store) open(r *resource, rv uint64) (*table, *tree, uint64, error) {
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

// compact forgets the history of every table up to now.
func (s *store) compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tables {
		t.drop(len(t.log))
		t.floor = s.rv
		t.snaps = nil
	}
}

// inject appends a line to a resource's history as if it were an event.
func (s *store) inject(r *resource, line []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.apply(s.ensureLocked(r), &event{rv: s.rv + 1, at: s.now(), junk: line})
}
