package watch

import (
	"maps"
	"testing"
	"testing/synctest"

	"github.com/deltaplane/deltaplane/core/delta"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/indexertest"
)

func TestAnEventHasTheContextOfItsRecordWhereThatIsRecorded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const recorded = "00-11111111111111111111111111111111-2222222222222222-01"
		traced := func(seq uint64, trace string) delta.Record {
			r := indexertest.Record(seq, 0)
			r.Trace = trace
			return r
		}
		c := newWatchedWith(t, testConfig{ringChanges: 8})
		mustFeed(t, c, delta.Batch{Reset: true, Records: []delta.Record{traced(1, recorded), indexertest.Synced(2)}, Replayed: true, Next: 3})
		requests := map[string]*indexv1.WatchRequest{
			"full": {}, "keys": {View: indexv1.View_VIEW_KEYS}, "metadata": {View: indexv1.View_VIEW_METADATA}, "previous": {Previous: true},
		}
		tapes := map[string]*tape{}
		for name, req := range requests {
			s, stop, _ := serve(t, c, req)
			defer stop()
			if of := tracesOf(<-s.heard); of["n/p1"] != "" || len(of) != 1 {
				t.Errorf("%s: the initial state has the traces %q", name, of)
			}
			<-s.heard // its end
			tapes[name] = s
		}
		updated := traced(7, recorded)
		updated.Key, updated.Payload = "n/p1", indexertest.Record(1, 0).Payload
		mustFeed(t, c, delta.Batch{Records: []delta.Record{
			traced(3, recorded), traced(4, ""), traced(5, recorded[:len(recorded)-1]+"0"), traced(6, "\xff"+recorded[1:]), updated,
		}, Next: 8})
		want := map[string]string{"n/p3": recorded, "n/p4": "", "n/p5": "", "n/p6": "", "n/p1": recorded}
		for name, s := range tapes {
			if got := tracesOf(<-s.heard); !maps.Equal(got, want) {
				t.Errorf("%s: events have the traces %q, want %q", name, got, want)
			}
		}
		// Behind the ring only the latest of each key is known, and not what it came of.
		for from, want := range map[uint64]string{2: recorded, 1: ""} {
			s, stop, _ := serve(t, c, &indexv1.WatchRequest{Resume: &deltav1.Position{Epoch: 1, Sequence: from, Term: 1}})
			m := <-s.heard
			stop()
			if got := tracesOf(m)["n/p3"]; got != want || m.GetEvents().GetCoalesced() != (want == "") {
				t.Errorf("resumed behind %d: %v, want the trace %q", from, m, want)
			}
		}
	})
}

func tracesOf(m *indexv1.WatchResponse) map[string]string {
	of := map[string]string{}
	for _, e := range m.GetEvents().GetEvents() {
		of[e.GetObject().GetKey()] = e.GetTraceparent()
	}
	return of
}
