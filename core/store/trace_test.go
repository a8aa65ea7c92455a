package store_test

import (
	"slices"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
)

func TestAChangeHasTheTraceOfTheOpThatMadeIt(t *testing.T) {
	t.Parallel()
	s := store.New(store.Options{RingBytes: 100})
	now := time.Unix(1_700_000_000, 0)
	state := &store.State{Revision: delta.Revision{Epoch: 1, RV: "1"}, Position: delta.Position{Epoch: 1, Sequence: 1, Term: 1}, Synced: true}
	put := func(key, uid, rv string, sequence uint64, trace string) store.Op {
		return store.Op{Put: store.NewObject(store.ObjectConfig{Key: key, UID: uid, RV: rv, Epoch: 1, Sequence: sequence}), Trace: trace}
	}
	traces := func(after uint64) (all []string) {
		t.Helper()
		for n := after + 1; n <= s.Snapshot().LastChange(); n++ {
			c, err := s.Change(n)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, c.Trace())
		}
		return all
	}
	s.Apply(store.Batch{State: state}, now)
	s.Apply(store.Batch{Ops: []store.Op{
		put("a", "u1", "2", 2, "added"), put("b", "u2", "3", 3, ""), put("a", "u3", "4", 4, "recreated"), put("b", "u2", "3", 3, "the same"),
		{Delete: &store.Tombstone{Key: "b", UID: "u2", RV: "5", Epoch: 1, Sequence: 5, Reason: store.Observed, At: now}, Trace: "deleted"},
	}}, now)
	if got, want := traces(0), []string{"added", "", "recreated", "recreated", "deleted"}; !slices.Equal(got, want) {
		t.Errorf("the changes have the traces %q, want %q", got, want)
	}
	last := s.Snapshot().LastChange()
	s.Apply(store.Batch{Replay: true, Ops: []store.Op{put("c", "u4", "6", 6, "replayed")}, Sweep: true}, now)
	if got, want := traces(last), []string{"replayed", ""}; !slices.Equal(got, want) {
		t.Errorf("a replay and its sweep have the traces %q, want %q", got, want)
	}
	last = s.Snapshot().LastChange()
	long := string(make([]byte, 60))
	s.Apply(store.Batch{Ops: []store.Op{put("d", "u5", "7", 7, long), put("e", "u6", "8", 8, long)}}, now)
	if _, err := s.Change(last + 1); err == nil {
		t.Error("traces do not count against the bytes of the ring")
	}
}
