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

// fifo is a shadow and a stage, played as client-go's tests play a DeltaFIFO: objects are a name
// and a value. Versions count operations; an object that a list shows with the value it has keeps
// its version.
type fifo struct {
	shadow *delta.Shadow
	stage  *delta.Stage
	rv     int
	source map[string][2]int // value, version
}

func newFIFO(known ...string) *fifo {
	f := &fifo{shadow: delta.NewShadow(time.Hour), stage: delta.NewStage(1<<20, ""), source: map[string][2]int{}}
	for _, k := range known {
		f.do("Add " + k)
	}
	for f.pop() != "" {
		continue
	}
	return f
}

func (f *fifo) object(name string) *delta.Object {
	at := f.source[name]
	payload := fmt.Appendf(nil, "%s%d", name, at[0])
	return &delta.Object{Key: delta.Key(name), RV: strconv.Itoa(at[1]), Payload: payload, Hash: delta.Hash(payload)}
}

func (f *fifo) push(r delta.Record, ok bool) {
	if ok {
		f.stage.Push(r)
	}
}

// do runs one operation, such as "Add foo10", "Delete foo" or "Replace foo5 bar6".
func (f *fifo) do(op string) {
	words := strings.Fields(op)
	f.rv++
	split := func(s string) (string, int) {
		i := strings.IndexAny(s, "0123456789")
		if i < 0 {
			return s, f.source[s][0]
		}
		n, _ := strconv.Atoi(s[i:])
		return s[:i], n
	}
	switch words[0] {
	case "Replace":
		f.shadow.BeginList()
		listed := map[string]bool{}
		for _, w := range words[1:] {
			name, value := split(w)
			if at, ok := f.source[name]; !ok || at[0] != value {
				f.rv++
				f.source[name] = [2]int{value, f.rv}
			}
			listed[name] = true
			f.push(f.shadow.Listed(f.object(name), 1, t0))
		}
		for name := range f.source {
			if !listed[name] {
				delete(f.source, name)
			}
		}
		for _, r := range f.shadow.EndList(strconv.Itoa(f.rv), 1, t0) {
			f.push(r, true)
		}
		f.stage.Advance(strconv.Itoa(f.rv))
		f.stage.Control(delta.Record{Kind: delta.KindSynced})
		return
	case "Delete":
		name, value := split(words[1])
		f.source[name] = [2]int{value, f.rv}
		f.push(f.shadow.Delete(delta.Observed, f.object(name), 1, t0))
		delete(f.source, name)
	default:
		name, value := split(words[1])
		f.source[name] = [2]int{value, f.rv}
		f.push(f.shadow.Upsert(map[string]delta.Type{"Add": delta.Added, "Update": delta.Updated}[words[0]], f.object(name), 1, t0))
	}
	f.stage.Advance(strconv.Itoa(f.rv))
}

// pop hands out one record, and the control records behind it; empty when nothing waits.
func (f *fifo) pop() string {
	var out []string
	for _, r := range f.stage.Pop(1, 1<<20) {
		switch {
		case r.Kind != delta.KindDelta:
			out = append(out, r.Kind.String())
		case r.DeleteReason == delta.Inferred:
			out = append(out, "Tombstone "+string(r.Key))
		default:
			out = append(out, r.Type.String()[:1]+strings.ToLower(r.Type.String()[1:])+" "+string(r.Payload))
		}
	}
	return strings.Join(out, ", ")
}

// run plays operations, where "Pop" hands out one record, and then hands out what is left.
func (f *fifo) run(ops string) []string {
	var out []string
	for op := range strings.SplitSeq(ops, "; ") {
		if op != "Pop" {
			f.do(op)
		} else {
			out = append(out, f.pop())
		}
	}
	for popped := f.pop(); popped != ""; popped = f.pop() {
		if popped != "progress" {
			out = append(out, popped)
		}
	}
	return out
}

// Upstream hands out all changes of a key at once; the log has them in the order of their versions.
func TestDeltasFollowUpstreamsFIFOTables(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, known, ops string
		want             []string
	}{
		{
			"TestDeltaFIFO_detectLineJumpers", "",
			"Add foo10; Add bar1; Add foo11; Add foo13; Add zab30; Pop; Add foo14",
			[]string{"Added foo10", "Added bar1", "Added foo11", "Added foo13", "Added zab30", "Added foo14"},
		},
		{"TestDeltaFIFO_addUpdate", "", "Add foo10; Update foo12; Delete foo15", []string{"Added foo10", "Updated foo12", "Deleted foo15"}},
		{
			"TestDeltaFIFO_enqueueingNoLister", "",
			"Add foo10; Update bar15; Add qux17; Delete qux18; Delete baz20",
			// An update of what is not known is an addition.
			[]string{"Added foo10", "Added bar15", "Added qux17", "Deleted qux18"},
		},
		{
			"TestDeltaFIFO_enqueueingWithLister", "foo5 bar6 baz7",
			"Add foo10; Update bar15; Add qux17; Delete qux18; Delete baz20",
			[]string{"Added foo10", "Updated bar15", "Added qux17", "Deleted qux18", "Deleted baz20"},
		},
		{"TestDeltaFIFO_replaceWithDeleteDeltaIn", "foo1", "Delete foo1; Replace foo2", []string{"Deleted foo1", "Replaced foo2, synced"}},
		{
			"TestDeltaFIFO_ReplaceMakesDeletions", "foo5 bar6 baz7", "Delete baz10; Replace foo5",
			[]string{"Deleted baz10", "Tombstone bar, synced"},
		},
		{
			"the same, an object only in the queue", "foo5 bar6 baz7", "Add baz10; Replace foo5",
			[]string{"Added baz10", "Tombstone bar", "Tombstone baz, synced"},
		},
		{
			"the same, recreated in the queue", "foo5 bar6 baz7", "Delete bar6; Add bar100; Replace foo5",
			[]string{"Deleted bar6", "Added bar100", "Tombstone bar", "Tombstone baz, synced"},
		},
		{
			"TestDeltaFIFO_ReplaceMakesDeletionsReplaced", "foo5 bar6 baz7", "Delete baz10; Replace foo6",
			[]string{"Deleted baz10", "Replaced foo6", "Tombstone bar, synced"},
		},
		{"only in the queue: added", "", "Add foo5; Replace", []string{"Added foo5", "Tombstone foo, synced"}},
		{"only in the queue: replaced", "", "Add foo5; Replace foo5; Replace", []string{"Added foo5, synced", "Tombstone foo, synced"}},
		{"only in the queue: deleted", "", "Add foo5; Delete foo5; Replace", []string{"Added foo5", "Deleted foo5, synced"}},
		{"only in the queue: synced twice", "", "Add foo5; Replace foo5; Replace foo5; Replace", []string{"Added foo5, synced, synced", "Tombstone foo, synced"}},
		{"only in the queue: two lists", "", "Add foo5; Replace; Replace", []string{"Added foo5", "Tombstone foo, synced, synced"}},
		{
			"only in the queue: added, deleted and added", "", "Add foo5; Delete foo5; Add foo6; Replace",
			[]string{"Added foo5", "Deleted foo5", "Added foo6", "Tombstone foo, synced"},
		},
		{"an empty list", "", "Replace", []string{"synced"}},
		{"a list of two, and one handed out", "", "Replace a1 b2; Pop", []string{"Replaced a1", "Replaced b2, synced"}},
		{"an event alone is not a list", "", "Add a1; Pop; Replace a1", []string{"Added a1", "synced"}},
		{"a key twice in a list", "", "Replace a1 a2", []string{"Replaced a1", "Replaced a2, synced"}},
		{"TestDeltaFIFO_HasSyncedCorrectOnDeletion", "foo1 bar2 baz3", "Replace foo1", []string{"Tombstone bar", "Tombstone baz, synced"}},
		{"a list that differs in nothing tells nothing", "foo5 bar6", "Replace foo5 bar6", []string{"synced"}},
	} {
		f := newFIFO(strings.Fields(row.known)...)
		if diff := cmp.Diff(row.want, f.run(row.ops)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.name, diff)
		}
		if f.stage.Len() != 0 || f.stage.Bytes() != 0 || f.shadow.Len() != len(f.source) {
			t.Errorf("%s: %d records of %d bytes are left, %d objects known of %d", row.name, f.stage.Len(), f.stage.Bytes(), f.shadow.Len(), len(f.source))
		}
	}
}

func TestTwoProducersKeepTheirOrder(t *testing.T) {
	t.Parallel() // TestDeltaFIFO_basic: 2 producers of 500 each
	f := newFIFO()
	rng := rand.New(rand.NewPCG(1, 1))
	sent := map[string]int{"a": 0, "b": 0}
	got := map[string]int{"a": 0, "b": 0}
	take := func() {
		for _, r := range f.stage.Pop(1, 1<<20) {
			who, n := string(r.Key[:1]), string(r.Key[1:])
			if r.Kind == delta.KindDelta {
				if n != strconv.Itoa(got[who]) {
					t.Fatalf("%s%s is handed out after %d of its producer", who, n, got[who])
				}
				got[who]++
			}
		}
	}
	for sent["a"]+sent["b"] < 1000 {
		who := string(rune('a' + rng.IntN(2)))
		if sent[who] < 500 {
			f.rv++
			f.push(f.shadow.Upsert(delta.Added, obj(who+strconv.Itoa(sent[who]), f.rv), 1, t0))
			sent[who]++
		}
		if rng.IntN(3) == 0 {
			take()
		}
	}
	for f.stage.Len() > 0 {
		take()
	}
	if diff := cmp.Diff(sent, got); diff != "" {
		t.Errorf("(-sent +got):\n%s", diff)
	}
}

func TestAnInferredTombstoneCarriesTheKeyAndItsOwners(t *testing.T) {
	t.Parallel()
	o := obj("d/a", 5)
	o.UID, o.Owners, o.Hints = "c00cbd93-d2ea-4344-9a77-f14f3fa74642", []delta.Owner{{Kind: "Job", Name: "j"}}, map[string][]string{"node": {"n"}}
	for _, reason := range []delta.DeleteReason{delta.Inferred, delta.FilteredOut} {
		s := delta.NewShadow(time.Hour)
		s.Upsert(delta.Added, o, 1, t0)
		s.BeginList()
		want := []delta.Record{{
			Kind: delta.KindDelta, Type: delta.Deleted, Key: "d/a", UID: o.UID, RV: "9", Epoch: 1, ObservedAt: t0,
			Owners: o.Owners, Hints: o.Hints, DeleteReason: reason, Step: -1, Change: -delta.DigestOf("d/a", "5"),
		}}
		if diff := cmp.Diff(want, s.EndListFor(reason, "9", 1, t0)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", reason, diff)
		}
	}
}

func TestTakingFromTheStageNeverBlocks(t *testing.T) {
	t.Parallel()
	f := newFIFO()
	if got := f.stage.Pop(10, 1<<20); got != nil {
		t.Errorf("an empty stage hands out %v", told(got))
	}
	f.do("Add a1")
	f.do("Add b1")
	for _, want := range []string{"Added a1", "Added b1", ""} {
		if got := f.pop(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestAnObjectIsTransformedOnceBeforeItIsStaged(t *testing.T) {
	t.Parallel()
	s, stage := delta.NewShadow(time.Hour), delta.NewStage(1<<20, "")
	o := obj("a", 5)
	r, _ := s.Upsert(delta.Added, o, 1, t0)
	stage.Push(r)
	if got := stage.Pop(1, 1<<20); len(got) != 1 || &got[0].Payload[0] != &o.Payload[0] {
		t.Errorf("%v is not the object that was made", told(got))
	}
}
