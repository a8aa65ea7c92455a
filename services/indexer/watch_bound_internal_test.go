package indexer

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// For a watch that is never read no more is kept than the ring keeps, however
// much is written, and one beside it is told everything as it happens.
func TestAWatchThatIsNeverReadIsKeptLittleForAndDelaysNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const ring, changes = 64, 4000
		c := newTestCollection(t, nil)
		c.store = store.New(store.Options{TombstoneTTL: time.Hour, RingChanges: ring, Indexers: builtIn(c.id)})
		c.mustApply(t, delta.Batch{Reset: true, Records: []delta.Record{synced(1)}, Replayed: true, Next: 2})
		stalled, stop, ended := serve(t, c, &indexv1.WatchRequest{})
		<-stalled.heard // the end of the state, and nothing more
		quick, stopQuick, endedQuick := serve(t, c, &indexv1.WatchRequest{Namespace: "n"})
		<-quick.heard
		most := 0
		for n := uint64(2); n < 2+changes; n++ {
			time.Sleep(time.Millisecond)
			c.mustApply(t, delta.Batch{Records: []delta.Record{record(n, 0)}, Next: n + 1})
			events := (<-quick.heard).GetEvents().GetEvents()
			if len(events) != 1 || events[0].GetObject().GetResourceVersion() != fmt.Sprint(n) {
				t.Fatalf("the watch beside it was told %v, want change %d", events, n)
			}
			c.hub.mu.Lock()
			for _, g := range c.hub.groups {
				kept := 0
				g.mu.Lock()
				for _, b := range g.blocks {
					kept += b.n
				}
				g.mu.Unlock()
				most = max(most, kept)
			}
			c.hub.mu.Unlock()
		}
		if between := int(trimEvery / time.Millisecond); most < ring || most > ring+between+1 {
			t.Errorf("%d changes are kept for a watch that is not read, want at most the ring's %d and what comes before the next look, %d", most, ring, between)
		}
		stop()
		stopQuick()
		<-ended
		<-endedQuick
	})
}
