package define

import (
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/services/indexer/extract"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
)

const byPhase = `{"version":1,"indexers":[{"cluster":"*","definition":{"name":"by-phase","field":"status.phase"}},{"cluster":"dev","definition":{"name":"by-zone","field":"spec.zone"}},{"cluster":"dev","definition":{"name":"odd","cel":"object."}}]}`

// TestAnIndexIsNeverSaidToBeMissingWhileItMayBeDeclared follows one from
// before anything is known to its removal.
func TestAnIndexIsNeverSaidToBeMissingWhileItMayBeDeclared(t *testing.T) {
	t.Parallel()
	c := newTestIndexes(t)
	d := NewDeclarations(noBuckets{}, slog.New(slog.DiscardHandler), func(string) { c.Declare() })
	c.Declarations = d
	c.fill(t, 3000)
	want := func(when, index string, want error) {
		t.Helper()
		_, err := c.store.Snapshot().ByIndex(index, "v")
		if err != nil {
			err = c.IndexError(err)
		}
		if !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("%s, a read of %s: %v, want %v", when, index, err, want)
		}
	}
	wantField := func(when, field string, want error) {
		t.Helper()
		_, err := c.Field(field)
		if !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("%s, field %s: %v, want %v", when, field, err, want)
		}
	}
	want("before anything is known", "by-zone", fault.ErrIndexBuilding)
	wantField("before anything is known", "spec.zone", fault.ErrIndexBuilding)
	for _, e := range []stream.Entry{{Key: "pods.v1", Value: []byte(byPhase), Revision: 5}, {}} {
		if err := d.Take(nil, e); err != nil {
			t.Fatal(err)
		}
	}
	want("before it is built", "by-zone", fault.ErrIndexBuilding)
	want("before it is built", "odd", fault.ErrIndexFailed)
	want("before it is built", "never", fault.ErrIndexNotFound)
	wantField("before it is built", "spec.zone", fault.ErrIndexBuilding)
	wantField("before it is built", "status.phase", nil) // it was read at ingest before
	if _, err := c.Field("spec.never"); err == nil || rpc.Violations(rpc.Status(err, fault.Rules))["field_selector"] == "" {
		t.Errorf("a field that is not declared: %v, want a violation", err)
	}
	if list := c.Indexers(c.store.Snapshot()); len(list) != 3+4 {
		t.Errorf("%d indexes are listed, want the built-in four and three: %v", len(list), list)
	}
	if err := c.BuildOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"by-zone", "by-phase"} {
		want("after it is built", name, nil)
	}
	wantField("after it is built", "spec['zone']", nil)
	if got := c.IndexOf("spec.zone"); got != "by-zone" {
		t.Errorf("index of spec.zone = %q", got)
	}
	// An older value than what is known, as a watch that begins again may bring.
	if err := d.Take(nil, stream.Entry{Key: "pods.v1", Revision: 4}); err != nil {
		t.Fatal(err)
	}
	want("after an older value", "by-zone", nil)
	if err := d.Take(nil, stream.Entry{Key: "pods.v1", Revision: 6, Deleted: true}); err != nil {
		t.Fatal(err)
	}
	want("after the removal", "by-zone", fault.ErrIndexNotFound)
	if names := c.fieldNames(); slices.Contains(names, "spec.zone") || !slices.Contains(names, "status.phase") {
		t.Errorf("fields after the removal = %q", names)
	}
}

// TestADefinitionThatChangesUnderItsNameIsRebuilt: one replica may see
// a removal and a new declaration as one step.
func TestADefinitionThatChangesUnderItsNameIsRebuilt(t *testing.T) {
	t.Parallel()
	c := newTestIndexes(t)
	d := NewDeclarations(noBuckets{}, slog.New(slog.DiscardHandler), func(string) { c.Declare() })
	c.Declarations = d
	c.fill(t, 1)
	for i, run := range []struct{ def, value string }{
		{`"field":"metadata.name"`, "p1"}, {`"field":"metadata.namespace"`, "n"}, {`"cel":"object.metadata.name + '!'"`, "p1!"},
	} {
		set := `{"version":1,"indexers":[{"cluster":"*","definition":{"name":"x",` + run.def + `}}]}`
		if err := d.Take(nil, stream.Entry{Key: "pods.v1", Value: []byte(set), Revision: uint64(i + 1)}); err != nil {
			t.Fatal(err)
		}
		if err := c.BuildOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		hits, err := c.store.Snapshot().ByIndex("x", run.value)
		if err != nil || hits.Len() != 1 {
			t.Errorf("%s: %d objects under %q, %v", run.def, hits.Len(), run.value, err)
		}
	}
}

// An example is asked of one index; the expressions of the others may cost far
// more than the call.
func TestAnExampleIsReadForTheRequestedIndexOnly(t *testing.T) {
	t.Parallel()
	c := newTestIndexes(t)
	c.Declarations = NewDeclarations(noBuckets{}, slog.New(slog.DiscardHandler), func(string) { c.Declare() })
	const two = `{"version":1,"indexers":[{"cluster":"*","definition":{"name":"one","cel":"object.a"}},{"cluster":"*","definition":{"name":"two","cel":"object.b"}},{"cluster":"*","definition":{"name":"path","field":"spec.zone"}}]}`
	for _, e := range []stream.Entry{{Key: "pods.v1", Value: []byte(two), Revision: 5}, {}} {
		if err := c.Declarations.Take(nil, e); err != nil {
			t.Fatal(err)
		}
	}
	snap := c.store.Snapshot()
	for index, want := range map[string]string{"one": "A", "two": "B", "path": "Z", NodeIndex: "N"} {
		o, err := extract.New(c.PlanOf(index)).Example(t.Context(), []byte(`{"metadata":{"name":"x"},"a":"A","b":"B","spec":{"zone":"Z","nodeName":"N"}}`))
		if err != nil {
			t.Fatal(err)
		}
		if values, err := snap.Values(index, o); err != nil || !slices.Equal(values, []string{want}) {
			t.Errorf("%s files it under %q, %v, want %s", index, values, err, want)
		}
		for _, other := range []string{"one", "two", "path"} {
			x := find(*c.declared.Load(), other)
			if _, ok := o.Field(x.program.Field()); ok != (other == index) {
				t.Errorf("asked of %s, %s is read: %v", index, other, ok)
			}
		}
	}
}

// The watch of the bucket and the caller that wrote a value both receive it. The one that comes
// second must find it in use.
func TestAnEditHoldsWhenItReturnsAlsoWhenTheWatchWasFirst(t *testing.T) {
	t.Parallel()
	using, use, used := make(chan struct{}), make(chan struct{}), atomic.Bool{}
	d := NewDeclarations(noBuckets{}, slog.New(slog.DiscardHandler), func(string) {
		close(using)
		<-use
		used.Store(true)
	})
	note := func() { d.note(nil, "pods.v1", 1, []byte("x"), nil, nil) }
	go note() // as the watch does
	<-using
	returned := make(chan bool)
	go func() { note(); returned <- used.Load() }()
	select {
	case <-returned:
		t.Error("the edit returned before its change was in use")
		close(use)
	case <-time.After(100 * time.Millisecond): // enough for what is broken to show
		close(use)
		if !<-returned {
			t.Error("the edit returned before its change was in use")
		}
	}
}
