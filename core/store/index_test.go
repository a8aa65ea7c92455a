package store_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
)

var epoch0 = time.Unix(1_700_000_000, 0)

// text makes the field that the indexes of these tests read.
func text(s string) *store.Fields {
	return store.NewFields([]store.Field{{Name: "text", Values: strings.Fields(s)}})
}

// words indexes an object under the words of its text.
func words(o *store.Object) ([]string, error) {
	list, _ := o.Field("text")
	if slices.Contains(list, "bad") {
		return nil, errors.New("bad word")
	}
	if slices.Contains(list, "boom") {
		panic("boom")
	}
	return list, nil
}

func lengths(o *store.Object) ([]string, error) {
	list, _ := o.Field("text")
	return []string{fmt.Sprint(len(list))}, nil
}

// history writes objects with growing resource versions.
type history struct {
	s   *store.Store
	seq uint64
	now time.Time
}

func newHistory(opts store.Options) *history {
	h := &history{s: store.New(opts), now: epoch0}
	h.s.Apply(store.Batch{State: &store.State{Position: delta.Position{Epoch: 1}, Synced: true}}, h.now)
	return h
}

func (h *history) put(key, payload string) store.Result {
	h.seq++
	return h.s.Apply(store.Batch{Ops: []store.Op{{Put: store.NewObject(store.ObjectConfig{
		Key: key, UID: "u-" + key, Epoch: 1, RV: fmt.Sprint(h.seq), Sequence: h.seq, Payload: []byte(payload), Fields: text(payload),
	})}}}, h.now)
}

func (h *history) delete(key string) store.Result {
	h.seq++
	return h.s.Apply(store.Batch{Ops: []store.Op{{Delete: &store.Tombstone{
		Key: key, Epoch: 1, RV: fmt.Sprint(h.seq), Sequence: h.seq, Reason: store.Observed, At: h.now,
	}}}}, h.now)
}

func values(t *testing.T, s *store.Snapshot, index, prefix, after string) map[string]int {
	t.Helper()
	seq, err := s.IndexValues(index, prefix, after)
	if err != nil {
		t.Fatalf("IndexValues(%q): %v", index, err)
	}
	return maps.Collect(seq)
}

func keys(t *testing.T, s *store.Snapshot, index string, vals ...string) []string {
	t.Helper()
	hits, err := s.ByIndex(index, vals...)
	if err != nil {
		t.Fatalf("ByIndex(%q, %q): %v", index, vals, err)
	}
	if got := hits.Keys(); len(got) != hits.Len() {
		t.Fatalf("Len = %d, but %d keys", hits.Len(), len(got))
	}
	return hits.Keys()
}

func TestIndexingFunctionsWithMultipleValuesRowByRow(t *testing.T) {
	t.Parallel()
	h := newHistory(store.Options{Indexers: map[string]store.IndexFunc{"words": words}})
	rows := []struct {
		name, key, payload string // an empty payload deletes
		foo, bar, baz      []string
	}{
		{"add key1", "key1", "foo", []string{"key1"}, nil, nil},
		{"add key2", "key2", "bar", []string{"key1"}, []string{"key2"}, nil},
		{"key2 gets foo too", "key2", "foo bar", []string{"key1", "key2"}, []string{"key2"}, nil},
		{"key1 gets bar too", "key1", "foo bar", []string{"key1", "key2"}, []string{"key1", "key2"}, nil},
		{"add key3 with all", "key3", "foo bar baz", []string{"key1", "key2", "key3"}, []string{"key1", "key2", "key3"}, []string{"key3"}},
		{"key1 loses bar", "key1", "foo", []string{"key1", "key2", "key3"}, []string{"key2", "key3"}, []string{"key3"}},
		{"key2 loses foo", "key2", "bar", []string{"key1", "key3"}, []string{"key2", "key3"}, []string{"key3"}},
		{"delete key1", "key1", "", []string{"key3"}, []string{"key2", "key3"}, []string{"key3"}},
		{"delete key3", "key3", "", nil, []string{"key2"}, nil},
	}
	for _, r := range rows {
		if r.payload == "" {
			h.delete(r.key)
		} else {
			h.put(r.key, r.payload)
		}
		snap := h.s.Snapshot()
		for value, want := range map[string][]string{"foo": r.foo, "bar": r.bar, "baz": r.baz} {
			if got := keys(t, snap, "words", value); !slices.Equal(got, want) {
				t.Errorf("%s: ByIndex(%q) = %q, want %q", r.name, value, got, want)
			}
			_, shown := values(t, snap, "words", "", "")[value]
			if shown != (want != nil) {
				t.Errorf("%s: value %q shown = %v", r.name, value, shown)
			}
		}
	}
}

func TestIndexByExampleIsTheUnionWithEachKeyOnce(t *testing.T) {
	t.Parallel()
	h := newHistory(store.Options{Indexers: map[string]store.IndexFunc{"words": words}})
	h.put("n/ernie", "one tre")
	h.put("n/bert", "one two")
	h.put("n/elmo", "tre")
	h.put("n/oscar", "two")
	h.put("n/elmo1", "")
	hits, err := h.s.Snapshot().Index("words", store.NewObject(store.ObjectConfig{Key: "x", Fields: text("two one one")}))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := hits.Keys(), []string{"n/bert", "n/ernie", "n/oscar"}; !slices.Equal(got, want) {
		t.Errorf("Index = %q, want %q", got, want)
	}
	var after []string
	for o := range hits.After("n/bert") {
		after = append(after, o.Key())
	}
	if want := []string{"n/ernie", "n/oscar"}; !slices.Equal(after, want) {
		t.Errorf("After(n/bert) = %q, want %q", after, want)
	}
	if got, want := keys(t, h.s.Snapshot(), "words", "tre", "none"), []string{"n/elmo", "n/ernie"}; !slices.Equal(got, want) {
		t.Errorf("ByIndex(tre, none) = %q, want %q", got, want)
	}
	if got := keys(t, h.s.Snapshot(), "words", "never"); len(got) != 0 {
		t.Errorf("an unknown value has %q, want nothing and no error", got)
	}
}

func TestAnUnknownIndexIsAnErrorInEveryCall(t *testing.T) {
	t.Parallel()
	snap := store.New(store.Options{}).Snapshot()
	calls := map[string]func() error{
		"ByIndex":     func() error { _, err := snap.ByIndex("nope", "v"); return err },
		"Index":       func() error { _, err := snap.Index("nope", store.NewObject(store.ObjectConfig{})); return err },
		"IndexValues": func() error { _, err := snap.IndexValues("nope", "", ""); return err },
	}
	for name, call := range calls {
		if unknown, ok := errors.AsType[*store.UnknownIndexError](call()); !ok || unknown.Index != "nope" {
			t.Errorf("%s: error is not UnknownIndexError for nope", name)
		}
	}
}

func TestAFailingIndexFunctionIsAnErrorOnThatIndexUntilTheKeyIsRepaired(t *testing.T) {
	t.Parallel()
	for _, payload := range []string{"a bad", "a boom"} {
		h := newHistory(store.Options{Indexers: map[string]store.IndexFunc{"words": words, "lengths": lengths}})
		h.put("n/good", "a")
		h.put("n/poor", payload)
		snap := h.s.Snapshot()
		hits, err := snap.ByIndex("words", "a")
		failed, ok := errors.AsType[*store.FailedError](err)
		if !ok || failed.Index != "words" || failed.Key != "n/poor" || failed.Keys != 1 {
			t.Fatalf("ByIndex error = %v, want FailedError on n/poor", err)
		}
		if got := hits.Keys(); !slices.Equal(got, []string{"n/good"}) {
			t.Errorf("what the index has = %q", got)
		}
		if _, err := snap.IndexValues("words", "", ""); err == nil {
			t.Error("IndexValues of a failed index has no error")
		}
		if got := keys(t, snap, "lengths", "1"); !slices.Equal(got, []string{"n/good"}) {
			t.Errorf("the other index = %q, want it untouched", got)
		}
		if snap.Get("n/poor") == nil {
			t.Error("the object is lost")
		}
		h.put("n/poor", "a")
		if got := keys(t, h.s.Snapshot(), "words", "a"); !slices.Equal(got, []string{"n/good", "n/poor"}) {
			t.Errorf("after repair = %q", got)
		}
		h.put("n/poor", payload)
		h.delete("n/poor")
		if got := keys(t, h.s.Snapshot(), "words", "a"); !slices.Equal(got, []string{"n/good"}) {
			t.Errorf("after delete = %q", got)
		}
		if _, err := snap.Index("words", store.NewObject(store.ObjectConfig{Key: "example", Fields: text(payload)})); err == nil {
			t.Error("Index by an example that fails has no error")
		}
	}
}

func TestAddIndexersOnAFullStoreIsReadyOnceBuilt(t *testing.T) {
	t.Parallel()
	h := newHistory(store.Options{})
	for i := range 500 {
		h.put(fmt.Sprintf("n/%03d", i), fmt.Sprintf("w%d all", i%7))
	}
	before := h.s.Snapshot()
	if err := h.s.AddIndexers(map[string]store.IndexFunc{"words": words, "lengths": lengths}); err != nil {
		t.Fatal(err)
	}
	_, err := h.s.Snapshot().ByIndex("words", "all")
	if building, ok := errors.AsType[*store.BuildingError](err); !ok || building.Total != 500 {
		t.Errorf("before Build the error is %v, want BuildingError", err)
	}
	if err := h.s.Build(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := len(keys(t, h.s.Snapshot(), "words", "all")); got != 500 {
		t.Errorf("the new index has %d keys, want 500", got)
	}
	if _, err := before.ByIndex("words", "all"); err == nil {
		t.Error("an older snapshot has the new index")
	}
	h.put("n/000", "w3")
	if got := len(keys(t, h.s.Snapshot(), "words", "all")); got != 499 {
		t.Errorf("after an update the new index has %d keys, want 499", got)
	}
	err = h.s.AddIndexers(map[string]store.IndexFunc{"fresh": words, "words": words})
	conflict, ok := errors.AsType[*store.ConflictError](err)
	if !ok || !slices.Equal(conflict.Indexes, []string{"words"}) {
		t.Errorf("error = %v, want ConflictError on words", err)
	}
	infos := h.s.Snapshot().Indexers()
	want := []store.IndexInfo{
		{Name: "lengths", State: store.Ready, Filed: 500, Values: 2, Entries: 500},
		{Name: "words", State: store.Ready, Filed: 500, Values: 8, Entries: 999},
	}
	if diff := cmp.Diff(want, infos, cmpopts.IgnoreFields(store.IndexInfo{}, "Bytes")); diff != "" {
		t.Errorf("Indexers (-want +got): %s", diff)
	}
}

func TestIndexValuesPageByPrefixInOrder(t *testing.T) {
	t.Parallel()
	h := newHistory(store.Options{Indexers: map[string]store.IndexFunc{"words": words}})
	h.put("n/1", "app=a app=b tier=x")
	h.put("n/2", "app=b app=c")
	if diff := cmp.Diff(map[string]int{"app=a": 1, "app=b": 2, "app=c": 1}, values(t, h.s.Snapshot(), "words", "app=", "")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]int{"app=c": 1}, values(t, h.s.Snapshot(), "words", "app=", "app=b")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]int{}, values(t, h.s.Snapshot(), "words", "zzz", "")); diff != "" {
		t.Error(diff)
	}
}
