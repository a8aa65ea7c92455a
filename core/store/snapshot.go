package store

import (
	"cmp"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
)

// State is how far a store has come. The store keeps it and hands it out with
// the objects it describes; the rules behind it are core/delta's.
type State struct {
	// Revision is what may be claimed: everything up to it is applied. It is
	// never the largest resource version seen.
	Revision delta.Revision
	// Upper bounds what is applied: no event above it. See Exact.
	Upper delta.Revision
	// Position is the place in the log that is applied. Its epoch is ahead of
	// the revision's while a new epoch is not yet synced.
	Position delta.Position
	// Synced: a complete list of the position's epoch is applied; before that
	// no read may be answered.
	Synced bool
	// Frozen: records were replaced before they were read, and what replaced
	// them is not all applied. Some objects may be older than at the position.
	Frozen bool
	// StaleTo is up to which sequence, at the latest, that was so in this run.
	StaleTo uint64
	// Fresh is when the source was last known to be current.
	Fresh time.Time
}

// Exact reports whether the objects are just those of the state at Revision: everything
// up to it is applied, and nothing above it.
func (s *State) Exact() bool { return s.Upper.Compare(s.Revision) <= 0 }

// Snapshot is the store at one moment. It never changes and is safe for
// concurrent use; holding it keeps its version of the objects alive.
type Snapshot struct {
	state   State
	horizon uint64
	last    uint64 // number of the last change in this snapshot
	run     uint64
	sums    sums
	keys    set
	faulty  set // part of keys
	keyring keyring
	objects vector[Object]
	tombs   tree[*Tombstone]
	indexes []*index // sorted by name
	next    chan struct{}
}

// State returns how far this snapshot has come.
func (s *Snapshot) State() State { return s.state }

// Superseded is closed as soon as a later snapshot exists.
func (s *Snapshot) Superseded() <-chan struct{} { return s.next }

// Len is the number of live keys, faulty ones included.
func (s *Snapshot) Len() int { return s.keys.len() }

// Bytes is the sum of the lengths of all payloads as they are served.
func (s *Snapshot) Bytes() int { return s.sums.served }

// StoredBytes is the sum of the lengths of all payloads as they are stored.
func (s *Snapshot) StoredBytes() int { return s.sums.stored }

// Faults is the number of faulty objects.
func (s *Snapshot) Faults() int { return s.faulty.len() }

// Faulty returns the faulty objects.
func (s *Snapshot) Faulty() Hits { return Hits{snap: s, one: s.faulty} }

// Tombstones is the number of deletes remembered.
func (s *Snapshot) Tombstones() int { return s.tombs.n }

// LastChange is the number of the last change this snapshot contains. Reading
// on from LastChange()+1 with Store.Change misses nothing and repeats nothing.
func (s *Snapshot) LastChange() uint64 { return s.last }

// Run grows whenever sequences may start over: those of changes between two
// snapshots can be compared only when both have the same.
func (s *Snapshot) Run() uint64 { return s.run }

// Get returns the object of a key, nil when there is none.
func (s *Snapshot) Get(key string) *Object {
	id, ok := s.keys.find(s.keyring, placeOf(key))
	if !ok {
		return nil
	}
	return s.objects.get(id)
}

// All walks the objects in key order, those after the given key; "" begins at
// the first.
func (s *Snapshot) All(after string) iter.Seq[*Object] {
	return Hits{snap: s, one: s.keys}.After(after)
}

// Namespace walks the objects of one namespace in key order, those after the
// given key.
func (s *Snapshot) Namespace(namespace, after string) iter.Seq[*Object] {
	return func(yield func(*Object) bool) {
		from := placeOf(namespace + "/")
		if namespace == "" {
			from = placeOf("")
		}
		if ns, _ := splitKey(after); after != "" && ns >= namespace {
			from = placeOf(after)
		}
		s.keys.from(s.keyring, from, func(id uint32) bool {
			k := s.keyring.get(id)
			return k.namespace() == namespace && (k.String() == after || yield(s.objects.get(id)))
		})
	}
}

func (s *Snapshot) index(name string) (*index, error) {
	for _, x := range s.indexes {
		if x.name == name {
			return x, nil
		}
	}
	return nil, &UnknownIndexError{Index: name}
}

// Added returns which call of AddIndexers an index came with, counted from 1; 0
// for one that was built in. One of the same name that was removed and added
// again has another number. It reports false when there is no such index.
func (s *Snapshot) Added(name string) (call uint64, ok bool) {
	x, err := s.index(name)
	if err != nil {
		return 0, false
	}
	return x.added, true
}

// ByIndex returns the objects filed under any of the values, each once. An
// unknown value has none. The error is *UnknownIndexError, *BuildingError, or
// *FailedError with what the index does have.
func (s *Snapshot) ByIndex(name string, values ...string) (Hits, error) {
	x, err := s.index(name)
	if err != nil {
		return Hits{snap: s}, err
	}
	if x.state == Building {
		return Hits{snap: s}, x.err(s.keys.len())
	}
	return s.union(x, values), x.err(s.keys.len())
}

// Index returns the union over the values that the object itself would be filed
// under; the object need not be in the store. Besides ByIndex's errors it
// returns that of the index function on this object.
func (s *Snapshot) Index(name string, like *Object) (Hits, error) {
	x, err := s.index(name)
	if err != nil {
		return Hits{snap: s}, err
	}
	values, err := x.extract(like)
	if err != nil {
		return Hits{snap: s}, &FailedError{Index: name, Keys: 1, Key: like.Key(), Err: err}
	}
	if x.state == Building {
		return Hits{snap: s}, x.err(s.keys.len())
	}
	return s.union(x, values), x.err(s.keys.len())
}

// Values returns what the index files an object under, sorted; the object need
// not be in the store and the index not be ready. The errors are
// *UnknownIndexError and *FailedError.
func (s *Snapshot) Values(name string, o *Object) ([]string, error) {
	x, err := s.index(name)
	if err != nil {
		return nil, err
	}
	values, err := x.extract(o)
	if err != nil {
		return nil, &FailedError{Index: name, Keys: 1, Key: o.Key(), Err: err}
	}
	return values, nil
}

// Unindexed returns the objects that a function of an index failed on, so that
// the index has no values of them; none of an index that is not known.
func (s *Snapshot) Unindexed(name string) Hits {
	h := Hits{snap: s}
	x, err := s.index(name)
	if err != nil || x.failed.n == 0 {
		return h
	}
	h.many = make([]uint32, 0, x.failed.n)
	x.failed.each(func(f *failure) bool {
		if id, ok := s.keys.find(s.keyring, f.key.place()); ok {
			h.many = append(h.many, id)
		}
		return true
	})
	return h
}

// UnindexedKeys is how many objects [Snapshot.Unindexed] has, and their first
// keys, at most so many.
func (s *Snapshot) UnindexedKeys(name string, most int) (n int, keys []string) {
	x, err := s.index(name)
	if err != nil {
		return 0, nil
	}
	x.failed.each(func(f *failure) bool {
		if len(keys) == most {
			return false
		}
		keys = append(keys, f.key.String())
		return true
	})
	return x.failed.n, keys
}

// IndexValues walks the values of an index that begin with prefix, in order,
// those after the given value, with the number of keys under each. Dead values
// do not show.
func (s *Snapshot) IndexValues(name, prefix, after string) (iter.Seq2[string, int], error) {
	x, err := s.index(name)
	if err != nil {
		return nil, err
	}
	if x.state == Building {
		return func(func(string, int) bool) {}, x.err(s.keys.len())
	}
	return func(yield func(string, int) bool) {
		x.values.from(max(prefix, after), "", func(p *posting) bool {
			if !strings.HasPrefix(p.value, prefix) {
				return false
			}
			return after != "" && p.value == after || yield(p.value, p.slots.len())
		})
	}, x.err(s.keys.len())
}

// Indexers lists the indexes by name.
func (s *Snapshot) Indexers() []IndexInfo {
	infos := make([]IndexInfo, len(s.indexes))
	for i, x := range s.indexes {
		infos[i] = x.info(s.keys.len())
	}
	return infos
}

// Since returns what a reader that has applied the log up to a sequence has
// missed: live objects and tombstones, each in log order. It reports false when
// a delete after that sequence may be forgotten, so the reader must start over.
func (s *Snapshot) Since(sequence uint64) (objects []*Object, tombs []*Tombstone, ok bool) {
	if sequence < s.horizon {
		return nil, nil, false
	}
	s.keys.each(func(id uint32) bool {
		if o := s.objects.get(id); o.seq > sequence {
			objects = append(objects, o)
		}
		return true
	})
	s.tombs.each(func(t *Tombstone) bool {
		if t.Sequence > sequence {
			tombs = append(tombs, t)
		}
		return true
	})
	slices.SortFunc(objects, func(a, b *Object) int { return cmp.Compare(a.seq, b.seq) })
	slices.SortFunc(tombs, func(a, b *Tombstone) int { return cmp.Compare(a.Sequence, b.Sequence) })
	return objects, tombs, true
}
