package payload

import (
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/store"
)

// An index that is declared gives objects fields while they are being
// compressed; they are not looked at again unless they change.
func TestAnObjectThatGotFieldsMeanwhileIsStoredBetterAllTheSame(t *testing.T) {
	t.Parallel()
	s, now := store.New(store.Options{}), time.Unix(1_700_000_000, 0)
	k := NewKeeper(s, Config{})
	var put, ops []store.Op
	for i, key := range []string{"a/refiled", "a/replaced", "a/same", "a/gone"} {
		o := store.NewObject(store.ObjectConfig{Key: key, RV: "1", Epoch: 1, Sequence: uint64(i) + 1, Payload: k.Put([]byte(`{"metadata":{}}`))})
		put = append(put, store.Op{Put: o})
		ops = append(ops, store.Op{Swap: &store.Swap{Old: o, New: o.WithStored(k.packed.Put([]byte("better")), nil)}})
	}
	s.Apply(store.Batch{Ops: put}, now)
	fields := store.NewFields([]store.Field{{Name: "f", Values: []string{"v"}}})
	s.Apply(store.Batch{Ops: []store.Op{
		{Swap: &store.Swap{Old: put[0].Put, New: put[0].Put.WithFields(fields)}},
		{Put: store.NewObject(store.ObjectConfig{Key: "a/replaced", RV: "5", Epoch: 1, Sequence: 5, Payload: k.Put([]byte(`{"a":1}`))})},
		{Delete: &store.Tombstone{Key: "a/gone", RV: "6", Epoch: 1, Sequence: 6, At: now}},
	}}, now)
	k.swap(ops, now)
	snap := s.Snapshot()
	for key, want := range map[string]string{"a/refiled": "better", "a/replaced": `{"a":1}`, "a/same": "better"} {
		if stored, _ := snap.Get(key).Stored(); string(stored) != want {
			t.Errorf("%s is stored as %q, want %q", key, stored, want)
		}
	}
	if values, _ := snap.Get("a/refiled").Field("f"); len(values) != 1 {
		t.Errorf("the new fields are lost: %q", values)
	}
	if snap.Get("a/gone") != nil {
		t.Error("a deleted object came back")
	}
}

func TestAPayloadIsMovedWhileItsObjectGetsFields(t *testing.T) {
	t.Parallel()
	s, now := store.New(store.Options{}), time.Unix(1_700_000_000, 0)
	k := NewKeeper(s, Config{})
	o := store.NewObject(store.ObjectConfig{Key: "a/b", RV: "1", Epoch: 1, Sequence: 1, Payload: k.Put([]byte(`{"metadata":{}}`))})
	stored, _ := o.Stored()
	elsewhere := k.raw.Put(stored)
	s.Apply(store.Batch{Ops: []store.Op{{Put: o}}}, now)
	fields := store.NewFields([]store.Field{{Name: "f", Values: []string{"v"}}})
	s.Apply(store.Batch{Ops: []store.Op{{Swap: &store.Swap{Old: o, New: o.WithFields(fields)}}}}, now)
	k.swap([]store.Op{{Swap: &store.Swap{Old: o, New: o.Moved(elsewhere)}}}, now)
	got := s.Snapshot().Get("a/b")
	if p, err := got.Payload(); err != nil || string(p) != `{"metadata":{}}` || &p[0] != &elsewhere[0] {
		t.Errorf("after the move: %q, %v", p, err)
	}
	if values, _ := got.Field("f"); len(values) != 1 {
		t.Errorf("the new fields are lost: %q", values)
	}
}
