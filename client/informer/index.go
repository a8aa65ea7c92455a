package informer

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/deltaplane/deltaplane/client"
)

// IndexFunc returns the values that an object is filed under, none to many. It
// must be a pure function of the object, and must not call the store. An error, or
// a panic, makes reads of the index fail, and nothing else (in client-go the process
// panics).
type IndexFunc[T any] func(T) ([]string, error)

// ErrIndexConflict says that an index of that name exists; nothing was added.
var ErrIndexConflict = errors.New("informer: index exists already")

// IndexError says that an index cannot vouch for its answers, since its function
// failed on Keys keys; Key and Err are the first of them.
type IndexError struct {
	Index string
	Keys  int
	Key   string
	Err   error
}

func (e *IndexError) Error() string {
	return fmt.Sprintf("informer: index %q failed on %d keys, first %q: %v", e.Index, e.Keys, e.Key, e.Err)
}

// Unwrap returns the first failure.
func (e *IndexError) Unwrap() error { return e.Err }

type index[T any] struct {
	name   string
	fn     IndexFunc[T]
	values map[string]map[string]*entry[T]
	of     map[string][]string // key -> its values, sorted
	failed map[string]error
}

func newIndex[T any](name string, fn IndexFunc[T]) *index[T] {
	return &index[T]{name: name, fn: fn, values: map[string]map[string]*entry[T]{}, of: map[string][]string{}, failed: map[string]error{}}
}

func (x *index[T]) err() error {
	if len(x.failed) == 0 {
		return nil
	}
	key := slices.Min(slices.Collect(maps.Keys(x.failed)))
	return &IndexError{Index: x.name, Keys: len(x.failed), Key: key, Err: x.failed[key]}
}

// extract runs the function and brings its values into order.
func (x *index[T]) extract(obj T) (values []string, err error) {
	defer func() {
		if v := recover(); v != nil {
			values, err = nil, fmt.Errorf("index function panicked: %v", v)
		}
	}()
	if values, err = x.fn(obj); err != nil {
		return nil, err
	}
	values = slices.Clone(values)
	slices.Sort(values)
	return slices.Compact(values), nil
}

// file brings the index up to date with an entry.
func (x *index[T]) file(e *entry[T]) {
	var now []string
	delete(x.failed, e.key)
	if e.err == nil {
		var err error
		if now, err = x.extract(e.obj); err != nil {
			x.failed[e.key] = err
		}
	}
	for _, v := range x.of[e.key] {
		if _, still := slices.BinarySearch(now, v); !still {
			x.drop(v, e.key)
		}
	}
	for _, v := range now {
		if x.values[v] == nil {
			x.values[v] = map[string]*entry[T]{}
		}
		x.values[v][e.key] = e
	}
	if len(now) > 0 {
		x.of[e.key] = now
	} else {
		delete(x.of, e.key)
	}
}

func (x *index[T]) unfile(key string) {
	for _, v := range x.of[key] {
		x.drop(v, key)
	}
	delete(x.of, key)
	delete(x.failed, key)
}

func (x *index[T]) drop(value, key string) {
	delete(x.values[value], key)
	if len(x.values[value]) == 0 { // a dead value must not show
		delete(x.values, value)
	}
}

// index finds an index that can be read. The mutex is held.
func (s *Store[T]) index(name string) (*index[T], error) {
	if err := s.ready(); err != nil {
		return nil, err
	}
	x := s.indexes[name]
	if x == nil {
		return nil, fmt.Errorf("%s: %q: %w", s.name, name, client.ErrIndexNotFound)
	}
	return x, x.err()
}

// AddIndexers adds indexes, also to a store that is full: they are complete when
// it returns. When one of the names is taken nothing is added and the error wraps
// [ErrIndexConflict].
func (s *Store[T]) AddIndexers(fns map[string]IndexFunc[T]) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return fmt.Errorf("%s: %w", s.name, ErrStopped)
	}
	for _, name := range slices.Sorted(maps.Keys(fns)) {
		if s.indexes[name] != nil {
			return fmt.Errorf("%s: %q: %w", s.name, name, ErrIndexConflict)
		}
		if fns[name] == nil {
			return fmt.Errorf("%s: index %q has no function", s.name, name)
		}
	}
	for name, fn := range fns {
		x := newIndex(name, fn)
		for _, e := range s.entries {
			x.file(e)
		}
		s.indexes[name] = x
	}
	return nil
}

// Indexers returns the names of the indexes, sorted.
func (s *Store[T]) Indexers() []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Sorted(maps.Keys(s.indexes))
}

// ByIndex returns the objects filed under a value; an unknown value has none.
// Errors, of this and all that name an index: one that wraps
// [client.ErrIndexNotFound], and *IndexError for an index whose function failed.
func (s *Store[T]) ByIndex(name, value string) ([]T, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	x, err := s.index(name)
	if err != nil {
		return nil, err
	}
	return x.union([]string{value}), nil
}

// Index returns the objects that share a value with an example, which need not be
// in the store, each once.
func (s *Store[T]) Index(name string, example T) ([]T, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	x, err := s.index(name)
	if err != nil {
		return nil, err
	}
	values, err := x.extract(example)
	if err != nil {
		return nil, fmt.Errorf("%s: index %q of the example: %w", s.name, name, err)
	}
	return x.union(values), nil
}

func (x *index[T]) union(values []string) []T {
	if len(values) == 1 {
		out := make([]T, 0, len(x.values[values[0]]))
		for _, e := range x.values[values[0]] {
			out = append(out, e.obj)
		}
		return out
	}
	all := map[string]*entry[T]{}
	for _, v := range values {
		maps.Copy(all, x.values[v])
	}
	out := make([]T, 0, len(all))
	for _, e := range all {
		out = append(out, e.obj)
	}
	return out
}

// IndexKeys returns the keys filed under a value, sorted.
func (s *Store[T]) IndexKeys(name, value string) ([]string, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	x, err := s.index(name)
	if err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(x.values[value])), nil
}

// ListIndexFuncValues returns the values that have at least one key, sorted.
func (s *Store[T]) ListIndexFuncValues(name string) ([]string, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	x, err := s.index(name)
	if err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(x.values)), nil
}
