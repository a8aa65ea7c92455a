package informer

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/deltaplane/deltaplane/client"
)

// DecodeError is an object whose newest version could not be decoded. Handlers keep
// what they received before; reads of the key fail until it can be read again.
type DecodeError struct {
	Key, ResourceVersion string
	Err                  error
}

func (e *DecodeError) Error() string {
	return fmt.Sprintf("informer: %q at resource version %s cannot be decoded: %v", e.Key, e.ResourceVersion, e.Err)
}

// Unwrap returns the reason.
func (e *DecodeError) Unwrap() error { return e.Err }

// Store is what an informer has: client-go's Indexer and Lister. Every read is of
// one state, and what it returns is shared and must not be changed. Reads before
// the first sync fail with [client.ErrNotSynced]: there are no empty answers.
// Lists are in no order. It is safe for concurrent use.
type Store[T any] struct {
	name string

	mu         sync.RWMutex // guards what follows
	entries    map[string]*entry[T]
	namespaces map[string]map[string]*entry[T]
	indexes    map[string]*index[T]
	faulty     int
	synced     bool
	stopped    bool
	revision   client.Revision
	upper      client.Revision // no event above it is in
	moved      chan struct{}   // closed when revision, synced or stopped changes; nil when nobody waits
}

// entry is one key. It is changed only under the store's mutex.
type entry[T any] struct {
	key     string
	uid, rv string
	epoch   uint64 // of rv
	hash    uint64 // of the payload
	obj     T
	has     bool // obj is a version that was decoded; it is the newest when err is nil
	err     error
}

func newStore[T any](name string) *Store[T] {
	return &Store[T]{
		name: name, entries: map[string]*entry[T]{}, namespaces: map[string]map[string]*entry[T]{}, indexes: map[string]*index[T]{},
	}
}

// namespaceOf is the namespace of a key; empty when it is of the cluster.
func namespaceOf(key string) string {
	ns, _, ok := strings.Cut(key, "/")
	if !ok {
		return ""
	}
	return ns
}

func (s *Store[T]) ready() error {
	if !s.synced {
		return fmt.Errorf("%s: %w", s.name, client.ErrNotSynced)
	}
	return nil
}

// Get returns the object of a key, and whether there is one. The error is a
// *DecodeError for one whose newest version cannot be read.
func (s *Store[T]) Get(key string) (obj T, ok bool, err error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.ready(); err != nil {
		return obj, false, err
	}
	e := s.entries[key]
	if e == nil {
		return obj, false, nil
	}
	if e.err != nil {
		return obj, false, e.err
	}
	return e.obj, true, nil
}

// List returns every object.
func (s *Store[T]) List() ([]T, error) { return s.ByNamespace("") }

// ByNamespace returns the objects of a namespace; "" is every one. Those that cannot
// be decoded are left out, see Faulty.
func (s *Store[T]) ByNamespace(namespace string) ([]T, error) {
	return s.Select(namespace, labels.Everything())
}

// Select returns the objects of a namespace ("" is every one) whose labels match. The
// labels are those of T's GetLabels method, as Kubernetes' types have it; a selector
// that needs labels fails for a T without.
func (s *Store[T]) Select(namespace string, sel labels.Selector) ([]T, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.ready(); err != nil {
		return nil, err
	}
	if _, can := sel.Requirements(); !can {
		return nil, nil
	}
	from := s.entries
	if namespace != "" {
		from = s.namespaces[namespace]
	}
	if sel.Empty() {
		out := make([]T, 0, len(from))
		for _, e := range from {
			if e.err == nil {
				out = append(out, e.obj)
			}
		}
		return out, nil
	}
	var out []T
	for _, e := range from {
		if e.err != nil {
			continue
		}
		o, ok := any(e.obj).(interface{ GetLabels() map[string]string })
		if !ok {
			return nil, fmt.Errorf("%s: %T has no labels to select by", s.name, e.obj)
		}
		if sel.Matches(labels.Set(o.GetLabels())) {
			out = append(out, e.obj)
		}
	}
	return out, nil
}

// Keys returns every key, sorted, also those that cannot be decoded.
func (s *Store[T]) Keys() ([]string, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.ready(); err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(s.entries)), nil
}

// Faulty returns the keys whose newest version cannot be decoded, and why.
func (s *Store[T]) Faulty() map[string]error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := make(map[string]error, s.faulty)
	if s.faulty == 0 {
		return out
	}
	for key, e := range s.entries {
		if e.err != nil {
			out[key] = e.err
		}
	}
	return out
}

// Len is how many keys there are.
func (s *Store[T]) Len() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.entries)
}

// Revision is what the store has reached: everything at or below it is in.
func (s *Store[T]) Revision() client.Revision {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.revision
}

// Bounds are the revision and the upper bound of what the store holds: pass on the
// latter as the least that somebody else may read.
func (s *Store[T]) Bounds() client.Bounds {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return client.Bounds{Revision: s.revision, Upper: s.upper}
}

// AtLeast returns once the store has reached a revision: that of a write, for one,
// so that the reads that follow see it. It takes the place of a cache of own writes. A
// revision without an epoch is one of the store's. What the API server returned for a write
// is a resource version of the collection:
//
//	created, err := pods.Create(ctx, pod, metav1.CreateOptions{})
//	…
//	err = store.AtLeast(ctx, client.Revision{RV: created.ResourceVersion})
//
// A write outside of the informer's scope is reached with the next change within it
// or the next bookmark, see [Config].BookmarkEvery. Errors: one that wraps
// [client.ErrRevisionNotReached] and the context's when that ends first, and
// [ErrStopped].
func (s *Store[T]) AtLeast(ctx context.Context, want client.Revision) error {
	for {
		s.mu.Lock()
		have, synced, stopped := s.revision, s.synced, s.stopped
		if s.moved == nil {
			s.moved = make(chan struct{})
		}
		moved := s.moved
		s.mu.Unlock()
		need := want
		if need.Epoch == 0 {
			need.Epoch = have.Epoch
		}
		switch {
		case synced && have.Compare(need) >= 0:
			return nil
		case stopped:
			return fmt.Errorf("%s: %w at revision %v", s.name, ErrStopped, have)
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return fmt.Errorf("%s: %w: at %v, not %v: %w", s.name, client.ErrRevisionNotReached, have, need, context.Cause(ctx))
		}
	}
}

// notify wakes those that wait. The mutex is held.
func (s *Store[T]) notify() {
	if s.moved != nil {
		close(s.moved)
		s.moved = nil
	}
}

// advance notes what was reached with nothing changed.
func (s *Store[T]) advance(at client.Bounds) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reach(at)
}

// reach notes how far the store has come; a zero revision is no news. The mutex is
// held.
func (s *Store[T]) reach(at client.Bounds) {
	if at.Upper.IsZero() { // of a server that states none
		at.Upper = at.Revision
	}
	if at.Upper.Compare(s.upper) > 0 {
		s.upper = at.Upper
	}
	if !at.Revision.IsZero() {
		s.revision = at.Revision
		s.notify()
	}
}

func (s *Store[T]) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	s.notify()
}

// known is what the store has, for the server to compare.
func (s *Store[T]) known() client.Known {
	s.mu.RLock()
	defer s.mu.RUnlock()
	k := client.Known{Epoch: s.revision.Epoch, Versions: make(map[string]string, len(s.entries))}
	for key, e := range s.entries {
		if e.epoch == k.Epoch {
			k.Versions[key] = e.rv
		} else {
			k.Versions[key] = "" // a version of another epoch: whatever there is now is news
		}
	}
	return k
}

// put files an entry in its namespace and indexes; remove takes it out. The mutex
// is held.
func (s *Store[T]) put(e *entry[T]) {
	s.entries[e.key] = e
	ns := namespaceOf(e.key)
	if s.namespaces[ns] == nil {
		s.namespaces[ns] = map[string]*entry[T]{}
	}
	s.namespaces[ns][e.key] = e
	for _, x := range s.indexes {
		x.file(e)
	}
}

func (s *Store[T]) remove(e *entry[T]) {
	delete(s.entries, e.key)
	ns := namespaceOf(e.key)
	delete(s.namespaces[ns], e.key)
	if len(s.namespaces[ns]) == 0 {
		delete(s.namespaces, ns)
	}
	for _, x := range s.indexes {
		x.unfile(e.key)
	}
}
