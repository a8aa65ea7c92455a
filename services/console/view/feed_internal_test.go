package view

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/client"
)

func TestTheKeysOfAFeedAreInOrderWhateverCameAndWent(t *testing.T) {
	t.Parallel()
	f := newFeed(nil, question{}, nil)
	f.begin()
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a history that can be repeated
		want := map[string]bool{}
		if seed%5 == 0 { // a whole state in place of what was there
			f.take(&client.Event{Type: client.EventGap})
			f.take(&client.Event{Type: client.EventAdded, Object: client.Object{Key: "first"}})
			f.take(&client.Event{Type: client.EventInitialEnd})
		}
		for key := range f.keys {
			want[key] = true
		}
		for range 200 {
			key := strconv.Itoa(random.IntN(60))
			e := client.Event{Type: client.EventUpdated, Object: client.Object{Key: key}}
			if random.IntN(2) == 0 {
				e.Type = client.EventDeleted
			}
			f.take(&e)
			if e.Type == client.EventDeleted {
				delete(want, key)
			} else {
				want[key] = true
			}
			if random.IntN(7) > 0 { // several changes between two looks
				continue
			}
			if got, _ := f.all(); !cmp.Equal(got, slices.Sorted(maps.Keys(want))) {
				t.Fatalf("seed %d: %v, want %v", seed, got, slices.Sorted(maps.Keys(want)))
			}
		}
	}
}
