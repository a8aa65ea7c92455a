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
	h := &Hub{keys: room{most: mostKept}}
	f := newFeed(h, question{}, nil)
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
			if kept := h.keys.kept.Load(); kept != int64(len(f.keys)+len(f.coming)+len(f.failed)) {
				t.Fatalf("seed %d: room is taken for %d keys, there are %d, %d that come and %d that fail", seed, kept, len(f.keys), len(f.coming), len(f.failed))
			}
		}
	}
	if f.drop(); h.keys.kept.Load() != 0 {
		t.Errorf("room is taken for %d keys of a feed that was dropped", h.keys.kept.Load())
	}
}

func TestTheKeysOfAllFeedsOfACallerAreBoundedTogether(t *testing.T) {
	t.Parallel()
	h := &Hub{keys: room{most: 4}}
	number, err := compile("object.n > 0") // fails on an object without n
	if err != nil {
		t.Fatal(err)
	}
	first, second := newFeed(h, question{}, nil), newFeed(h, question{}, number)
	put := func(f *feed, key string, object string) bool {
		return f.take(&client.Event{Type: client.EventAdded, Object: client.Object{Key: key, Payload: []byte(object)}})
	}
	for _, key := range []string{"a", "b", "a"} {
		if !put(first, key, "{}") {
			t.Fatalf("%s does not fit", key)
		}
	}
	if !put(second, "a", `{"n":1}`) || !put(second, "b", `{}`) {
		t.Fatal("what fits is refused")
	}
	if put(second, "c", `{"n":1}`) || put(second, "c", `{}`) || put(first, "c", "{}") {
		t.Error("a key too many fits")
	}
	first.take(&client.Event{Type: client.EventDeleted, Object: client.Object{Key: "a"}})
	if !put(second, "c", `{"n":1}`) {
		t.Error("a key does not fit where another went")
	}
	first.drop()
	if second.drop(); h.keys.kept.Load() != 0 {
		t.Errorf("room is taken for %d keys where there are none", h.keys.kept.Load())
	}
}

func TestWhatIsShownGivesWayToAStateThatComes(t *testing.T) {
	t.Parallel()
	h := &Hub{keys: room{most: 4}}
	f := newFeed(h, question{}, nil)
	state := func(n int) (fits bool) {
		f.take(&client.Event{Type: client.EventGap})
		for i := range n {
			if !f.take(&client.Event{Type: client.EventAdded, Object: client.Object{Key: strconv.Itoa(i)}}) {
				return false
			}
		}
		return f.take(&client.Event{Type: client.EventInitialEnd})
	}
	for _, n := range []int{3, 3, 4, 1} {
		if !state(n) {
			t.Fatalf("%d keys do not fit", n)
		}
		if keys, _ := f.all(); len(keys) != n || h.keys.kept.Load() != int64(n) {
			t.Errorf("%d keys are shown and room is taken for %d, want %d", len(keys), h.keys.kept.Load(), n)
		}
	}
	if state(5) {
		t.Error("a key too many fits")
	}
}
