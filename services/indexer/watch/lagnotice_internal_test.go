package watch

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/indexertest"
)

// lagsAfter is after what time behind a hole a collection lags.
const lagsAfter = 10 * time.Second

func TestWatchesSayOnceThatTheirCollectionLagsAndOnceThatItDoesNoMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newWatchedWith(t, testConfig{now: time.Now})
		mustFeed(t, c, delta.Batch{Reset: true, Records: []delta.Record{indexertest.Synced(1)}, Replayed: true, Next: 2})
		s, stop, ended := serve(t, c, &indexv1.WatchRequest{})
		<-s.heard // the end of the state
		began := time.Now()
		mustFeed(t, c, delta.Batch{Records: []delta.Record{indexertest.Record(4, 0)}, Next: 5, End: 9}) // behind a hole
		said := (<-s.heard).GetLagging()
		if said == nil || !said.GetFrozenSince().AsTime().Equal(began) {
			t.Fatalf("a watch was told %v, want that it lags since %v", said, began)
		}
		if d := time.Since(began); d <= lagsAfter || d > lagsAfter+bookmarkEvery {
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
		mustFeed(t, c, delta.Batch{Records: []delta.Record{indexertest.Record(9, 0)}, Next: 10})
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
