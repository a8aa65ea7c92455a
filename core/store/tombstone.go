package store

import (
	"cmp"
	"slices"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
)

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
	// At is when the delete was published; it starts the TTL. A time that is
	// still to come is taken for that at which the store hears of it.
	At time.Time
}

func (t *Tombstone) at() (string, string) { return splitKey(t.Key) }

// queue holds tombstones in the order they came. What is taken out is given
// back, without a copy for each.
type queue struct {
	list []*Tombstone
	head int
}

func (q *queue) push(t *Tombstone) { q.list = append(q.list, t) }

// first returns the oldest, nil when there is none.
func (q *queue) first() *Tombstone {
	if q.head == len(q.list) {
		return nil
	}
	return q.list[q.head]
}

func (q *queue) pop() {
	q.list[q.head] = nil
	if q.head++; q.head > len(q.list)/2 {
		q.list, q.head = slices.Clone(q.list[q.head:]), 0
	}
}

// compare orders two deletes of one key as Object.compare orders objects.
func (t *Tombstone) compare(u *Tombstone) int {
	return cmp.Or(cmp.Compare(t.Epoch, u.Epoch), delta.Compare(t.RV, u.RV), cmp.Compare(t.Sequence, u.Sequence))
}
