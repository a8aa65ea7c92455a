package watch

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/stream"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
	"github.com/deltaplane/deltaplane/services/indexer/follow"
	"github.com/deltaplane/deltaplane/services/indexer/indexertest"
)

// labelled is a record of a pod with a label app and a field spec.zone.
func labelled(seq uint64, name, app string) delta.Record {
	r := indexertest.Record(seq, 0)
	r.Key = delta.Key("n/" + name)
	r.Payload = fmt.Appendf(nil, `{"metadata":{"namespace":"n","name":%q,"labels":{"app":%q}},"spec":{"zone":%q}}`, name, app, app)
	return r
}

// A reader that leaves within the parts of what it has missed, and goes on
// elsewhere by the log, is notified of every key that left its selection.
func TestAReaderThatLeavesWithinWhatItMissedLosesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const last = 2*chunkEvents + 50
		every := []delta.Record{indexertest.Synced(1), labelled(2, "leaver", "web"), labelled(3, "leaver", "db")}
		for seq := uint64(4); seq < last; seq++ {
			every = append(every, labelled(seq, fmt.Sprint("p", seq), "web"))
		}
		every = append(every, labelled(last, "leaver", "db"))
		// One replica has read the log as it was written, the other what is left of it.
		whole, behind := newWatched(t), newWatched(t)
		mustFeed(t, whole, delta.Batch{Reset: true, Records: every[:1], Replayed: true, Next: 2})
		mustFeed(t, whole, delta.Batch{Records: every[1:], Next: last + 1})
		mustFeed(t, behind, delta.Batch{Reset: true, Records: every[:1], Replayed: true, Next: 2})
		mustFeed(t, behind, delta.Batch{Records: every[3:], Next: last + 1, End: last})

		has := map[string]bool{"n/leaver": true}
		at := &deltav1.Position{Epoch: 1, Sequence: 2, Term: 1}
		hear := func(m *indexv1.WatchResponse) {
			for _, e := range m.GetEvents().GetEvents() {
				has[e.GetObject().GetKey()] = e.GetType() != deltav1.DeltaType_DELTA_TYPE_DELETED
			}
			if p := m.GetPosition(); p != nil {
				at = p
			}
		}
		s, stop, _ := serve(t, behind, &indexv1.WatchRequest{LabelSelector: "app=web", Resume: at})
		m := <-s.heard
		if !m.GetEvents().GetCoalesced() {
			t.Fatalf("the first message is %v", m)
		}
		hear(m)
		stop()
		s, stop, _ = serve(t, whole, &indexv1.WatchRequest{LabelSelector: "app=web", Resume: at})
		defer stop()
		for at.GetSequence() < last {
			hear(<-s.heard)
		}
		if has["n/leaver"] {
			t.Error("the reader was not told that the pod left its selection")
		}
		if !has["n/p4"] || !has[fmt.Sprint("n/p", last-1)] {
			t.Errorf("the reader lacks pods: %v", has)
		}
	})
}

// A reader that leaves in the middle of changes that did not come in the log's
// order may have been notified of a key that is gone before another replica reads
// it: that one waits, and tells what became of all that changed.
func TestAReaderThatLeavesWithinChangesOfAHoleLosesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		every := []delta.Record{indexertest.Synced(1), labelled(2, "a", "db"), labelled(3, "b", "db"), labelled(4, "a", "web"), labelled(5, "b", "web"), labelled(6, "a", "db"), labelled(7, "b", "db")}
		first, second := newWatched(t), newWatched(t)
		for _, c := range []*follow.Collection{first, second} {
			hubOf(c).most.events = 1
			mustFeed(t, c, delta.Batch{Reset: true, Records: every[:3], Replayed: true, Next: 4})
		}
		s, stop, _ := serve(t, first, &indexv1.WatchRequest{LabelSelector: "app=web", SkipInitialState: true})
		<-s.heard
		hubOf(first).mu.Lock()                                                // the watch looks when all is there
		mustFeed(t, first, delta.Batch{Records: every[4:5], Next: 6, End: 5}) // as if another record of a had been there
		mustFeed(t, first, delta.Batch{Records: []delta.Record{labelled(6, "c", "web"), labelled(7, "d", "web")}, Next: 8})
		hubOf(first).mu.Unlock()
		m := <-s.heard
		stop()
		if at := placeOf(m.GetPosition()); len(m.GetEvents().GetEvents()) != 1 || at.at.Sequence > 3 || at.told.Sequence < 5 {
			t.Fatalf("told %v", m)
		}
		// The other replica reads on behind what the reader was notified of.
		s, stop, _ = serve(t, second, &indexv1.WatchRequest{LabelSelector: "app=web", Resume: m.GetPosition()})
		defer stop()
		synctest.Wait()
		select {
		case m := <-s.heard:
			t.Errorf("a replica that is behind says %v", m)
		default:
		}
		mustFeed(t, second, delta.Batch{Records: every[5:], Next: 8, End: 7})
		has := map[string]bool{"n/b": true}
		for at := uint64(0); at < 7; {
			m := <-s.heard
			for _, e := range m.GetEvents().GetEvents() {
				has[e.GetObject().GetKey()] = e.GetType() != deltav1.DeltaType_DELTA_TYPE_DELETED
			}
			at = max(at, m.GetPosition().GetSequence())
		}
		if has["n/a"] || has["n/b"] {
			t.Errorf("the reader has %v, want nothing", has)
		}
	})
}

// An index that fails while a reader waits for what it missed ends a strict watch: it
// would look as if everything had left the selection.
func TestAnIndexThatFailsMeanwhileDeletesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newWatched(t)
		bad := errors.New("bad")
		err := c.Store().AddIndexers(map[string]store.IndexFunc{"mood": func(o *store.Object) ([]string, error) {
			if o.Labels().Get("app") == "bad" {
				return nil, bad
			}
			return []string{"good"}, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		mustFeed(t, c, delta.Batch{Reset: true, Records: []delta.Record{indexertest.Synced(1)}, Replayed: true, Next: 2})
		mustFeed(t, c, delta.Batch{Records: []delta.Record{labelled(4, "a", "web"), labelled(5, "b", "web")}, Next: 6, End: 5})
		hubOf(c).scans <- struct{}{} // others scan
		s, stop, ended := serve(t, c, &indexv1.WatchRequest{
			Index: "mood", IndexValue: "good", Strict: true, Resume: &deltav1.Position{Epoch: 1, Sequence: 2, Term: 1},
		})
		defer stop()
		synctest.Wait()
		mustFeed(t, c, delta.Batch{Records: []delta.Record{labelled(6, "c", "bad")}, Next: 7})
		<-hubOf(c).scans
		select {
		case m := <-s.heard:
			t.Errorf("told %v", m)
		case err := <-ended:
			if !errors.Is(err, fault.ErrIndexFailed) {
				t.Errorf("ended by %v", err)
			}
		}
	})
}

// What happened before an index was there cannot be told by what is kept of it:
// the objects of that time lack its fields.
func TestAReaderOfAnIndexResumesBehindWhatWasReadWithoutIt(t *testing.T) {
	t.Parallel()
	for name, req := range map[string]*indexv1.WatchRequest{
		"index": {Index: "zone", IndexValue: "web"},
		"field": {FieldSelector: "spec.zone=web"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := newWatched(t)
				mustFeed(t, c, delta.Batch{Reset: true, Records: []delta.Record{indexertest.Synced(1)}, Replayed: true, Next: 2})
				mustFeed(t, c, delta.Batch{Records: []delta.Record{labelled(2, "a", "web")}, Next: 3})
				mustFeed(t, c, delta.Batch{Records: []delta.Record{labelled(3, "b", "web"), labelled(4, "a", "db")}, Next: 5})
				declareZone(t, c, 1, "spec.zone")
				req.Resume = &deltav1.Position{Epoch: 1, Sequence: 2, Term: 1}
				if req.GetIndex() != "" {
					req.Resume.Selection, _, _ = c.Indexes.Selection("zone")
				}
				s, stop, _ := serve(t, c, req)
				defer stop()
				has := map[string]bool{"n/a": true}
				for at := uint64(0); at < 4; {
					m := <-s.heard
					for _, e := range m.GetEvents().GetEvents() {
						has[e.GetObject().GetKey()] = e.GetType() != deltav1.DeltaType_DELTA_TYPE_DELETED
					}
					at = max(at, m.GetPosition().GetSequence())
				}
				if has["n/a"] || !has["n/b"] {
					t.Errorf("the reader has %v, want n/b alone", has)
				}
			})
		})
	}
}

// An index that is declared again under an open watch ends it, also when it is
// complete before the watch has looked; who comes back begins again.
func TestAWatchWhoseIndexIsDeclaredAgainEndsAndBeginsAgain(t *testing.T) {
	t.Parallel()
	for name, req := range map[string]*indexv1.WatchRequest{
		"index": {Index: "zone", IndexValue: "web"},
		"field": {FieldSelector: "spec.zone=web"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := newWatched(t)
				mustFeed(t, c, delta.Batch{Reset: true, Records: []delta.Record{indexertest.Synced(1), labelled(2, "a", "web")}, Replayed: true, Next: 3})
				declareZone(t, c, 1, "spec.zone")
				s, stop, ended := serve(t, c, req)
				if m := <-s.heard; len(m.GetEvents().GetEvents()) != 1 {
					t.Fatalf("told %v", m)
				}
				at := (<-s.heard).GetPosition()
				hubOf(c).mu.Lock() // the watch looks when all is done
				other := "metadata.labels.app"
				if req.GetIndex() == "" {
					other = "spec.zone"
				}
				declareZone(t, c, 2, other)
				mustFeed(t, c, delta.Batch{Records: []delta.Record{labelled(3, "b", "web"), labelled(4, "a", "db")}, Next: 5})
				hubOf(c).mu.Unlock()
				if err := <-ended; !errors.Is(err, fault.ErrIndexBuilding) {
					t.Errorf("ended by %v", err)
				}
				stop()
				req.Resume = at
				s, stop, _ = serve(t, c, req)
				defer stop()
				m := <-s.heard
				if gap := m.GetGap().GetReason(); (gap == gapSelection) != (req.GetIndex() != "") {
					t.Errorf("first told %v", m)
				}
			})
		})
	}
}

// declareZone gives a collection an index "zone" by a path, in place of the one that it
// has. times is how often that was done, with this.
func declareZone(t *testing.T, c *follow.Collection, times uint64, field string) {
	t.Helper()
	set := fmt.Sprintf(`{"version":1,"indexers":[{"cluster":"*","definition":{"name":"zone","field":%q}}]}`, field)
	for _, e := range []stream.Entry{
		{Key: "pods.v1", Deleted: true, Revision: 2*times - 1},
		{Key: "pods.v1", Value: []byte(set), Revision: 2 * times},
	} {
		if err := c.Indexes.Declarations.Take(nil, e); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Indexes.BuildOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
}
