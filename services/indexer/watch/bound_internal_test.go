package watch

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/indexertest"
	"github.com/deltaplane/deltaplane/services/indexer/message"
)

// For a watch that is never read no more is kept than the ring keeps, however
// much is written, and one beside it receives everything as it happens.
func TestAWatchThatIsNeverReadIsKeptLittleForAndDelaysNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const ring, changes = 64, 4000
		c := newWatchedWith(t, testConfig{ringChanges: ring})
		mustFeed(t, c, delta.Batch{Reset: true, Records: []delta.Record{indexertest.Synced(1)}, Replayed: true, Next: 2})
		stalled, stop, ended := serve(t, c, &indexv1.WatchRequest{})
		<-stalled.heard // the end of the state, and nothing more
		quick, stopQuick, endedQuick := serve(t, c, &indexv1.WatchRequest{Namespace: "n"})
		<-quick.heard
		most := 0
		for n := uint64(2); n < 2+changes; n++ {
			time.Sleep(time.Millisecond)
			mustFeed(t, c, delta.Batch{Records: []delta.Record{indexertest.Record(n, 0)}, Next: n + 1})
			events := (<-quick.heard).GetEvents().GetEvents()
			if len(events) != 1 || events[0].GetObject().GetResourceVersion() != fmt.Sprint(n) {
				t.Fatalf("the watch beside it was told %v, want change %d", events, n)
			}
			hubOf(c).mu.Lock()
			for _, g := range hubOf(c).groups {
				kept := 0
				g.mu.Lock()
				for _, b := range g.blocks {
					kept += b.n
				}
				g.mu.Unlock()
				most = max(most, kept)
			}
			hubOf(c).mu.Unlock()
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

// A watch that cannot begin leaves no snapshot behind, which would keep all that
// it holds for as long as nobody else watches.
func TestAWatchThatIsRefusedKeepsNoSnapshot(t *testing.T) {
	t.Parallel()
	c := newWatched(t)
	mustFeed(t, c, delta.Batch{Reset: true, Records: []delta.Record{indexertest.Synced(1)}, Replayed: true, Next: 2})
	w := &watcher{c: c, hub: hubOf(c)}
	w.filter.Index, w.filter.Values = "never", []string{"v"}
	if _, err := hubOf(c).join(w, "never", "full"); err == nil {
		t.Fatal("a watch by an index that is not there has begun")
	}
	if hubOf(c).current() != nil {
		t.Error("the snapshot is kept")
	}
}

// A few changes are published by the goroutine that has applied them, unless so many watches are
// woken that passes are paced: then that is follow's, which does not run here.
func TestFewChangesAreToldAtOnceToFewWatches(t *testing.T) {
	t.Parallel()
	c := newWatched(t)
	mustFeed(t, c, delta.Batch{Reset: true, Records: []delta.Record{indexertest.Synced(1)}, Replayed: true, Next: 2})
	hubOf(c).idle = make(chan struct{}) // follow is started where there is none
	hubOf(c).watchers.Add(1)
	w := &watcher{c: c, hub: hubOf(c)}
	if _, err := hubOf(c).join(w, "all", "full"); err != nil {
		t.Fatal(err)
	}
	next := uint64(2)
	told := func(records int) bool {
		var b delta.Batch
		for range records {
			b.Records = append(b.Records, indexertest.Record(next, 0))
			next++
		}
		b.Next = next
		mustFeed(t, c, b)
		return hubOf(c).current() == c.Snapshot()
	}
	if !told(1) || !told(fewRecords) {
		t.Error("few changes wait for another goroutine")
	}
	if told(fewRecords + 1) {
		t.Error("many changes hold up the log's reader")
	}
	hubOf(c).crowd = int(leastPace / paceWatch)
	if told(1) {
		t.Error("changes that many watches are told of are not paced")
	}
	hubOf(c).leave(w)
}

// What slow watches of several collections are kept is counted for all of them,
// until it is taken or they are gone.
func TestWhatWatchesHoldIsCountedForAllCollections(t *testing.T) {
	t.Parallel()
	all, s := newTestWatches(t, testConfig{})
	var sums []int
	var leave []func()
	for _, cluster := range []string{"a", "b"} {
		id := indexertest.Pods
		id.Cluster = cluster
		c := all.Know(id)
		mustFeed(t, c, delta.Batch{Reset: true, Records: []delta.Record{indexertest.Record(1, 0), indexertest.Synced(2)}, Replayed: true, Next: 3})
		hubOf(c).idle = make(chan struct{}) // follow is started where there is none
		w := &watcher{c: c, hub: hubOf(c)}
		if _, err := hubOf(c).join(w, "all", "full"); err != nil {
			t.Fatal(err)
		}
		leave = append(leave, func() { hubOf(c).leave(w) })
		for i := range 3 {
			mustFeed(t, c, delta.Batch{Records: []delta.Record{indexertest.Record(uint64(i+3), 0)}, Next: uint64(i + 4)})
			hubOf(c).atOnce()
		}
		sums = append(sums, s.Memory())
	}
	if sums[0] < 3*message.PartCost || sums[1] != 2*sums[0] {
		t.Errorf("%d bytes with one collection, %d with two: want some for the first and as many for the second", sums[0], sums[1])
	}
	for _, f := range leave {
		f()
	}
	if n := s.Memory(); n != 0 {
		t.Errorf("%d bytes when nobody watches", n)
	}
}
