package define

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/definition"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
)

// fakeRoom is as large as the functions say.
type fakeRoom struct {
	spare func() error
	fits  func(size int) bool
}

func (r fakeRoom) Spare(context.Context, int) error { return r.spare() }
func (r fakeRoom) Fits(size int) bool               { return r.fits(size) }

// Indexes that the first sync makes ready take no room before it, and what is
// not declared any more needs none: build does not begin again for them, which
// would collect garbage on and on while there is no room.
func TestBuildDoesNotGoRoundWhereNothingCanBeGivenUp(t *testing.T) {
	t.Parallel()
	c := newTestIndexes(t)
	asked := 0
	c.room = fakeRoom{spare: func() error { asked++; return fault.New(fault.ErrMemoryBudget, "") }}
	if err := c.BuildOnce(t.Context()); err != nil || asked > 0 {
		t.Errorf("before the first sync: %v, asked for room %d times", err, asked)
	}
	if err := c.withoutRoom(&noRoomError{index: "removed", err: fault.ErrMemoryBudget}); err != nil {
		t.Error(err)
	}
	if len(c.rebuild) > 0 {
		t.Error("build is woken, though nothing was given up")
	}
}

// What was given up is begun again where there is clearly more room than it had,
// one at a time, and later each time that it is given up.
func TestIndexesThatWereGivenUpAreBegunAgainWithHysteresisAndGrowingDelay(t *testing.T) {
	t.Parallel()
	c := newTestIndexes(t)
	var list []declaration
	for _, name := range []string{"a", "b"} {
		d, err := definition.FromProto("i", &indexv1.IndexerDefinition{Name: name, Source: &indexv1.IndexerDefinition_Label{Label: name}})
		if err != nil {
			t.Fatal(err)
		}
		p, err := definition.Compile(d)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, declaration{Declared: definition.Declared{Definition: d, Cluster: "dev"}, program: p})
	}
	c.Declarations.entries[c.id.ResourceName()] = &declaredEntry{list: list}
	c.Declare()
	c.slog = slog.New(slog.DiscardHandler)
	at, free := begun, 1<<40
	c.now, c.room = func() time.Time { return at }, fakeRoom{fits: func(size int) bool { return size <= free }}
	want := func(when, names string) {
		t.Helper()
		var out []string
		for _, x := range *c.declared.Load() {
			if x.err != nil {
				out = append(out, x.Name)
			}
		}
		if got := strings.Join(out, ""); got != names {
			t.Fatalf("%s %q are left out, want %q", when, got, names)
		}
	}
	giveUp := func(name string) {
		t.Helper()
		if err := c.withoutRoom(&noRoomError{index: name, err: fault.New(fault.ErrMemoryBudget, "")}); err != nil {
			t.Fatal(err)
		}
	}
	giveUp("a")
	giveUp("b")
	want("given up,", "ab")
	c.retry()
	want("at once", "ab")
	if o := (omission{need: 8 << 20, of: 100}); o.room(100) != 10<<20 || o.room(200) != 10<<20 || o.room(50) != 5<<20 || o.room(0) != buildMargin {
		t.Errorf("8 MiB of 100 objects need %d free, of 200 %d, of 50 %d, of none %d", o.room(100), o.room(200), o.room(50), o.room(0))
	}
	at = at.Add(c.retryAfter(1))
	free = c.omitted["a"].need + c.omitted["a"].need/8
	c.retry()
	want("with an eighth more than it had", "ab")
	free = c.omitted["a"].room(0)
	c.retry()
	want("with a quarter more", "b")
	c.retry()
	want("with a quarter more than the other had", "")
	giveUp("a")
	at = at.Add(c.retryAfter(1))
	c.retry()
	want("given up twice, after the time of one that was given up once", "a")
	at = at.Add(c.retryAfter(2) - c.retryAfter(1))
	c.retry()
	want("after twice that time", "")
	at = at.Add(c.retryAfter(100) + 1)
	giveUp("a")
	at = at.Add(c.retryAfter(1))
	c.retry()
	want("given up after it was there for long", "")
	giveUp("a")
	giveUp("b")
	at = at.Add(c.retryAfter(100))
	c.omitted["a"].need, c.omitted["a"].of = 10<<20, c.store.Snapshot().Len()
	c.omitted["b"].need, c.omitted["b"].of = 11<<20, c.store.Snapshot().Len()+1000
	free = 5 << 20
	c.retry()
	want("with room for the one that was larger when there were more objects,", "a")
	if p := c.retryAfter(100); p != c.retryAfter(1+retryDoublings) || p > 10*time.Minute {
		t.Errorf("the delay grows to %v", p)
	}
}
