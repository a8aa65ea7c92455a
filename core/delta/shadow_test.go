package delta_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/core/delta"
)

var t0 = time.Unix(1_700_000_000, 0)

func obj(name string, rv int) *delta.Object {
	payload := fmt.Appendf(nil, "%s@%d", name, rv)
	return &delta.Object{Key: delta.Key(name), UID: "u-" + name, RV: strconv.Itoa(rv), Payload: payload, Hash: delta.Hash(payload)}
}

func TestARelistPublishesDifferencesOnly(t *testing.T) {
	t.Parallel()
	s := delta.NewShadow(time.Hour)
	for _, o := range []*delta.Object{obj("same", 1), obj("changed", 2), obj("gone", 3), obj("unreadable", 4)} {
		if _, ok := s.Upsert(delta.Added, o, 1, t0); !ok {
			t.Fatalf("%s is not published", o.Key)
		}
	}
	s.BeginList()
	var got []string
	say := func(r delta.Record, ok bool) {
		if ok {
			got = append(got, fmt.Sprintf("%s %s %s %s", r.Type, r.Key, r.RV, r.DeleteReason))
		}
	}
	say(s.Listed(obj("same", 1), 1, t0))
	say(s.Listed(obj("changed", 5), 1, t0))
	say(s.Listed(obj("changed", 4), 1, t0)) // a duplicate key counts when it is newer
	say(s.Listed(obj("new", 6), 1, t0))
	s.Keep("unreadable")
	for _, r := range s.EndList("10", 1, t0) {
		say(r, true)
	}
	want := []string{"REPLACED changed 5 ", "REPLACED new 6 ", "DELETED gone 10 inferred"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
	}
	if s.Len() != 4 {
		t.Errorf("%d objects, want 4", s.Len())
	}
}

func TestAReplayedEventCannotResurrectUntilTheTombstoneIsForgotten(t *testing.T) {
	t.Parallel()
	s := delta.NewShadow(time.Hour)
	s.Upsert(delta.Added, obj("a", 5), 1, t0)
	if r, ok := s.Delete(delta.Observed, obj("a", 9), 1, t0); !ok || r.RV != "9" {
		t.Fatalf("delete = %+v, %v", r, ok)
	}
	if _, ok := s.Delete(delta.Observed, obj("a", 9), 1, t0); ok {
		t.Error("a deletion was published twice")
	}
	if _, ok := s.Upsert(delta.Updated, obj("a", 7), 1, t0); ok {
		t.Error("an event from before the deletion was published")
	}
	s.Expire(t0.Add(30 * time.Minute))
	if _, ok := s.Upsert(delta.Updated, obj("a", 8), 1, t0); ok {
		t.Error("the tombstone was forgotten within the ttl")
	}
	if r, ok := s.Upsert(delta.Updated, obj("a", 12), 1, t0); !ok || r.Type != delta.Added {
		t.Errorf("a recreation is %v, %v; want it added", r.Type, ok)
	}
	s.Delete(delta.Observed, obj("a", 13), 1, t0)
	s.Expire(t0.Add(2 * time.Hour))
	if !s.Empty() {
		t.Error("the tombstone is kept beyond the ttl")
	}
	if _, ok := s.Delete(delta.Observed, obj("stranger", 9), 1, t0); ok {
		t.Error("the deletion of an unknown key was published")
	}
}

func TestMarksOutliveTheObjectsStateForTheTTL(t *testing.T) {
	t.Parallel()
	s := delta.NewShadow(time.Hour)
	on := func(node string, rv int) *delta.Object {
		o := obj("a", rv)
		o.Hints = map[string][]string{"node": {node}}
		return o
	}
	s.Upsert(delta.Added, on("n1", 1), 1, t0)
	r, _ := s.Upsert(delta.Updated, on("n2", 2), 1, t0.Add(time.Minute))
	if diff := cmp.Diff([]string{"n2", "n1"}, r.Hints["node"]); diff != "" {
		t.Errorf("after a move (-want +got):\n%s", diff)
	}
	r, _ = s.Upsert(delta.Updated, on("n2", 3), 1, t0.Add(2*time.Hour))
	if diff := cmp.Diff([]string{"n2"}, r.Hints["node"]); diff != "" {
		t.Errorf("after the ttl (-want +got):\n%s", diff)
	}
	r, _ = s.Delete(delta.Observed, &delta.Object{Key: "a", RV: "4"}, 1, t0.Add(2*time.Hour))
	if diff := cmp.Diff([]string{"n2"}, r.Hints["node"]); diff != "" {
		t.Errorf("tombstones carry the last ones (-want +got):\n%s", diff)
	}
	many := obj("b", 5)
	for i := range delta.MaxMarks + 10 {
		many.Owners = append(many.Owners, delta.Owner{Kind: "Job", Name: strconv.Itoa(i)})
	}
	if r, _ := s.Upsert(delta.Added, many, 1, t0); len(r.Owners) != delta.MaxMarks || !r.Overflow {
		t.Errorf("%d owners, overflow %v; want the cap and wake all", len(r.Owners), r.Overflow)
	}
}

func TestAPastOwnerIsNotTheController(t *testing.T) {
	t.Parallel()
	s := delta.NewShadow(time.Hour)
	owned := func(rv int, names ...string) *delta.Object {
		o := obj("a", rv)
		for _, name := range names {
			o.Owners = append(o.Owners, delta.Owner{Kind: "Job", Name: name, UID: name, Controller: true})
		}
		return o
	}
	want := func(what string, r delta.Record, owners ...delta.Owner) {
		t.Helper()
		if diff := cmp.Diff(owners, r.Owners); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	j, past := delta.Owner{Kind: "Job", Name: "j", UID: "j", Controller: true}, delta.Owner{Kind: "Job", Name: "j", UID: "j"}
	k := delta.Owner{Kind: "Job", Name: "k", UID: "k", Controller: true}
	r, _ := s.Upsert(delta.Added, owned(1, "j"), 1, t0)
	want("owned", r, j)
	r, _ = s.Upsert(delta.Updated, owned(2), 1, t0)
	want("let go", r, past)
	r, _ = s.Upsert(delta.Updated, owned(3, "k"), 1, t0)
	want("adopted by another", r, k, past)
	again := delta.NewShadow(time.Hour) // the next leader knows the headers
	again.Restore(&r, t0)
	r, _ = again.Upsert(delta.Updated, owned(4, "k"), 1, t0)
	want("after a change of leader", r, k, past)
	r, _ = again.Upsert(delta.Updated, owned(5, "j"), 1, t0)
	want("and back", r, j, delta.Owner{Kind: "Job", Name: "k", UID: "k"})
	r, _ = again.Delete(delta.Observed, owned(6, "j"), 1, t0)
	want("a tombstone tells who had it", r, j, delta.Owner{Kind: "Job", Name: "k", UID: "k"})
}

func TestANewEpochOverrulesHigherVersions(t *testing.T) {
	t.Parallel()
	s := delta.NewShadow(time.Hour)
	s.Upsert(delta.Added, obj("a", 1000), 1, t0)
	s.Upsert(delta.Added, obj("same", 10), 1, t0)
	if _, ok := s.Upsert(delta.Updated, obj("a", 300), 1, t0); ok {
		t.Error("an older version was published within the epoch")
	}
	if r, ok := s.Upsert(delta.Updated, obj("a", 300), 2, t0); !ok || r.RV != "300" {
		t.Errorf("the restored version = %+v, %v", r, ok)
	}
	if _, ok := s.Upsert(delta.Updated, obj("same", 10), 2, t0); ok {
		t.Error("the same version was published again for the epoch alone")
	}
}

// A shadow rebuilt from the log's last records decides as the one that wrote them.
func TestARebuiltShadowDecidesLikeTheFirst(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		s := delta.NewShadow(time.Hour)
		last := map[delta.Key]delta.Record{}
		source := map[string]int{}
		keep := func(r delta.Record, ok bool) {
			if ok {
				r.Epoch = 1
				last[r.Key] = r
			}
		}
		rv := 0
		step := func() {
			rv++
			name := string(rune('a' + rng.IntN(6)))
			if _, lives := source[name]; lives && rng.IntN(3) == 0 {
				delete(source, name)
				keep(s.Delete(delta.Observed, obj(name, rv), 1, t0))
				return
			}
			source[name] = rv
			keep(s.Upsert(delta.Updated, obj(name, rv), 1, t0))
		}
		for range 30 {
			step()
		}
		rebuilt := delta.NewShadow(time.Hour)
		for _, r := range last {
			rebuilt.Restore(&r, t0)
		}
		for name := range source {
			if rng.IntN(2) == 0 {
				delete(source, name) // changes while nobody watched
				rv++
			}
		}
		list := func(s *delta.Shadow) map[delta.Key]string {
			out := map[delta.Key]string{}
			s.BeginList()
			for name, at := range source {
				if r, ok := s.Listed(obj(name, at), 1, t0); ok {
					out[r.Key] = r.Type.String()
				}
			}
			for _, r := range s.EndList(strconv.Itoa(rv), 1, t0) {
				out[r.Key] = r.Type.String()
			}
			return out
		}
		if diff := cmp.Diff(list(s), list(rebuilt)); diff != "" {
			t.Fatalf("seed %d: rebuilt decides otherwise (-first +rebuilt):\n%s", seed, diff)
		}
	}
}

func TestMarksAreCutToWhatAMessagesHeadersHold(t *testing.T) {
	t.Parallel()
	s := delta.NewShadow(time.Hour)
	o := obj("a", 1)
	o.Owners = []delta.Owner{{Kind: "Job", Name: "j", UID: "u"}, {Kind: "Job", Name: "k", UID: strings.Repeat("\u00e9", 50<<10)}}
	r, ok := s.Upsert(delta.Added, o, 1, t0)
	size := 0
	for name, values := range r.Header() {
		for _, v := range values {
			size += len(name) + len(v) + 4
		}
	}
	if !ok || size > 60<<10 || !r.Overflow || len(r.Owners) != 1 {
		t.Errorf("headers of %d bytes with %d owners, overflow %v; want at most 60 KiB, the first owner, overflow", size, len(r.Owners), r.Overflow)
	}
	o = obj("a", 2)
	if r, _ = s.Upsert(delta.Updated, o, 1, t0.Add(2*time.Hour)); r.Overflow {
		t.Error("the overflow outlives the marks by more than the TTL")
	}
}

func TestAListOlderThanAKeysVersionDoesNotDeleteIt(t *testing.T) {
	t.Parallel()
	s := delta.NewShadow(time.Hour)
	s.Upsert(delta.Replaced, obj("a", 110), 1, t0) // of a list that was broken off at 115; another server then lists at 105
	s.BeginList()
	if gone := s.EndList("105", 1, t0); len(gone) != 0 {
		t.Fatalf("a list at 105 buries a version of 110: %+v", gone)
	}
	s.BeginList()
	if gone := s.EndList("120", 1, t0); len(gone) != 1 || gone[0].RV != "120" {
		t.Errorf("a list at 120 without the key gives %+v, want its tombstone: readers would keep it for ever", gone)
	}
	s.Upsert(delta.Added, obj("b", 130), 1, t0)
	s.BeginList()
	if gone := s.EndList("5", 2, t0); len(gone) != 1 {
		t.Errorf("a list of a new epoch gives %+v, want the tombstone", gone)
	}
}

func TestAnUnreadableObjectIsPublishedOnceAtTheKnownVersion(t *testing.T) {
	t.Parallel()
	s, now := delta.NewShadow(time.Hour), time.Unix(1000, 0)
	if r, ok := s.Unread("default/a", 1, now); ok {
		t.Errorf("told %+v of a key that is not held", r)
	}
	a := obj("a", 5)
	key := a.Key
	if _, ok := s.Upsert(delta.Added, a, 1, now); !ok {
		t.Fatal("nothing published")
	}
	r, ok := s.Unread(key, 1, now)
	if !ok || r.RV != "5" || r.UID != a.UID || r.Encoding != delta.EncodingUnreadable || r.Hash != 0 || r.Payload != nil || r.Tombstone() {
		t.Errorf("told %+v, %v; want that version 5 is out of date", r, ok)
	}
	if r, ok := s.Unread(key, 1, now); ok {
		t.Errorf("told again: %+v", r)
	}
	if _, ok := s.Upsert(delta.Updated, a, 1, now); !ok {
		t.Error("the version that can be read again is not published")
	}
	if r, ok = s.Upsert(delta.Updated, &delta.Object{Key: key, RV: "6", Encoding: delta.EncodingUnreadable}, 1, now); ok {
		s.Doubt(&r)
	}
	if r, ok := s.Unread(key, 1, now); !ok || r.RV != "6" {
		t.Errorf("%+v, %v; want it published, as what was published before did not reach the log", r, ok)
	}
	s.Delete(delta.Observed, obj("a", 7), 1, now)
	if r, ok := s.Unread(key, 1, now); ok {
		t.Errorf("told %+v of a key that was deleted", r)
	}
}

// An object that left the collection's form, and was taken for deleted, is older than its tombstone
// when the form takes it back.
func TestAListThatHoldsADeletedObjectIsDetected(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name   string
		object *delta.Object
		listRV string
		want   bool
	}{
		{"it lives after all", obj("a", 2), "10", true},
		{"the list is older than the deletion", obj("a", 2), "9", false},
		{"it is another one of that name", &delta.Object{Key: "a", UID: "u-other", RV: "2"}, "10", false},
		{"it was made again", obj("a", 11), "12", false},
	} {
		s := delta.NewShadow(time.Hour)
		s.Upsert(delta.Added, obj("a", 2), 1, t0)
		s.BeginList()
		if gone := s.EndList("10", 1, t0); len(gone) != 1 {
			t.Fatalf("%d tombstones", len(gone))
		}
		s.BeginList()
		s.Listed(row.object, 1, t0)
		if got := s.Risen(row.listRV); got != row.want {
			t.Errorf("%s: Risen() = %v", row.name, got)
		}
		if _, ok := s.Listed(row.object, 2, t0); ok == (row.object.RV == "11") {
			t.Errorf("%s: not published in a new epoch", row.name)
		}
		s.BeginList()
		if s.Risen("99") {
			t.Errorf("%s: it lasts beyond the list", row.name)
		}
	}
}

func TestARelistPublishesWhatIsReadByOtherHintsOrLabels(t *testing.T) {
	t.Parallel()
	s := delta.NewShadow(time.Hour)
	read := func(hints, labels map[string][]string) (delta.Record, bool) {
		o := obj("a", 1)
		o.Owners = []delta.Owner{{Kind: "Job", Name: "j", UID: "1", Controller: true}}
		o.Hints, o.Labels = hints, labels
		return s.Listed(o, 1, t0)
	}
	node, app := map[string][]string{"node": {"n1"}}, map[string][]string{"app": {"x"}}
	for _, step := range []struct {
		what          string
		hints, labels map[string][]string
		published     bool
	}{
		{"first", node, nil, true},
		{"the same", node, nil, false},
		{"one more label", node, app, true},
		{"the same with it", node, app, false},
		{"without the hint, which the log has", nil, app, false},
		{"another value of the hint", map[string][]string{"node": {"n2"}}, app, true},
	} {
		s.BeginList()
		r, ok := read(step.hints, step.labels)
		if ok != step.published {
			t.Errorf("%s: published = %v, want %v", step.what, ok, step.published)
		}
		if ok && len(step.labels) > 0 && len(r.Labels["app"]) != 1 {
			t.Errorf("%s: labels %v", step.what, r.Labels)
		}
	}
}
