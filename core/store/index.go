package store

import (
	"fmt"
	"maps"
	"slices"

	"github.com/deltaplane/deltaplane/core/delta"
)

// IndexFunc returns the values an object is filed under, none to many; it may
// return shared ones, which nobody changes. It must be a pure function of the
// object's key, UID, labels, owners, fields and fault: an object that agrees in
// these with its former version is not asked again. An error, or a panic, is
// recorded against the index and the key; it never reaches the caller of Apply.
type IndexFunc func(*Object) ([]string, error)

// IndexState says whether an index can be read.
type IndexState uint8

// The states of an index.
const (
	// Building: objects of before are not all filed yet; reads are refused.
	Building IndexState = iota
	// Ready: every object of the snapshot is filed.
	Ready
)

// String names the state in lower case.
func (s IndexState) String() string {
	if s == Ready {
		return "ready"
	}
	return "building"
}

// index is one index inside a snapshot.
type index struct {
	name    string
	added   uint64 // number of the call of AddIndexers; 0 is built in
	fn      IndexFunc
	state   IndexState
	values  tree[*posting]
	failed  tree[*failure]
	entries int // sum of the lengths of all postings
	bytes   int // of the postings' sets
	// While building, the keys up to cursor are filed, nil is none of them.
	cursor *key
	filed  int
	since  delta.Revision // when it became ready
}

// posting is the set of slots that have one value.
type posting struct {
	owner *edit
	value string
	slots set
}

func (p *posting) at() (string, string) { return p.value, "" }

type failure struct {
	key *key
	err error
}

func (f *failure) at() (string, string) { return f.key.at() }

// covers reports whether the index has taken in the key, so that a change of
// it must be filed.
func (x *index) covers(k *key) bool {
	return x.state == Ready || x.cursor != nil && k.compare(x.cursor.place()) <= 0
}

// err says why the index cannot answer for a snapshot of so many objects.
func (x *index) err(total int) error {
	switch {
	case x.state == Building:
		return &BuildingError{Index: x.name, Filed: min(x.filed, total), Total: total}
	case x.failed.n == 0:
		return nil
	}
	e := &FailedError{Index: x.name, Keys: x.failed.n}
	x.failed.each(func(f *failure) bool {
		e.Key, e.Err = f.key.String(), f.err
		return false
	})
	return e
}

// extract runs the function and brings its values into order.
func (x *index) extract(o *Object) ([]string, error) {
	if o == nil {
		return nil, nil
	}
	values, err := x.ask(o)
	return inOrder(values), err
}

// ask runs the function.
func (x *index) ask(o *Object) (values []string, err error) {
	defer func() {
		if r := recover(); r != nil {
			values, err = nil, fmt.Errorf("index function panicked: %v", r)
		}
	}()
	if values, err = x.fn(o); err != nil {
		return nil, err
	}
	return values, nil
}

// inOrder returns the values in order, each once.
func inOrder(values []string) []string {
	for i := 1; i < len(values); i++ {
		if values[i-1] >= values[i] {
			values = slices.Clone(values)
			slices.Sort(values)
			return slices.Compact(values)
		}
	}
	return values
}

// alike reports whether every index files two versions of a key alike.
func alike(a, b *Object) bool {
	return a != nil && b != nil && a.labels == b.labels && a.owners == b.owners && a.fields == b.fields &&
		a.uid == b.uid && (a.odd == b.odd || a.Fault() == b.Fault() && a.UID() == b.UID())
}

// refile moves a slot from the values of its old object to those of the new
// one; nil is none. It does nothing when they are equal.
func (x *index) refile(e *edit, ks keyring, id uint32, k *key, old, now *Object) {
	before, failed := x.extract(old)
	after, err := x.extract(now)
	if err != nil {
		x.failed = x.failed.put(e, &failure{key: k, err: err})
	} else if failed != nil {
		ns, name := k.at()
		x.failed, _ = x.failed.del(e, ns, name)
	}
	i, j := 0, 0
	for i < len(before) || j < len(after) {
		switch {
		case j == len(after) || i < len(before) && before[i] < after[j]:
			x.unfile(e, ks, k, before[i])
			i++
		case i == len(before) || after[j] < before[i]:
			x.file(e, ks, id, k, after[j])
			j++
		default:
			i, j = i+1, j+1
		}
	}
}

func (x *index) file(e *edit, ks keyring, id uint32, k *key, value string) {
	p, ok := x.values.get(value, "")
	owned := ok && p.owner == e
	if !owned {
		var slots set
		if ok {
			slots = p.slots
		}
		p = &posting{owner: e, value: value, slots: slots}
		x.values = x.values.put(e, p)
	}
	n, size := p.slots.len(), p.slots.bytes()
	p.slots = p.slots.put(e, ks, id, k, owned)
	x.entries += p.slots.len() - n
	x.bytes += p.slots.bytes() - size
}

func (x *index) unfile(e *edit, ks keyring, k *key, value string) {
	p, ok := x.values.get(value, "")
	if !ok {
		return
	}
	slots, removed := p.slots.del(e, ks, k.place(), p.owner == e)
	if !removed {
		return
	}
	x.entries--
	x.bytes += slots.bytes() - p.slots.bytes()
	if slots.n == 0 { // a dead value must not show
		x.values, _ = x.values.del(e, value, "")
		return
	}
	if p.owner != e {
		p = &posting{owner: e, value: p.value}
		x.values = x.values.put(e, p)
	}
	p.slots = slots
}

// IndexInfo describes one index.
type IndexInfo struct {
	Name  string
	State IndexState
	// Filed is how many objects the index has taken in.
	Filed int
	// Values is the number of different values, Entries of (value, key) pairs.
	Values, Entries int
	// Bytes is about what the index takes in memory.
	Bytes int
	// Failed is the number of keys the index function failed on.
	Failed int
	// Err is nil when the index is ready and Failed is zero; else the error that
	// reads give.
	Err error
	// CompleteFrom is the revision at which the index became ready.
	CompleteFrom delta.Revision
}

func (x *index) info(total int) IndexInfo {
	filed := min(x.filed, total)
	if x.state == Ready {
		filed = total
	}
	return IndexInfo{
		Name: x.name, State: x.state, Filed: filed, Values: x.values.n, Entries: x.entries, Bytes: x.memory(),
		Failed: x.failed.n, Err: x.err(total), CompleteFrom: x.since,
	}
}

// memory counts 60 bytes for a posting and its place in the tree of values,
// and 100 for a failure.
func (x *index) memory() int { return x.bytes + 60*x.values.n + 100*x.failed.n }

// sortedNames returns the names of a set of indexers in order.
func sortedNames(fns map[string]IndexFunc) []string { return slices.Sorted(maps.Keys(fns)) }
