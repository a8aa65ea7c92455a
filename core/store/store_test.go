package store_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
)

func object(key, uid, rv string, epoch, seq uint64) *store.Object {
	return store.NewObject(store.ObjectConfig{Key: key, UID: uid, RV: rv, Epoch: epoch, Sequence: seq, Payload: []byte(rv)})
}

func apply(s *store.Store, now time.Time, ops ...any) store.Result {
	var b store.Batch
	for _, op := range ops {
		switch op := op.(type) {
		case *store.Object:
			b.Ops = append(b.Ops, store.Op{Put: op})
		case *store.Tombstone:
			b.Ops = append(b.Ops, store.Op{Delete: op})
		}
	}
	return s.Apply(b, now)
}

func TestAnOlderRecordNeverReplacesANewerOne(t *testing.T) {
	t.Parallel()
	rows := []struct {
		name  string
		first *store.Object
		then  *store.Object
		want  string // RV afterwards
		res   store.Result
	}{
		{"a higher RV of another length wins", object("a", "u", "9", 1, 1), object("a", "u", "10", 1, 2), "10", store.Result{Updated: 1}},
		{"a lower RV is stale", object("a", "u", "13", 1, 1), object("a", "u", "9", 1, 2), "13", store.Result{Stale: 1}},
		{"the same record is seen once", object("a", "u", "13", 1, 1), object("a", "u", "13", 1, 1), "13", store.Result{Same: 1}},
		{"the same RV written again later counts", object("a", "u", "13", 1, 1), object("a", "u", "13", 1, 2), "13", store.Result{Updated: 1}},
		{"a later epoch beats a higher RV", object("a", "u", "13", 1, 9), object("a", "u", "2", 2, 1), "2", store.Result{Updated: 1}},
		{"an earlier epoch never comes back", object("a", "u", "2", 2, 9), object("a", "u", "13", 1, 10), "2", store.Result{Stale: 1}},
		{"forty digits are compared as a number", object("a", "u", "9999999999999999999999999999999999999999", 1, 1), object("a", "u", "10000000000000000000000000000000000000000", 1, 2), "10000000000000000000000000000000000000000", store.Result{Updated: 1}},
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			s := store.New(store.Options{})
			apply(s, epoch0, r.first)
			if got := apply(s, epoch0, r.then); got != r.res {
				t.Errorf("Apply = %+v, want %+v", got, r.res)
			}
			if got := s.Snapshot().Get("a").RV(); got != r.want {
				t.Errorf("RV = %s, want %s", got, r.want)
			}
		})
	}
}

func TestAReplayedEventDoesNotResurrectADeletedObjectWithinTheTTL(t *testing.T) {
	t.Parallel()
	s := store.New(store.Options{TombstoneTTL: time.Minute})
	apply(s, epoch0, object("n/a", "u", "5", 1, 5))
	apply(s, epoch0, &store.Tombstone{Key: "n/a", RV: "8", Epoch: 1, Sequence: 8, Reason: store.Observed, At: epoch0})
	if got := apply(s, epoch0.Add(time.Minute), object("n/a", "u", "7", 1, 9)); got.Stale != 1 || s.Snapshot().Get("n/a") != nil {
		t.Errorf("a replayed update = %+v, object %v", got, s.Snapshot().Get("n/a"))
	}
	if got := apply(s, epoch0, &store.Tombstone{Key: "n/a", RV: "6", Epoch: 1, Sequence: 9}); got.Stale != 1 {
		t.Errorf("an older tombstone = %+v, want stale", got)
	}
	if got := apply(s, epoch0, object("n/a", "v", "9", 1, 10)); got.Added != 1 || s.Snapshot().Tombstones() != 0 {
		t.Errorf("a newer object = %+v with %d tombstones", got, s.Snapshot().Tombstones())
	}
	if got := apply(s, epoch0, &store.Tombstone{Key: "n/a", RV: "8", Epoch: 1, Sequence: 11}); got.Stale != 1 || s.Snapshot().Get("n/a") == nil {
		t.Errorf("a late delete of the former object = %+v", got)
	}
	if got := apply(s, epoch0, &store.Tombstone{Key: "n/unknown", RV: "8", Epoch: 1, Sequence: 12, At: epoch0}); got.Deleted != 0 || s.Snapshot().Tombstones() != 1 {
		t.Errorf("a delete of an unknown key = %+v with %d tombstones", got, s.Snapshot().Tombstones())
	}
}

func TestAnotherUIDIsADeleteAndAnAdd(t *testing.T) {
	t.Parallel()
	h := newHistory(store.Options{})
	apply(h.s, h.now, object("n/a", "one", "1", 1, 1))
	from := h.s.Snapshot().LastChange()
	apply(h.s, h.now, object("n/a", "two", "4", 1, 2))
	del, err := h.s.Change(from + 1)
	if err != nil || del.Type != store.Deleted || del.Reason != store.Recreated || del.Old.UID() != "one" {
		t.Fatalf("first change = %+v, %v", del, err)
	}
	add, err := h.s.Change(from + 2)
	if err != nil || add.Type != store.Added || add.New.UID() != "two" || add.Key != "n/a" {
		t.Fatalf("second change = %+v, %v", add, err)
	}
	if _, err := h.s.Change(from + 3); err == nil {
		t.Fatal("a change that is not made yet has no error")
	}
}

func TestObjectsAreOrderedByNamespaceThenName(t *testing.T) {
	t.Parallel()
	s := store.New(store.Options{})
	for i, key := range []string{"b/a", "a/z", "a-b/a", "a.b/c", "a/b", "node"} {
		apply(s, epoch0, object(key, "u", "1", 1, uint64(i)))
	}
	var all, a, rest []string
	for o := range s.Snapshot().All("") {
		all = append(all, o.Key())
	}
	for o := range s.Snapshot().Namespace("a", "") {
		a = append(a, o.Key())
	}
	for o := range s.Snapshot().Namespace("a", "a/b") {
		rest = append(rest, o.Key())
	}
	if want := []string{"node", "a/b", "a/z", "a-b/a", "a.b/c", "b/a"}; !slices.Equal(all, want) {
		t.Errorf("All = %q, want %q", all, want)
	}
	if want := []string{"a/b", "a/z"}; !slices.Equal(a, want) {
		t.Errorf("Namespace(a) = %q, want %q", a, want)
	}
	if want := []string{"a/z"}; !slices.Equal(rest, want) {
		t.Errorf("Namespace(a) after a/b = %q, want %q", rest, want)
	}
	for o := range s.Snapshot().Namespace("c", "b/a") {
		t.Errorf("Namespace(c) has %q", o.Key())
	}
}

func TestASnapshotIsPinnedWhileTheStoreGoesOn(t *testing.T) {
	t.Parallel()
	h := newHistory(store.Options{Indexers: map[string]store.IndexFunc{"words": words}})
	for i := range 200 {
		h.put(fmt.Sprintf("n/%03d", i), "old")
	}
	pinned := h.s.Snapshot()
	for i := range 200 {
		h.put(fmt.Sprintf("n/%03d", i), "new")
		h.delete(fmt.Sprintf("n/%03d", (i*7)%200))
	}
	select {
	case <-pinned.Superseded():
	default:
		t.Error("Superseded is open although there is a later snapshot")
	}
	if got := len(keys(t, pinned, "words", "old")); got != 200 || pinned.Len() != 200 {
		t.Errorf("the pinned snapshot has %d old of %d", got, pinned.Len())
	}
	for o := range pinned.All("") {
		if payload, err := o.Payload(); err != nil || string(payload) != "old" {
			t.Fatalf("%s is %q in the pinned snapshot: %v", o.Key(), payload, err)
		}
	}
}

func TestASweepDeletesWhatAReplayDidNotName(t *testing.T) {
	t.Parallel()
	h := newHistory(store.Options{})
	for i := range 10 {
		h.put(fmt.Sprint("k", i), "x")
	}
	st := store.State{Revision: delta.Revision{Epoch: 2, RV: "5"}, Position: delta.Position{Epoch: 2, Sequence: 40}}
	h.s.Apply(store.Batch{Replay: true, State: &st, Ops: []store.Op{
		{Put: object("k1", "u-k1", "1", 2, 31)},
		{Put: h.s.Snapshot().Get("k2")}, // the same record again counts as named
		{Put: object("k3", "u-k3", "1", 1, 1)},
	}}, h.now)
	if h.s.Snapshot().Len() != 10 {
		t.Fatal("keys vanished before the sweep")
	}
	st.Synced = true
	res := h.s.Apply(store.Batch{Sweep: true, State: &st}, h.now)
	if res.Swept != 7 || h.s.Snapshot().Len() != 3 {
		t.Errorf("Apply = %+v with %d left, want 7 swept and 3 left", res, h.s.Snapshot().Len())
	}
	last, err := h.s.Change(h.s.Snapshot().LastChange())
	if err != nil || last.Reason != store.Swept || last.Epoch != 2 || last.Sequence != 40 {
		t.Errorf("last change = %+v, %v", last, err)
	}
	if got := apply(h.s, h.now, object("k5", "u", "9999", 1, 50)); got.Stale != 1 {
		t.Errorf("a record of the old epoch after the sweep = %+v, want stale", got)
	}
}

// A recreated log begins at sequence 1: what was forgotten of the old one does not apply to it.
func TestTheHorizonOfAnotherLogIsForgotten(t *testing.T) {
	t.Parallel()
	h := newHistory(store.Options{TombstoneTTL: time.Minute})
	for i := range 6 {
		h.put(fmt.Sprint("k", i), "x") // sequences 1..6
	}
	h.delete("k1") // 7
	h.now = h.now.Add(time.Minute + 1)
	h.put("k0", "y") // and the delete is forgotten
	since := func(sequence uint64) bool {
		_, _, ok := h.s.Snapshot().Since(sequence)
		return ok
	}
	if since(6) || !since(7) {
		t.Fatal("the horizon of the first log is not 7")
	}
	st := store.State{Revision: delta.Revision{Epoch: 2, RV: "50"}, Position: delta.Position{Epoch: 2, Sequence: 3}}
	h.s.Apply(store.Batch{Replay: true, State: &st, Ops: []store.Op{{Put: object("k0", "u-k0", "40", 2, 2)}}}, h.now)
	if since(3) || since(1000) {
		t.Error("Since answers in a replay, before it is known which deletes it lacks")
	}
	st.Position.Sequence, st.Synced = 5, true
	h.s.Apply(store.Batch{Sweep: true, State: &st, Horizon: 2, Ops: []store.Op{{Put: object("k2", "u-k2", "41", 2, 4)}}}, h.now)
	if since(1) || !since(2) {
		t.Error("the horizon is not the new log's")
	}
	objects, tombs, ok := h.s.Snapshot().Since(3)
	if !ok || len(objects) != 1 || objects[0].Key() != "k2" || len(tombs) != 3 {
		t.Errorf("Since(3) = %v, %v, %v, want k2 and the three that the new log does not have", objects, tombs, ok)
	}
	h.s.Apply(store.Batch{Horizon: 1}, h.now)
	if since(1) {
		t.Error("a horizon was lowered within one log")
	}
}

func TestSinceGivesWhatAReaderMissedOrSaysItCannot(t *testing.T) {
	t.Parallel()
	h := newHistory(store.Options{TombstoneTTL: time.Minute})
	for i := range 6 {
		h.put(fmt.Sprint("k", i), "x") // sequences 1..6
	}
	h.delete("k1") // 7
	h.put("k0", "y")
	objects, tombs, ok := h.s.Snapshot().Since(5)
	if !ok || len(objects) != 2 || objects[0].Key() != "k5" || objects[1].Key() != "k0" || len(tombs) != 1 || tombs[0].Key != "k1" {
		t.Fatalf("Since(5) = %v %v %v", objects, tombs, ok)
	}
	h.now = h.now.Add(time.Minute + 1)
	h.put("k9", "z")
	if _, _, ok := h.s.Snapshot().Since(6); ok {
		t.Error("Since(6) answers although the delete at 7 is forgotten")
	}
	if _, _, ok := h.s.Snapshot().Since(7); !ok {
		t.Error("Since(7) refuses although nothing after 7 is forgotten")
	}
	h.s.Apply(store.Batch{Horizon: 100}, h.now)
	if _, _, ok := h.s.Snapshot().Since(99); ok {
		t.Error("Since below the given horizon answers")
	}
}

func TestTheRingOverrunsASlowReaderByNumberAndByBytes(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]store.Options{
		"number": {RingChanges: 4},
		"bytes":  {RingBytes: 40},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHistory(opts)
			h.put("a", "0123456789")
			from := h.s.Snapshot().LastChange()
			for range 20 {
				h.put("a", "0123456789")
			}
			_, err := h.s.Change(from)
			overrun, ok := errors.AsType[*store.OverrunError](err)
			if !ok || overrun.Missed != 17 {
				t.Fatalf("Change = %v, want an overrun of 17", err)
			}
			last := h.s.Snapshot().LastChange()
			for n := from + overrun.Missed; n <= last; n++ {
				if c, err := h.s.Change(n); err != nil || c.N != n {
					t.Fatalf("Change(%d) = %v, %v", n, c, err)
				}
			}
		})
	}
}

func TestAFaultyObjectIsKeptUnderTheFactsItHas(t *testing.T) {
	t.Parallel()
	h := newHistory(store.Options{Indexers: map[string]store.IndexFunc{"words": words}})
	h.put("n/a", "x")
	o := store.NewObject(store.ObjectConfig{
		Key: "n/a", UID: "u-n/a", RV: "50", Epoch: 1, Sequence: 50, Fault: "not JSON", Payload: []byte("x {"), Fields: text("x"),
	})
	apply(h.s, h.now, o)
	snap := h.s.Snapshot()
	if snap.Faults() != 1 || snap.Get("n/a").Fault() == "" || len(keys(t, snap, "words", "x")) != 1 {
		t.Errorf("faults %d, object %+v", snap.Faults(), snap.Get("n/a"))
	}
	h.seq = 60
	h.put("n/a", "x")
	if snap := h.s.Snapshot(); snap.Faults() != 0 || snap.Bytes() != 1 || len(keys(t, snap, "words", "x")) != 1 {
		t.Errorf("after repair: faults %d, bytes %d", snap.Faults(), snap.Bytes())
	}
}

func TestADoubtMakesTheKeyFaultyUntilANewerRecord(t *testing.T) {
	t.Parallel()
	h := newHistory(store.Options{Indexers: map[string]store.IndexFunc{"uid": func(o *store.Object) ([]string, error) { return []string{o.UID()}, nil }}})
	apply(h.s, h.now, object("live", "u", "5", 1, 5), object("gone", "g", "6", 1, 6))
	apply(h.s, h.now, &store.Tombstone{Key: "gone", UID: "g", RV: "7", Epoch: 1, Sequence: 7, At: h.now})
	for i, key := range []string{"live", "gone", "new"} {
		d := &store.Doubt{Key: key, Epoch: 1, Sequence: uint64(10 + i), Fault: "schema 9"}
		h.s.Apply(store.Batch{Ops: []store.Op{{Doubt: d}}}, h.now)
		if o := h.s.Snapshot().Get(key); o == nil || o.Fault() != "schema 9" || o.Size() != 0 {
			t.Errorf("%s is %+v, want it unresolved", key, o)
		}
	}
	if got := keys(t, h.s.Snapshot(), "uid", "u"); !slices.Equal(got, []string{"live"}) {
		t.Errorf("the key unresolved is filed under %q", got)
	}
	for i, key := range []string{"live", "gone", "new"} {
		apply(h.s, h.now, object(key, "u", "8", 1, uint64(20+i)))
	}
	if n := h.s.Snapshot().Faults(); n != 0 {
		t.Errorf("%d keys stay unresolved after newer records", n)
	}
}

func TestDuringAReplayTheLogIsTheTruth(t *testing.T) {
	t.Parallel()
	h := newHistory(store.Options{})
	apply(h.s, h.now, object("back", "u", "100", 1, 10), object("deleted", "u", "100", 1, 11))
	apply(h.s, h.now, &store.Tombstone{Key: "deleted", Epoch: 1, RV: "101", Sequence: 12, At: h.now})
	h.s.Apply(store.Batch{Replay: true, Ops: []store.Op{
		{Put: object("back", "u", "90", 1, 3)},
		{Put: object("deleted", "u", "90", 1, 4)},
		{Put: object("back", "u", "80", 1, 5)}, // within the replay an older record is refused again
	}}, h.now)
	if got := h.s.Snapshot().Get("back").RV(); got != "90" {
		t.Errorf("after the log was rolled back the store has %s, want 90", got)
	}
	if h.s.Snapshot().Get("deleted") == nil {
		t.Error("a tombstone the log no longer has still hides the object")
	}
}

func TestResumeFindsTheFirstChangeAfterASequence(t *testing.T) {
	t.Parallel()
	s := store.New(store.Options{RingChanges: 8})
	at := func(seq uint64) *store.State {
		return &store.State{Position: delta.Position{Epoch: 1, Sequence: seq}, Synced: true}
	}
	s.Apply(store.Batch{State: at(10), Ops: []store.Op{{Put: object("a", "u", "10", 1, 10)}}}, epoch0)
	for seq := uint64(12); seq <= 16; seq += 2 {
		s.Apply(store.Batch{State: at(seq), Ops: []store.Op{{Put: object("a", "u", fmt.Sprint(seq), 1, seq)}}}, epoch0)
	}
	resume := func(seq uint64) (uint64, bool) { return s.Resume(s.Snapshot(), seq) }
	for _, r := range []struct {
		seq  uint64
		want uint64 // sequence of the first change given, 0 for none yet
		ok   bool
	}{{9, 0, false}, {10, 12, true}, {11, 12, true}, {12, 14, true}, {16, 0, true}, {99, 0, true}} {
		n, ok := resume(r.seq)
		if ok != r.ok {
			t.Errorf("Resume(%d) = %v, want %v", r.seq, ok, r.ok)
			continue
		}
		if c, err := s.Change(n); ok && r.want != 0 && (err != nil || c.Sequence != r.want) {
			t.Errorf("Resume(%d) begins with %+v, %v, want sequence %d", r.seq, c, err, r.want)
		} else if ok && r.want == 0 && n != s.Snapshot().LastChange()+1 {
			t.Errorf("Resume(%d) = %d, want the next change to come", r.seq, n)
		}
	}
	for seq := uint64(17); seq < 40; seq++ {
		s.Apply(store.Batch{State: at(seq), Ops: []store.Op{{Put: object("a", "u", fmt.Sprint(seq), 1, seq)}}}, epoch0)
	}
	if _, ok := resume(20); ok {
		t.Error("Resume answers from before the ring")
	}
	s.Apply(store.Batch{Replay: true, State: at(3)}, epoch0)
	if _, ok := resume(2); ok {
		t.Error("Resume crosses a replay")
	}
	if _, ok := resume(3); !ok {
		t.Error("Resume from the end of the replay is refused")
	}
}
