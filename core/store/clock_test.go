package store_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
)

// A clock that is ahead of the store's must not keep tombstones for ever, nor
// those behind its own.
func TestATombstoneOfAClockThatIsAheadExpiresWithTheOthers(t *testing.T) {
	t.Parallel()
	year := epoch0.AddDate(1, 0, 0)
	tombs := func(at time.Time) []*store.Tombstone {
		list := []*store.Tombstone{{Key: "n/ahead", RV: "1", Epoch: 1, Sequence: 1, At: year}}
		for i := range uint64(10) {
			list = append(list, &store.Tombstone{Key: fmt.Sprintf("n/%d", i), RV: fmt.Sprint(i + 2), Epoch: 1, Sequence: i + 2, At: at})
		}
		return list
	}
	for name, fill := range map[string]func(*store.Store){
		"applied": func(s *store.Store) {
			for _, tomb := range tombs(epoch0) {
				apply(s, epoch0, tomb)
			}
		},
		"loaded": func(s *store.Store) {
			if err := s.Load(store.Dump{Objects: func(func(*store.Object) bool) {}, Tombstones: slices.Values(tombs(epoch0))}, epoch0); err != nil {
				t.Fatal(err)
			}
		},
	} {
		s := store.New(store.Options{TombstoneTTL: time.Hour})
		fill(s)
		if got := s.Snapshot().Tombstones(); got != 11 {
			t.Fatalf("%s: %d tombstones, want 11", name, got)
		}
		apply(s, epoch0.Add(time.Hour+time.Second))
		if got := s.Snapshot().Tombstones(); got != 0 {
			t.Errorf("%s: %d tombstones are left after the TTL", name, got)
		}
	}
}

// What a swap replaces must not live on in the changes kept for watchers.
func TestASwapReplacesTheStoredFormInTheRingToo(t *testing.T) {
	t.Parallel()
	s := store.New(store.Options{RingChanges: 64})
	s.Apply(store.Batch{State: &store.State{Synced: true}}, epoch0)
	var objects []*store.Object
	for i := range uint64(20) {
		o := store.NewObject(store.ObjectConfig{
			Key: fmt.Sprintf("n/%d", i%10), UID: fmt.Sprint("u", i), RV: fmt.Sprint(i + 1), Epoch: 1, Sequence: i + 1, Payload: []byte("PAYLOAD"),
		})
		if i%3 > 0 { // recreated: a delete and an add with one sequence
			o = store.NewObject(store.ObjectConfig{Key: fmt.Sprintf("n/%d", i%10), RV: fmt.Sprint(i + 1), Epoch: 1, Sequence: i + 1, Payload: []byte("PAYLOAD")})
		}
		objects = append(objects, o)
		apply(s, epoch0, o)
	}
	codec := &upper{}
	last := s.Snapshot().LastChange()
	var before []store.Change
	for n := uint64(1); n <= last; n++ {
		c, err := s.Change(n)
		if err != nil {
			t.Fatal(err)
		}
		before = append(before, *c)
	}
	var ops []store.Op
	for _, o := range objects {
		ops = append(ops, store.Op{Swap: &store.Swap{Old: o, New: o.WithStored([]byte("payload"), codec)}})
	}
	if got := s.Apply(store.Batch{Ops: ops, State: &store.State{Synced: true, Position: delta.Position{Epoch: 1, Sequence: 20}}}, epoch0).Swapped; got != 10 {
		t.Fatalf("%d swapped, want the latest of 10 keys", got)
	}
	held := 0
	for n := uint64(1); n <= last; n++ {
		c, err := s.Change(n)
		if err != nil {
			t.Fatal(err)
		}
		was := before[n-1]
		if c.N != was.N || c.Type != was.Type || c.Key != was.Key || c.RV != was.RV || c.Sequence != was.Sequence || c.Run != was.Run || c.Old != was.Old {
			t.Errorf("change %d became %+v, was %+v", n, c, was)
		}
		if c.New == nil {
			continue
		}
		if p, err := c.New.Payload(); err != nil || string(p) != "PAYLOAD" {
			t.Errorf("change %d has payload %q, %v", n, p, err)
		}
		if c.New == s.Snapshot().Get(c.Key) {
			held++
		}
	}
	if held != 10 {
		t.Errorf("the ring shares %d objects with the store, want all 10 that are the latest of their key", held)
	}
}
