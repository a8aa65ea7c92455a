package indexer

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

func TestACollectionThatIsFrozenForLongIsLagging(t *testing.T) {
	t.Parallel()
	c := newTestCollection(t, nil)
	at := now
	c.now = func() time.Time { return at }
	c.mustApply(t, delta.Batch{Reset: true, Records: []delta.Record{synced(1)}, Replayed: true, Next: 2})
	want := func(when string, want bool) {
		t.Helper()
		if got := c.lagging(at); got != want {
			t.Errorf("%s: lagging %v, want %v", when, got, want)
		}
	}
	at = at.Add(time.Minute)
	want("quiet", false)
	c.mustApply(t, delta.Batch{Records: []delta.Record{record(4, 0)}, Next: 5, End: 9}) // behind a hole
	want("frozen", false)
	at = at.Add(laggingAfter)
	c.mustApply(t, delta.Batch{Records: []delta.Record{record(5, 0)}, Next: 6})
	want("frozen for as long as it may be", false)
	at = at.Add(time.Millisecond)
	want("frozen for longer", true)
	c.mustApply(t, delta.Batch{Records: []delta.Record{record(9, 0)}, Next: 10})
	want("at the end", false)
	if !c.frozenSince().IsZero() {
		t.Errorf("frozen since %v", c.frozenSince())
	}
}

func TestWatchesSayOnceThatTheirCollectionLagsAndOnceThatItDoesNoMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newTestCollection(t, nil)
		c.now = time.Now
		c.mustApply(t, delta.Batch{Reset: true, Records: []delta.Record{synced(1)}, Replayed: true, Next: 2})
		s, stop, ended := serve(t, c, &indexv1.WatchRequest{})
		<-s.heard // the end of the state
		began := time.Now()
		c.mustApply(t, delta.Batch{Records: []delta.Record{record(4, 0)}, Next: 5, End: 9}) // behind a hole
		said := (<-s.heard).GetLagging()
		if said == nil || !said.GetFrozenSince().AsTime().Equal(began) {
			t.Fatalf("a watch was told %v, want that it lags since %v", said, began)
		}
		if d := time.Since(began); d <= laggingAfter || d > laggingAfter+bookmarkEvery {
			t.Errorf("it was told after %v", d)
		}
		late, stopLate, lateEnded := serve(t, c, &indexv1.WatchRequest{})
		if first := <-late.heard; first.GetLagging() != nil {
			t.Fatalf("a watch that begins meanwhile was told first %v", first)
		}
		for n := 0; ; n++ {
			if said := <-late.heard; said.GetLagging().GetFrozenSince() != nil {
				break
			} else if n == 3 {
				t.Fatalf("a watch that begins meanwhile was told %v", said)
			}
		}
		time.Sleep(time.Minute)
		c.mustApply(t, delta.Batch{Records: []delta.Record{record(9, 0)}, Next: 10})
		for name, of := range map[string]*tape{"a watch": s, "one that began meanwhile": late} {
			if over := (<-of.heard).GetLagging(); over == nil || over.GetFrozenSince() != nil {
				t.Errorf("%s was told %v, want that it is over", name, over)
			}
		}
		stop()
		stopLate()
		<-ended
		<-lateEnded
	})
}
