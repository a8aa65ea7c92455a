package store

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type word string

func (w word) at() (string, string) { return string(w), "" }

func words(t tree[word]) []word {
	var out []word
	t.each(func(w word) bool { out = append(out, w); return true })
	return out
}

// check fails when a node breaks the shape that the walks rely on.
func check(t *testing.T, n *node[word], root bool) int {
	t.Helper()
	if n == nil {
		return 0
	}
	if len(n.items) > maxItems || !root && len(n.items) < minItems {
		t.Fatalf("node has %d items", len(n.items))
	}
	if n.kids == nil {
		return 1
	}
	if len(n.kids) != len(n.items)+1 {
		t.Fatalf("node has %d items and %d kids", len(n.items), len(n.kids))
	}
	depth := check(t, n.kids[0], false)
	for _, k := range n.kids[1:] {
		if d := check(t, k, false); d != depth {
			t.Fatalf("leaves at depth %d and %d", depth, d)
		}
	}
	return depth + 1
}

func TestATreeAgreesWithASortedSetAndOldVersionsNeverChange(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		rng := rand.New(rand.NewPCG(seed, 1))
		space := 20 << (seed * 2)
		model := map[word]bool{}
		type version struct {
			t    tree[word]
			want []word
		}
		var versions []version
		var tr tree[word]
		for range 60 {
			e := new(edit)
			grow := rng.IntN(3) > 0
			for range rng.IntN(400) {
				w := word(fmt.Sprintf("w%05d", rng.IntN(space)))
				if grow == (rng.IntN(4) > 0) {
					tr = tr.put(e, w)
					model[w] = true
				} else {
					var ok bool
					tr, ok = tr.del(e, string(w), "")
					if ok != model[w] {
						t.Fatalf("seed %d: del(%q) = %v, want %v", seed, w, ok, model[w])
					}
					delete(model, w)
				}
			}
			check(t, tr.root, true)
			want := make([]word, 0, len(model))
			for w := range model {
				want = append(want, w)
			}
			slices.Sort(want)
			if tr.n != len(want) {
				t.Fatalf("seed %d: n = %d, want %d", seed, tr.n, len(want))
			}
			versions = append(versions, version{tr, want})
			from := word(fmt.Sprintf("w%05d", rng.IntN(space)))
			var got []word
			tr.from(string(from), "", func(w word) bool { got = append(got, w); return len(got) < 10 })
			i, _ := slices.BinarySearch(want, from)
			if diff := cmp.Diff(want[i:min(i+10, len(want))], got, cmp.Transformer("nil", func(w []word) []string {
				out := []string{}
				for _, x := range w {
					out = append(out, string(x))
				}
				return out
			})); diff != "" {
				t.Fatalf("seed %d: from(%q): %s", seed, from, diff)
			}
		}
		for i, v := range versions {
			if got := words(v.t); !slices.Equal(got, v.want) {
				t.Fatalf("seed %d: version %d changed after it was published", seed, i)
			}
		}
	}
}

func TestAVectorKeepsOldVersions(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(7, 7))
	model := map[uint32]*Object{}
	var v, old vector[Object]
	var oldModel map[uint32]*Object
	for round := range 20 {
		w := editor[Object]{vector: v}
		e := new(edit)
		for range 500 {
			id := uint32(rng.IntN(20000))
			o := NewObject(ObjectConfig{Key: fmt.Sprint(round)})
			if rng.IntN(4) == 0 {
				o = nil
			}
			w.set(e, id, o)
			model[id] = o
		}
		v = w.vector
		if round == 9 {
			old, oldModel = v, maps.Clone(model)
		}
	}
	for id := range uint32(20000) {
		if v.get(id) != model[id] {
			t.Fatalf("get(%d) is not the last object set", id)
		}
		if old.get(id) != oldModel[id] {
			t.Fatalf("get(%d) of an old version changed", id)
		}
	}
	if v.get(1<<30) != nil {
		t.Fatal("an id never set has an object")
	}
}
