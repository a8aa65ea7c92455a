package store

import (
	"strings"
	"time"
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
	// Labels and Fields are sorted by name and may be shared between objects.
	Labels, Fields []Pair
	Owners         []Owner
	// Payload is the object as it is served; the store does not look into it.
	Payload []byte
	// Fault says why the payload cannot be trusted. A faulty object is an
	// error on its key: it is kept, it is in no index, and readers must refuse
	// to serve it.
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

// Label returns the value of a label and whether the object has it.
func (o *Object) Label(name string) (string, bool) { return lookup(o.Labels, name) }

// Field returns a field read at ingest and whether the object has it.
func (o *Object) Field(name string) (string, bool) { return lookup(o.Fields, name) }

func lookup(pairs []Pair, name string) (string, bool) {
	for i := range pairs {
		if pairs[i].Name == name {
			return pairs[i].Value, true
		}
	}
	return "", false
}

func splitKey(key string) (ns, name string) {
	if i := strings.IndexByte(key, '/'); i >= 0 {
		return key[:i], key[i+1:]
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
	if c := compare(epochA, epochB); c != 0 {
		return c
	}
	if c := CompareRV(rvA, rvB); c != 0 {
		return c
	}
	return compare(seqA, seqB)
}

func compare(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// CompareRV compares two resource versions as decimals of any length; "" is
// the lowest (T-12). Neither is checked for being a decimal.
func CompareRV(a, b string) int {
	a, b = strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
	if c := compare(uint64(len(a)), uint64(len(b))); c != 0 {
		return c
	}
	return strings.Compare(a, b)
}
