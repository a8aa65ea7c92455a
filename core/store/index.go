package store

import (
	"fmt"
	"maps"
	"slices"
)

// IndexFunc returns the values an object is filed under, none to many (S-03).
// It must be a pure function of the object. An error, or a panic, is recorded
// against the index and the key; it never reaches the caller of Apply.
type IndexFunc func(*Object) ([]string, error)

// UnknownIndexError names an index that the store does not have.
type UnknownIndexError struct{ Index string }

func (e *UnknownIndexError) Error() string {
	return fmt.Sprintf("store: index %q does not exist", e.Index)
}

// ConflictError names indexes that exist already; nothing was added (S-06).
type ConflictError struct{ Indexes []string }

func (e *ConflictError) Error() string {
	return fmt.Sprintf("store: indexer conflict: %q exist already", e.Indexes)
}

// FailedError says that an index cannot vouch for its answers, since its
// function failed on Keys keys; Key and Err are the first of them in key order.
type FailedError struct {
	Index string
	Keys  int
	Key   string
	Err   error
}

func (e *FailedError) Error() string {
	return fmt.Sprintf("store: index %q failed on %d keys, first %q: %v", e.Index, e.Keys, e.Key, e.Err)
}

// Unwrap returns the first failure.
func (e *FailedError) Unwrap() error { return e.Err }

// index is one index inside a snapshot.
type index struct {
	name    string
	fn      IndexFunc
	values  tree[*posting]
	failed  tree[*failure]
	entries int // sum of the lengths of all postings
}

// posting is the set of slots that have one value.
type posting struct {
	owner *edit
	value string
	slots tree[*slot]
}

func (p *posting) at() (string, string) { return p.value, "" }

type failure struct {
	key string
	err error
}

func (f *failure) at() (string, string) { return splitKey(f.key) }

func (x *index) err() error {
	if x.failed.n == 0 {
		return nil
	}
	e := &FailedError{Index: x.name, Keys: x.failed.n}
	x.failed.each(func(f *failure) bool {
		e.Key, e.Err = f.key, f.err
		return false
	})
	return e
}

// extract runs the function and brings its values into order.
func (x *index) extract(o *Object) (values []string, err error) {
	if o == nil {
		return nil, nil
	}
	defer func() {
		if r := recover(); r != nil {
			values, err = nil, fmt.Errorf("index function panicked: %v", r)
		}
	}()
	values, err = x.fn(o)
	if err != nil {
		return nil, err
	}
	for i := 1; i < len(values); i++ {
		if values[i-1] >= values[i] {
			values = slices.Clone(values)
			slices.Sort(values)
			return slices.Compact(values), nil
		}
	}
	return values, nil
}

// refile moves a slot from its old values to its new ones; both are sorted. It
// does nothing when they are equal (S-04).
func (x *index) refile(e *edit, s *slot, old, now []string) {
	i, j := 0, 0
	for i < len(old) || j < len(now) {
		switch {
		case j == len(now) || i < len(old) && old[i] < now[j]:
			x.unfile(e, s, old[i])
			i++
		case i == len(old) || now[j] < old[i]:
			x.file(e, s, now[j])
			j++
		default:
			i, j = i+1, j+1
		}
	}
}

func (x *index) file(e *edit, s *slot, value string) {
	p, ok := x.values.get(value, "")
	if !ok || p.owner != e {
		var slots tree[*slot]
		if ok {
			slots = p.slots
		}
		p = &posting{owner: e, value: value, slots: slots}
		x.values = x.values.put(e, p)
	}
	n := p.slots.n
	p.slots = p.slots.put(e, s)
	x.entries += p.slots.n - n
}

func (x *index) unfile(e *edit, s *slot, value string) {
	p, ok := x.values.get(value, "")
	if !ok {
		return
	}
	hi, lo := s.at()
	slots, removed := p.slots.del(e, hi, lo)
	if !removed {
		return
	}
	x.entries--
	if slots.n == 0 { // a dead value must not show (S-04)
		x.values, _ = x.values.del(e, value, "")
		return
	}
	if p.owner != e {
		p = &posting{owner: e, value: value}
		x.values = x.values.put(e, p)
	}
	p.slots = slots
}

func (x *index) fail(e *edit, key string, err error) {
	ns, name := splitKey(key)
	if err != nil {
		x.failed = x.failed.put(e, &failure{key: key, err: err})
	} else if x.failed.n > 0 {
		x.failed, _ = x.failed.del(e, ns, name)
	}
}

// sortedNames returns the names of a set of indexers in order.
func sortedNames(fns map[string]IndexFunc) []string { return slices.Sorted(maps.Keys(fns)) }
