package store_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
)

// TestIndexesAreBuiltAndRemovedBesideAWriterAndReaders compares an index
// that is declared again and again with one that was always there.
func TestIndexesAreBuiltAndRemovedBesideAWriterAndReaders(t *testing.T) {
	t.Parallel()
	s := store.New(store.Options{Indexers: map[string]store.IndexFunc{"words": words}})
	var seq uint64
	batch := func(rng *rand.Rand, n int) {
		b := store.Batch{State: &store.State{Synced: true}}
		for range n {
			seq++
			key := fmt.Sprintf("n%d/%04d", rng.IntN(3), rng.IntN(3000))
			if rng.IntN(4) == 0 {
				b.Ops = append(b.Ops, store.Op{Delete: &store.Tombstone{Key: key, RV: fmt.Sprint(seq), Epoch: 1, Sequence: seq, At: epoch0}})
				continue
			}
			b.Ops = append(b.Ops, store.Op{Put: store.NewObject(store.ObjectConfig{
				Key: key, RV: fmt.Sprint(seq), Epoch: 1, Sequence: seq, Fields: text(fmt.Sprintf("w%d w%d all", rng.IntN(9), rng.IntN(900))),
			})})
		}
		b.State.Revision, b.State.Position.Sequence = delta.Revision{Epoch: 1, RV: fmt.Sprint(seq)}, seq
		s.Apply(b, epoch0)
	}
	batch(rand.New(rand.NewPCG(1, 1)), 6000)

	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		rng := rand.New(rand.NewPCG(2, 2))
		for {
			select {
			case <-stop:
				return
			default:
				batch(rng, 1+rng.IntN(20))
			}
		}
	})
	agree := func(snap *store.Snapshot) {
		want, err := snap.IndexValues("words", "", "")
		if err != nil {
			t.Error(err)
			return
		}
		got, err := snap.IndexValues("again", "", "")
		if err != nil {
			t.Error(err)
			return
		}
		if a, b := maps.Collect(want), maps.Collect(got); !maps.Equal(a, b) {
			t.Errorf("the index built late has %d values, the other one %d", len(b), len(a))
		}
		for _, v := range []string{"all", "w3", "w77"} {
			a, _ := snap.ByIndex("words", v)
			b, _ := snap.ByIndex("again", v)
			if !slices.Equal(a.Keys(), b.Keys()) {
				t.Errorf("%s has %d keys in the index built late, %d in the other", v, b.Len(), a.Len())
			}
		}
	}
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				snap := s.Snapshot()
				if _, err := snap.ByIndex("again", "all"); err == nil {
					agree(snap)
				}
			}
		})
	}
	for range 6 {
		if err := s.AddIndexers(map[string]store.IndexFunc{"again": words}); err != nil {
			t.Fatal(err)
		}
		before := s.Snapshot().State().Revision
		if err := s.Build(t.Context()); err != nil {
			t.Fatal(err)
		}
		snap := s.Snapshot()
		agree(snap)
		info := snap.Indexers()[0]
		if info.State != store.Ready || info.CompleteFrom.Compare(before) < 0 || info.CompleteFrom.Compare(snap.State().Revision) > 0 {
			t.Errorf("built: %+v at %v", info, snap.State().Revision)
		}
		if err := s.RemoveIndexers("again"); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	wg.Wait()
}

// Room is asked for where something is filed, and by the name of that alone: the
// indexes of a store that was never synced take none before they are ready.
func TestABuildAsksForRoomOnlyForWhatItFiles(t *testing.T) {
	t.Parallel()
	full := errors.New("full")
	var asked []string
	room := func(index string) error { asked = append(asked, index); return full }
	fresh := store.New(store.Options{Indexers: map[string]store.IndexFunc{"words": words}})
	if err := fresh.BuildWithin(t.Context(), room); err != nil || len(asked) > 0 {
		t.Errorf("before the first sync: %v, room asked for %q", err, asked)
	}
	h := newHistory(store.Options{Indexers: map[string]store.IndexFunc{"words": words}})
	h.put("n/one", "a")
	if err := h.s.AddIndexers(map[string]store.IndexFunc{"lengths": lengths}); err != nil {
		t.Fatal(err)
	}
	if err := h.s.BuildWithin(t.Context(), room); !errors.Is(err, full) || !slices.Equal(asked, []string{"lengths"}) {
		t.Errorf("afterwards: %v, room asked for %q", err, asked)
	}
}

func TestABuildGoesOnAfterItsContextEnded(t *testing.T) {
	t.Parallel()
	h := newHistory(store.Options{})
	for i := range 2000 {
		h.put(fmt.Sprintf("n/%04d", i), "a")
	}
	if err := h.s.AddIndexers(map[string]store.IndexFunc{"words": words, "lengths": lengths}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.s.Build(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("Build = %v", err)
	}
	if err := h.s.Build(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, info := range h.s.Snapshot().Indexers() {
		if info.State != store.Ready || info.Entries != 2000 {
			t.Errorf("%+v", info)
		}
	}
}

func TestLoadGivesTheStoreThatWasDumped(t *testing.T) {
	t.Parallel()
	from := full(3000)
	gone := from.Snapshot().Get(newFleet(3000).pod(5, 1).Key())
	apply(from, epoch0, &store.Tombstone{Key: gone.Key(), RV: "5000", Epoch: gone.Epoch(), Sequence: 5000, At: epoch0})
	st := store.State{
		Revision: delta.Revision{Epoch: 3, RV: "7"}, Position: delta.Position{Epoch: 3, Sequence: 5000, Term: 2}, Synced: true,
	}
	from.Apply(store.Batch{State: &st, Horizon: 17}, epoch0)
	dump := from.Snapshot().Dump()
	s := store.New(store.Options{Indexers: five()})
	if err := s.Load(dump, epoch0); err != nil {
		t.Fatal(err)
	}
	a, b := from.Snapshot(), s.Snapshot()
	if b.State() != st || b.Len() != 2999 || b.Tombstones() != 1 || b.Bytes() != a.Bytes() {
		t.Errorf("loaded %d objects, %d tombstones, state %+v", b.Len(), b.Tombstones(), b.State())
	}
	ia, ib := a.Indexers(), b.Indexers()
	for i := range ia {
		if ia[i].Entries != ib[i].Entries || ia[i].Values != ib[i].Values || ib[i].State != store.Ready || ib[i].CompleteFrom != st.Revision {
			t.Errorf("index %+v became %+v", ia[i], ib[i])
		}
	}
	if _, _, ok := b.Since(16); ok {
		t.Error("Since answers from below the horizon")
	}
	if n, ok := s.Resume(b, 5000); !ok || n != b.LastChange()+1 {
		t.Errorf("Resume from where the dump ends = %d, %v", n, ok)
	}
	if res := apply(s, epoch0, gone); res.Stale != 1 {
		t.Errorf("a loaded tombstone does not hide: %+v", res)
	}
	if err := s.Load(dump, epoch0); !errors.Is(err, store.ErrNotEmpty) {
		t.Errorf("a second Load = %v", err)
	}
}

func TestLoadRefusesWhatIsNotInOrderAndStaysUsable(t *testing.T) {
	t.Parallel()
	f := newFleet(10)
	objects := []*store.Object{f.pod(1, 1), f.pod(2, 2)}
	slices.SortFunc(objects, func(a, b *store.Object) int { return -compareText(a.Key(), b.Key()) })
	s := store.New(store.Options{Indexers: five()})
	for _, list := range [][]*store.Object{objects, {f.pod(3, 1), f.pod(3, 1)}} {
		err := s.Load(store.Dump{Objects: slices.Values(list), Tombstones: func(func(*store.Tombstone) bool) {}}, epoch0)
		if !errors.Is(err, store.ErrUnsorted) || s.Snapshot().Len() != 0 || s.Snapshot().Memory() != 0 {
			t.Errorf("Load = %v with %d objects, %d bytes", err, s.Snapshot().Len(), s.Snapshot().Memory())
		}
	}
	s.Apply(store.Batch{Ops: []store.Op{{Put: objects[0]}}, State: &store.State{Synced: true}}, epoch0)
	if s.Snapshot().Get(objects[0].Key()) != objects[0] {
		t.Error("after a refused Load the store does not take objects")
	}
}

func compareText(a, b string) int {
	if a < b {
		return -1
	}
	return 1
}

// TestIndexesBuiltInPartsAreThoseBuiltKeyByKey compares the indexes that a first sync builds, on as
// many cores as there are, with those of a store that was synced before.
func TestIndexesBuiltInPartsAreThoseBuiltKeyByKey(t *testing.T) {
	t.Parallel()
	indexers := map[string]store.IndexFunc{"words": words, "picky": func(o *store.Object) ([]string, error) {
		if strings.HasSuffix(o.Key(), "77") {
			return nil, errors.New("not this one")
		}
		return []string{o.Key()[:4]}, nil
	}}
	bulk, single := store.New(store.Options{Indexers: indexers}), store.New(store.Options{Indexers: indexers})
	synced := &store.State{Synced: true}
	single.Apply(store.Batch{State: synced}, epoch0)
	var b store.Batch
	for i := range 20_000 {
		key := fmt.Sprintf("n%d/%05d", i%3, i)
		b.Ops = append(b.Ops, store.Op{Put: store.NewObject(store.ObjectConfig{
			Key: key, RV: fmt.Sprint(i + 1), Epoch: 1, Sequence: uint64(i + 1), Fields: text(fmt.Sprintf("w%d w%d all", i%9, i%900)),
		})})
	}
	b.State = synced
	bulk.Apply(b, epoch0)
	for part := range slices.Chunk(b.Ops, 4000) {
		single.Apply(store.Batch{Ops: part}, epoch0)
	}
	got, want := bulk.Snapshot(), single.Snapshot()
	values, err := want.IndexValues("words", "", "")
	if err != nil {
		t.Fatal(err)
	}
	built, err := got.IndexValues("words", "", "")
	if err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(maps.Collect(built), maps.Collect(values)) {
		t.Error("other values, or numbers of keys")
	}
	for value := range values {
		g, _ := got.ByIndex("words", value)
		w, _ := want.ByIndex("words", value)
		if !slices.Equal(g.Keys(), w.Keys()) {
			t.Fatalf("%s: %d keys, want %d", value, g.Len(), w.Len())
		}
	}
	for i, x := range got.Indexers() {
		y := want.Indexers()[i]
		if x.Values != y.Values || x.Entries != y.Entries || x.Failed != y.Failed || x.Filed != y.Filed {
			t.Errorf("%s: %+v, want %+v", x.Name, x, y)
		}
	}
}
