package store

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
)

// Pair is a name with a value: a label, or a field read at ingest.
type Pair struct{ Name, Value string }

// Owner is one entry of an object's owner references.
type Owner struct {
	Kind, Name, UID string
	Controller      bool
}

// Object is one version of one key. It must not be changed after it was given
// to Apply; readers get the same pointer.
type Object struct {
	// Key is "namespace/name", or "name" for a cluster-scoped object (S-01).
	Key string
	UID string
	// RV is the API server's resource version, a decimal of any length.
	RV string
	// Epoch and Sequence are the record's place in the log.
	Epoch, Sequence uint64
	Generation      int64
	// Labels may be shared between objects; nil has none.
	Labels *Labels
	// Fields are what was read from the payload at ingest, by path.
	Fields []Pair
	Owners []Owner
	// Payload is the object as it is served; the store does not look into it.
	Payload []byte
	// Fault says why the payload cannot be served. A faulty object is an error
	// on its key, never an absence; its other facts may be guesses.
	Fault string
	// ObservedAt and PublishedAt come from the record; zero if unknown.
	ObservedAt, PublishedAt time.Time
}

// Namespace is the part of the key before the slash, "" when cluster-scoped.
func (o *Object) Namespace() string {
	ns, _ := splitKey(o.Key)
	return ns
}

// Name is the part of the key after the slash.
func (o *Object) Name() string {
	_, name := splitKey(o.Key)
	return name
}

// Field returns a field read at ingest and whether the object has it.
func (o *Object) Field(path string) (string, bool) {
	for i := range o.Fields {
		if o.Fields[i].Name == path {
			return o.Fields[i].Value, true
		}
	}
	return "", false
}

// Labels is a set of labels made ready for selectors and for an index. It is
// immutable, and a nil one is empty. It has the methods of a Kubernetes label
// set, so a parsed selector reads it without a copy.
type Labels struct {
	pairs []Pair
	terms []string
}

// NewLabels returns the set of the pairs, which it may reorder; nil if there
// are none. A name may come with several values: selectors see the first.
func NewLabels(pairs []Pair) *Labels {
	if len(pairs) == 0 {
		return nil
	}
	slices.SortFunc(pairs, func(a, b Pair) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Value, b.Value))
	})
	l := &Labels{pairs: pairs, terms: make([]string, 0, 2*len(pairs))}
	for i, p := range pairs {
		if i == 0 || pairs[i-1].Name != p.Name {
			l.terms = append(l.terms, p.Name)
		}
		l.terms = append(l.terms, p.Name+"="+p.Value)
	}
	slices.Sort(l.terms)
	l.terms = slices.Compact(l.terms)
	return l
}

// Terms returns, sorted, "name" and "name=value" of every label: the values of
// an index that answers both existence and equality. It must not be changed.
func (l *Labels) Terms() []string {
	if l == nil {
		return nil
	}
	return l.terms
}

// Lookup returns the value of a label and whether the set has it.
func (l *Labels) Lookup(name string) (string, bool) {
	if l == nil {
		return "", false
	}
	for i := range l.pairs {
		if l.pairs[i].Name == name {
			return l.pairs[i].Value, true
		}
	}
	return "", false
}

// Has reports whether the set has a label.
func (l *Labels) Has(name string) bool { _, ok := l.Lookup(name); return ok }

// Get returns the value of a label, "" when the set does not have it.
func (l *Labels) Get(name string) string { v, _ := l.Lookup(name); return v }

func splitKey(key string) (ns, name string) {
	if ns, name, ok := strings.Cut(key, "/"); ok {
		return ns, name
	}
	return "", key
}

// Reason says why a key is gone.
type Reason uint8

// The reasons of a delete.
const (
	// Observed: the source said so.
	Observed Reason = iota + 1
	// Inferred: a relist no longer had the key.
	Inferred
	// Filtered: the object left the collection's selector.
	Filtered
	// Recreated: the key came back with another UID.
	Recreated
	// Swept: a full replay of the log no longer had the key.
	Swept
)

// String names the reason in lower case.
func (r Reason) String() string {
	switch r {
	case Observed:
		return "observed"
	case Inferred:
		return "inferred"
	case Filtered:
		return "filtered"
	case Recreated:
		return "recreated"
	case Swept:
		return "swept"
	}
	return "unknown"
}

// Tombstone is the record of a delete. The store keeps it for the tombstone
// TTL so that a replayed older record cannot bring the object back.
type Tombstone struct {
	Key, UID, RV    string
	Epoch, Sequence uint64
	Reason          Reason
	// At is when the delete was published; it starts the TTL.
	At time.Time
}

func (t *Tombstone) at() (string, string) { return splitKey(t.Key) }

// slot is the identity of a live key inside one store: postings point at
// slots, and the vector says which object a slot holds in a snapshot.
type slot struct {
	key string
	ns  int32 // length of the namespace, -1 when cluster-scoped
	id  uint32
}

func newSlot(key string, id uint32) *slot {
	return &slot{key: key, ns: int32(strings.IndexByte(key, '/')), id: id}
}

func (s *slot) at() (string, string) {
	if s.ns < 0 {
		return "", s.key
	}
	return s.key[:s.ns], s.key[s.ns+1:]
}

// order compares two records of one key: by epoch, then resource version, then
// place in the log.
func order(epochA uint64, rvA string, seqA, epochB uint64, rvB string, seqB uint64) int {
	return cmp.Or(cmp.Compare(epochA, epochB), delta.Compare(rvA, rvB), cmp.Compare(seqA, seqB))
}
