package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
)

// Objects as they were deleted live in the ring alone, and count against its bytes.
func TestTheRingBoundsTheObjectsOfDeletions(t *testing.T) {
	t.Parallel()
	const size, limit = 1 << 10, 10 << 10
	s := store.New(store.Options{TombstoneTTL: time.Hour, RingChanges: 1 << 10, RingBytes: limit})
	now := time.Unix(1_700_000_000, 0)
	state := func(n uint64) *store.State {
		return &store.State{Revision: delta.Revision{Epoch: 1, RV: fmt.Sprint(n)}, Position: delta.Position{Epoch: 1, Sequence: n, Term: 1}, Synced: true}
	}
	object := func(n uint64, payload []byte) *store.Object {
		return store.NewObject(store.ObjectConfig{Key: fmt.Sprintf("a/%03d", n/2), UID: "u", RV: fmt.Sprint(n), Epoch: 1, Sequence: n, Payload: payload})
	}
	s.Apply(store.Batch{State: state(1)}, now)
	var last store.Change
	for n := uint64(2); n < 202; n += 2 {
		s.Apply(store.Batch{Ops: []store.Op{{Put: object(n, []byte("{}"))}}, State: state(n)}, now)
		s.Apply(store.Batch{Ops: []store.Op{{
			Delete: &store.Tombstone{Key: fmt.Sprintf("a/%03d", n/2), UID: "u", RV: fmt.Sprint(n + 1), Epoch: 1, Sequence: n + 1, Reason: store.Observed, At: now},
			Final:  object(n, make([]byte, size)),
		}}, State: state(n + 1)}, now)
		c, err := s.Change(s.Snapshot().LastChange())
		if err != nil {
			t.Fatal(err)
		}
		last = *c
	}
	if last.Type != store.Deleted || last.Final == nil || last.RV != "201" {
		t.Fatalf("the last change is %+v", last)
	}
	kept := 0
	for n := s.Snapshot().LastChange(); n > 0; n-- {
		c, err := s.Change(n)
		if err != nil {
			break
		}
		if c.Final != nil {
			kept++
		}
	}
	if kept == 0 || kept > limit/size {
		t.Errorf("%d objects of %d bytes are kept, in a ring of %d", kept, size, limit)
	}
}
