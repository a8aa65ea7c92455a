package replica_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/deltaplane/deltaplane/core/replica"
)

func TestIndexesAreReadAndWritten(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                       "",
		"5":                      "5",
		"4,5":                    "4,5",
		"4-5":                    "4,5",
		"0-3,5-7,9":              "0-3,5-7,9",
		"0-3,4":                  "0-4",
		"4-6,1":                  "1,4-6",
		"1-5,3-8":                "1-8",
		"18-30":                  "18,19",
		"20,21-25":               "",
		"a,1,x-3,4-x,-2,6--7,8-": "1",
		"7-5,2":                  "2",
		"99999999999999999999,3": "3",
		"3-99999999999999999999": "",
	} {
		if got := replica.ParseIndexes(text, 20).String(); got != want {
			t.Errorf("%q is read as %q, want %q", text, got, want)
		}
	}
}

// Every operation is compared with one on a set of numbers.
func TestIndexesAreSets(t *testing.T) {
	t.Parallel()
	const limit = 40
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test's seed
		some := func() (replica.Indexes, [limit]bool) {
			var in []int
			var has [limit]bool
			for range rng.IntN(limit) {
				ix := rng.IntN(limit)
				in, has[ix] = append(in, ix), true
			}
			return replica.IndexesOf(in...), has
		}
		a, hasA := some()
		b, hasB := some()
		text := a.String()
		both, n, common := a.Union(b), 0, 0
		var free []int
		for ix := range limit {
			if a.Has(ix) != hasA[ix] || both.Has(ix) != (hasA[ix] || hasB[ix]) {
				t.Fatalf("seed %d: %d in %v and %v is wrong", seed, ix, a, both)
			}
			if hasA[ix] {
				n++
			} else {
				free = append(free, ix)
			}
			if hasA[ix] && hasB[ix] {
				common++
			}
		}
		most := rng.IntN(limit)
		if got := a.Free(most, limit); !slices.Equal(got, free[:min(most, len(free))]) {
			t.Fatalf("seed %d: the first %d that are free of %v are %v", seed, most, a, got)
		}
		if a.Len() != n || a.Common(b) != common || b.Common(a) != common {
			t.Fatalf("seed %d: %v has %d, in common with %v %d; want %d and %d", seed, a, a.Len(), b, a.Common(b), n, common)
		}
		if got := replica.ParseIndexes(text, limit); !slices.Equal(got, a) || a.String() != text {
			t.Fatalf("seed %d: %q is read as %v", seed, text, got)
		}
		below := rng.IntN(limit)
		for ix := range limit {
			if got := replica.ParseIndexes(text, below).Has(ix); got != (hasA[ix] && ix < below) {
				t.Fatalf("seed %d: %q below %d: %d is there: %v", seed, text, below, ix, got)
			}
		}
	}
}

func FuzzParseIndexes(f *testing.F) {
	f.Add("1,3-5,7", 9)
	f.Fuzz(func(t *testing.T, text string, limit int) {
		s := replica.ParseIndexes(text, limit)
		if got := replica.ParseIndexes(s.String(), limit); !slices.Equal(got, s) {
			t.Errorf("%q is read as %v, and that as %v", text, s, got)
		}
	})
}
