package store

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// sound fails when a tree breaks what the walks rely on. It returns how many
// ids are below n.
func sound(t *testing.T, ks keyring, n *inner, root bool) int {
	t.Helper()
	if len(n.kids)+len(n.leaves) != n.fan() || n.fan() > innerMax || !root && n.fan() < 2 {
		t.Fatalf("a node has %d kids, %d leaves, %d separators", len(n.kids), len(n.leaves), len(n.seps))
	}
	total := 0
	for i, l := range n.leaves {
		if len(l.ids) == 0 || len(l.ids) > flatMax {
			t.Fatalf("a leaf has %d ids", len(l.ids))
		}
		if i > 0 && n.seps[i-1].compare(ks.get(l.ids[0]).place()) > 0 || i < len(n.seps) && n.seps[i].compare(ks.get(l.ids[len(l.ids)-1]).place()) <= 0 {
			t.Fatalf("leaf %d lies outside its separators", i)
		}
		total += len(l.ids)
	}
	for _, kid := range n.kids {
		total += sound(t, ks, kid, false)
	}
	return total
}

func TestASetAgreesWithASortedListAndOldVersionsNeverChange(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 3))
			space := 40 << (seed * 3 / 2) // up to some 40000 keys: trees of one node and of several levels
			w := editor[key]{}
			names := make([]*key, space)
			for i := range names {
				names[i] = newKey(fmt.Sprintf("%s/%05d", []string{"a", "a-b", "b"}[i%3], i*7919%space))
				w.set(new(edit), uint32(i), names[i])
			}
			ks := w.vector
			byKey := func(a, b uint32) int { return names[a].compare(names[b].place()) }
			type version struct {
				s    set
				want []uint32
			}
			var versions []version
			var s set
			model := map[uint32]bool{}
			for round := range 26 {
				e := new(edit)
				grow, changed := round%13 < 8, false
				for range rng.IntN(space/4 + 10) {
					id := uint32(rng.IntN(space))
					if round == 0 {
						id = uint32(len(model)) // some in a row
					}
					if grow == (rng.IntN(8) > 0) {
						s = s.put(e, ks, id, names[id], changed)
						model[id] = true
					} else {
						var ok bool
						if s, ok = s.del(e, ks, names[id].place(), changed); ok != model[id] {
							t.Fatalf("del(%s) = %v, want %v", names[id], ok, model[id])
						}
						delete(model, id)
					}
					changed = changed || s.root == nil && s.n > 1 && len(versions) > 0 && s.flat != versions[len(versions)-1].s.flat
				}
				want := make([]uint32, 0, len(model))
				for id := range model {
					want = append(want, id)
				}
				slices.SortFunc(want, byKey)
				if s.root != nil && sound(t, ks, s.root, true) != len(want) {
					t.Fatalf("round %d: the tree has other than %d ids", round, len(want))
				}
				if rng.IntN(4) == 0 {
					s = setOf(ks, want)
				}
				versions = append(versions, version{s, want})
				for range 20 {
					id := uint32(rng.IntN(space))
					if got, ok := s.find(ks, names[id].place()); ok != model[id] || ok && got != id {
						t.Fatalf("find(%s) = %d, %v", names[id], got, ok)
					}
					var rest []uint32
					limit := rng.IntN(300)
					s.from(ks, names[id].place(), func(id uint32) bool { rest = append(rest, id); return len(rest) < limit })
					i, _ := slices.BinarySearchFunc(want, id, byKey)
					if wanted := want[i:min(len(want), i+max(limit, 1))]; !slices.Equal(rest, wanted) {
						t.Fatalf("from(%s) = %v, want %v", names[id], rest, wanted)
					}
				}
			}
			for i, v := range versions {
				if got := v.s.list(); !slices.Equal(got, v.want) || v.s.len() != len(v.want) {
					t.Fatalf("version %d changed after it was made, or has %d instead of %d", i, v.s.len(), len(v.want))
				}
				if v.s.root != nil {
					sound(t, ks, v.s.root, true)
				}
			}
			for id := range model { // down to nothing
				s, _ = s.del(new(edit), ks, names[id].place(), false)
			}
			if s != (set{}) {
				t.Fatalf("an emptied set is %+v", s)
			}
		})
	}
}

func TestABulkBuiltTreeIsSoundAtEverySize(t *testing.T) {
	t.Parallel()
	var items []word
	for n := range 4000 {
		tr := treeOf(items)
		if n%61 == 0 {
			depth := check(t, tr.root, true)
			if tr.n != n || n > 0 && depth == 0 || !slices.Equal(words(tr), items) {
				t.Fatalf("a tree of %d is not what it was made of", n)
			}
			e := new(edit)
			for _, w := range items[:n/2] {
				tr, _ = tr.del(e, string(w), "")
			}
			if tr.n != n-n/2 || !slices.Equal(words(tr), items[n/2:]) {
				t.Fatalf("half of a tree of %d is wrong", n)
			}
		}
		items = append(items, word(fmt.Sprintf("%06d", n)))
	}
}

func TestSlotsGiveTheLowestFreeID(t *testing.T) {
	t.Parallel()
	var s slots
	for i := range uint32(1000) {
		if id := s.take(); id != i {
			t.Fatalf("take = %d, want %d", id, i)
		}
	}
	for _, id := range []uint32{999, 3, 500, 64} {
		s.give(id)
	}
	for _, want := range []uint32{3, 64, 500, 999, 1000} {
		if id := s.take(); id != want {
			t.Fatalf("take = %d, want %d", id, want)
		}
	}
	for id := range uint32(1001) {
		s.give(id)
	}
	if s.n != 0 || len(s.used) != 0 {
		t.Fatalf("%d ids in %d words after all came back", s.n, len(s.used))
	}
}
