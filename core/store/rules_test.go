package store_test

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
)

// The rules of client-go's stores, with the rows of its own tests where they make
// sense here. Indexes have more in index_test.go.

func TestEveryReadIsOfOneSnapshot(t *testing.T) {
	t.Parallel()
	h := newHistory(store.Options{Indexers: map[string]store.IndexFunc{"words": words}})
	h.put("n/b", "red")
	h.put("n/a", "red")
	snap := h.s.Snapshot()
	hits, err := snap.ByIndex("words", "red")
	if err != nil {
		t.Fatal(err)
	}
	h.delete("n/a")
	h.put("n/c", "red")
	h.put("n/b", "blue")
	if got := hits.Keys(); !slices.Equal(got, []string{"n/a", "n/b"}) {
		t.Errorf("an answer changed under its reader: %q", got)
	}
	if got := slices.Collect(hits.KeysAfter("n/a")); !slices.Equal(got, []string{"n/b"}) {
		t.Errorf("IndexKeys after n/a = %q", got)
	}
	if p, _ := snap.Get("n/b").Payload(); string(p) != "red" {
		t.Errorf("an old snapshot serves %q", p)
	}
}

func TestMultiIndexKeysRowByRow(t *testing.T) {
	t.Parallel()
	h := newHistory(store.Options{Indexers: map[string]store.IndexFunc{"users": words}})
	for _, r := range [][2]string{{"one", "ernie bert"}, {"tre", "ernie elmo"}, {"two", "bert oscar"}} {
		h.put("n/"+r[0], r[1])
	}
	states := []struct {
		name string
		do   func()
		want map[string]string
	}{
		{"as added", func() {}, map[string]string{"ernie": "one tre", "bert": "one two", "elmo": "tre", "oscar": "two", "elmo1": ""}},
		{"tre deleted", func() { h.delete("n/tre") }, map[string]string{"ernie": "one", "bert": "one two", "elmo": "", "oscar": "two", "elmo1": ""}},
		{"two retagged", func() { h.put("n/two", "oscar") }, map[string]string{"ernie": "one", "bert": "one", "elmo": "", "oscar": "two"}},
	}
	for _, s := range states {
		s.do()
		for user, want := range s.want {
			got := strings.ReplaceAll(strings.Join(keys(t, h.s.Snapshot(), "users", user), " "), "n/", "")
			if got != want {
				t.Errorf("%s: %s has %q, want %q", s.name, user, got, want)
			}
		}
	}
	shown := slices.Sorted(maps.Keys(values(t, h.s.Snapshot(), "users", "", "")))
	if want := []string{"bert", "ernie", "oscar"}; !slices.Equal(shown, want) {
		t.Errorf("ListIndexFuncValues = %q, want %q", shown, want)
	}
}

func TestADeadValueVanishesAndALiveOneStays(t *testing.T) {
	t.Parallel()
	h := newHistory(store.Options{Indexers: map[string]store.IndexFunc{"words": words}})
	steps := []struct {
		key, text string // no text deletes
		want      map[string]int
	}{
		{"n/1", "a", map[string]int{"a": 1}},
		{"n/2", "a b", map[string]int{"a": 2, "b": 1}},
		{"n/1", "", map[string]int{"a": 1, "b": 1}},
		{"n/2", "b", map[string]int{"b": 1}},
		{"n/2", "b b", map[string]int{"b": 1}},
		{"n/2", "", map[string]int{}},
		{"n/2", "c", map[string]int{"c": 1}},
	}
	for i, s := range steps {
		if s.text == "" {
			h.delete(s.key)
		} else {
			h.put(s.key, s.text)
		}
		if got := values(t, h.s.Snapshot(), "words", "", ""); !maps.Equal(got, s.want) {
			t.Errorf("step %d: values %v, want %v", i, got, s.want)
		}
	}
}

func TestAddIndexersIsAllOrNothing(t *testing.T) {
	t.Parallel()
	h := newHistory(store.Options{Indexers: map[string]store.IndexFunc{"words": words}})
	h.put("n/1", "a")
	none := func(*store.Object) ([]string, error) { return nil, nil }
	var conflict *store.ConflictError
	if err := h.s.AddIndexers(map[string]store.IndexFunc{"a": none, "words": none, "z": none}); !errors.As(err, &conflict) {
		t.Fatalf("AddIndexers = %v", err)
	}
	if infos := h.s.Snapshot().Indexers(); len(infos) != 1 || len(keys(t, h.s.Snapshot(), "words", "a")) != 1 {
		t.Errorf("after a conflict there are %v", infos)
	}
	var unknown *store.UnknownIndexError
	if err := h.s.RemoveIndexers("words", "nope"); !errors.As(err, &unknown) || unknown.Index != "nope" {
		t.Fatalf("RemoveIndexers = %v", err)
	}
	if len(h.s.Snapshot().Indexers()) != 1 {
		t.Error("RemoveIndexers with an unknown name removed another")
	}
	before := h.s.Snapshot()
	if err := h.s.RemoveIndexers("words"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.s.Snapshot().ByIndex("words", "a"); !errors.As(err, &unknown) {
		t.Errorf("a removed index answers with %v", err)
	}
	if len(keys(t, before, "words", "a")) != 1 {
		t.Error("an older snapshot lost the index")
	}
}

func TestAnIndexIsReadyAtTheRevisionItIsCompleteFrom(t *testing.T) {
	t.Parallel()
	h := newHistory(store.Options{})
	for i := range 50 {
		h.put(fmt.Sprintf("n/%02d", i), "old")
	}
	at := func(rv string) {
		h.s.Apply(store.Batch{State: &store.State{
			Revision: delta.Revision{Epoch: 1, RV: rv}, Position: delta.Position{Epoch: 1, Sequence: h.seq}, Synced: true,
		}}, h.now)
	}
	at("50")
	if err := h.s.AddIndexers(map[string]store.IndexFunc{"words": words}); err != nil {
		t.Fatal(err)
	}
	h.s.Step(20)
	h.put("n/05", "new")  // built already
	h.put("n/45", "new")  // not built yet
	h.put("n/a", "new")   // comes last
	h.delete("n/06")      // built already
	h.delete("n/46")      // not built yet
	h.put("n/30", "bad")  // fails, not built yet
	h.put("n/07", "boom") // fails, built already
	info := h.s.Snapshot().Indexers()[0]
	if info.State != store.Building || info.Filed == 0 || info.Filed > 30 || info.Err == nil {
		t.Fatalf("half built: %+v", info)
	}
	if _, err := h.s.Snapshot().IndexValues("words", "", ""); err == nil {
		t.Error("ListIndexFuncValues of a building index answers")
	}
	if _, err := h.s.Snapshot().Index("words", store.NewObject(store.ObjectConfig{Fields: text("new")})); err == nil {
		t.Error("Index of a building index answers")
	}
	at("57")
	if err := h.s.Build(t.Context()); err != nil {
		t.Fatal(err)
	}
	info = h.s.Snapshot().Indexers()[0]
	if info.State != store.Ready || info.CompleteFrom != (delta.Revision{Epoch: 1, RV: "57"}) || info.Failed != 2 || info.Entries != 47 || info.Bytes == 0 {
		t.Errorf("built: %+v", info)
	}
	hits, err := h.s.Snapshot().ByIndex("words", "new")
	if failed, ok := errors.AsType[*store.FailedError](err); !ok || failed.Key != "n/07" || failed.Keys != 2 {
		t.Errorf("error = %v, want FailedError, first on n/07", err)
	}
	if got := hits.Keys(); !slices.Equal(got, []string{"n/05", "n/45", "n/a"}) {
		t.Errorf("new = %q", got)
	}
}

func TestAnIndexOfAnEmptyOrNeverSyncedStoreNeedsNoBuild(t *testing.T) {
	t.Parallel()
	h := newHistory(store.Options{})
	if err := h.s.AddIndexers(map[string]store.IndexFunc{"words": words}); err != nil {
		t.Fatal(err)
	}
	h.put("n/1", "a")
	if got := keys(t, h.s.Snapshot(), "words", "a"); len(got) != 1 {
		t.Errorf("a = %q", got)
	}
	s := store.New(store.Options{Indexers: map[string]store.IndexFunc{"words": words}})
	s.Apply(store.Batch{Ops: []store.Op{{Put: store.NewObject(store.ObjectConfig{Key: "n/1", RV: "1", Fields: text("a")})}}}, epoch0)
	if err := s.AddIndexers(map[string]store.IndexFunc{"lengths": lengths}); err != nil {
		t.Fatal(err)
	}
	if err := s.Build(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Snapshot().ByIndex("words", "a"); err == nil {
		t.Error("an index answers before the first sync")
	}
	rev := delta.Revision{Epoch: 1, RV: "9"}
	s.Apply(store.Batch{State: &store.State{Revision: rev, Synced: true}}, epoch0)
	for _, info := range s.Snapshot().Indexers() {
		if info.State != store.Ready || info.CompleteFrom != rev || info.Entries != 1 {
			t.Errorf("after the first sync: %+v", info)
		}
	}
}

func TestAReplayRebuildsEveryIndex(t *testing.T) {
	t.Parallel()
	h := newHistory(store.Options{Indexers: map[string]store.IndexFunc{"words": words}})
	h.put("n/1", "a")
	h.put("n/2", "a b")
	h.put("n/3", "c")
	list := []store.Op{
		{Put: store.NewObject(store.ObjectConfig{Key: "n/2", RV: "1", Epoch: 2, Sequence: 1, Fields: text("b")})},
		{Put: store.NewObject(store.ObjectConfig{Key: "n/4", RV: "2", Epoch: 2, Sequence: 2, Fields: text("d b")})},
	}
	st := &store.State{Position: delta.Position{Epoch: 2, Sequence: 2}, Synced: true}
	h.s.Apply(store.Batch{Replay: true, Ops: list, Sweep: true, State: st}, h.now)
	if got, want := values(t, h.s.Snapshot(), "words", "", ""), map[string]int{"b": 2, "d": 1}; !maps.Equal(got, want) {
		t.Errorf("values = %v, want %v", got, want)
	}
}

func TestTheRevisionIsTheLogsClaimNotTheLastObjectsVersion(t *testing.T) {
	t.Parallel()
	h := newHistory(store.Options{})
	rev := delta.Revision{Epoch: 1, RV: "10"}
	h.s.Apply(store.Batch{State: &store.State{Revision: rev, Synced: true}}, h.now)
	apply(h.s, h.now, object("n/a", "u", "40", 1, 4), object("n/b", "u", "30", 1, 5))
	apply(h.s, h.now, &store.Tombstone{Key: "n/a", RV: "50", Epoch: 1, Sequence: 6})
	if got := h.s.Snapshot().State().Revision; got != rev {
		t.Errorf("revision = %v, want %v", got, rev)
	}
}

func TestANamespaceIsListedWithoutAnIndex(t *testing.T) {
	t.Parallel()
	h := newHistory(store.Options{})
	for i := range 300 {
		h.put(fmt.Sprintf("%s/%03d", []string{"a", "b", "c"}[i%3], i), "")
	}
	h.put("scoped", "")
	for ns, want := range map[string]int{"a": 100, "b": 100, "c": 100, "": 1, "aa": 0, "d": 0} {
		n := 0
		for o := range h.s.Snapshot().Namespace(ns, "") {
			if n++; o.Namespace() != ns {
				t.Fatalf("Namespace(%q) has %s", ns, o.Key())
			}
		}
		if n != want {
			t.Errorf("Namespace(%q) has %d, want %d", ns, n, want)
		}
	}
	n := 0
	for range h.s.Snapshot().Namespace("b", "b/151") {
		n++
	}
	if n != 49 {
		t.Errorf("after b/151 there are %d, want 49", n)
	}
}

func TestMemoryIsGivenBackAfterABurst(t *testing.T) { //nolint:paralleltest // others would allocate meanwhile
	f := newFleet(15_000)
	s := store.New(store.Options{Indexers: five(), RingChanges: 16})
	seq := uint64(0)
	apply := func(ops []store.Op) {
		for part := range slices.Chunk(ops, 1000) {
			s.Apply(store.Batch{Ops: part, State: &store.State{Synced: true}}, epoch0)
		}
	}
	put := func(from, to int) {
		var ops []store.Op
		for i := from; i < to; i++ {
			seq++
			ops = append(ops, store.Op{Put: f.pod(i, seq)})
		}
		apply(ops)
	}
	put(0, 2000)
	before, estimate := heap(), s.Snapshot().Memory()
	for range 2 {
		put(2000, f.n)
		peak := heap()
		var ops []store.Op
		for i := 2000; i < f.n; i++ {
			seq++
			ops = append(ops, store.Op{Delete: &store.Tombstone{Key: f.pod(i, 1).Key(), RV: fmt.Sprint(seq), Epoch: 1763770000000, Sequence: seq, At: epoch0}})
		}
		apply(ops)
		s.Apply(store.Batch{}, epoch0.AddDate(0, 0, 1)) // the tombstones expire
		after := heap()
		if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > int64(peak.HeapAlloc-before.HeapAlloc)/50+1<<17 {
			t.Errorf("the heap keeps %d of %d bytes of a burst", grown, peak.HeapAlloc-before.HeapAlloc)
		}
	}
	if now := s.Snapshot().Memory(); now > estimate*11/10 || now < estimate*9/10 {
		t.Errorf("Memory = %d after the burst, %d before", now, estimate)
	}
	runtime.KeepAlive(f)
}

func TestMemoryIsAboutWhatTheHeapSays(t *testing.T) { //nolint:paralleltest // others would allocate meanwhile
	const n = 30_000
	before := heap()
	s := full(n)
	after := heap()
	got, want := s.Snapshot().Memory(), int(after.HeapAlloc-before.HeapAlloc)
	t.Logf("%d bytes estimated, %d on the heap: %d per pod", got, want, want/n)
	if got < want*85/100 || got > want*115/100 {
		t.Errorf("Memory = %d, the heap has %d", got, want)
	}
	if want/n > 350 {
		t.Errorf("a pod takes %d bytes beside its payload, at most 350 are promised", want/n)
	}
	runtime.KeepAlive(s)
}
