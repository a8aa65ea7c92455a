package follow

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/core/delta"
)

// unknownRecords is what the metric counts.
func unknownRecords(t *testing.T, c *Collection, part string) float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	if err := r.Register(c.metrics.unknown); err != nil {
		t.Fatal(err)
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if m.GetLabel()[0].GetValue() == c.Name && m.GetLabel()[1].GetValue() == part {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// Before a record that a later build must read a collection keeps what it has, and says at once why
// it goes no further; no key is quarantined.
func TestACollectionStandsStillBeforeARecordOfALaterBuild(t *testing.T) {
	t.Parallel()
	s := newTestCollections(t, nil, Config{})
	c := s.Know(delta.Collection{Cluster: "dev", Version: "v1", Resource: "pods"})
	mustApply(t, c, delta.Batch{Reset: true, Records: []delta.Record{record(1, 0), synced(2)}, Replayed: true, Next: 3})
	before := c.store.Snapshot().State()
	newer := &delta.NewerError{Sequence: 3, Unknown: &delta.UnknownError{Part: delta.PartVersion, Value: "2"}, Writer: "r9", Build: "v9"}
	for range 3 { // once for each try
		mustApply(t, c, delta.Batch{Newer: newer})
	}
	snap := c.store.Snapshot()
	if st := snap.State(); !st.Synced || st.Revision != before.Revision || st.Position != before.Position || snap.Len() != 1 || snap.Faults() != 0 {
		t.Errorf("it holds %d objects, %d of them quarantined, at %+v; want what it had at %+v", snap.Len(), snap.Faults(), st, before)
	}
	if why := c.LastError(); !strings.Contains(why, "record 3 needs version 2") || !strings.Contains(why, "r9 (build v9)") {
		t.Errorf("it says %q, want the record, the version and the writer", why)
	}
	if !c.Lagging() || c.FrozenSince().IsZero() {
		t.Error("it does not lag")
	}
	if err := s.CheckNewer(context.Background()); err == nil || !strings.Contains(err.Error(), "1 collections stand still: dev/pods.v1: ") {
		t.Errorf("the detail of health is %v", err)
	}
	if n := unknownRecords(t, c, "version"); n != 1 {
		t.Errorf("%v records are counted, want the one", n)
	}
	if err := c.Synced(newTestCollection(t, nil).store.Snapshot()); err == nil || !strings.Contains(err.Error(), "needs version 2") {
		t.Errorf("a collection that never held anything fails with %v, want the reason", err)
	}

	next := record(3, 0)
	mustApply(t, c, delta.Batch{Records: []delta.Record{next}, Next: 4})
	if c.Lagging() || c.LastError() != "" || c.Newer() != nil || s.CheckNewer(context.Background()) != nil {
		t.Errorf("it goes on and still says %q, lagging: %v", c.LastError(), c.Lagging())
	}
}

// What may be passed over is named once, counted, and keeps nothing back.
func TestWhatIsPassedOverIsNamedOnce(t *testing.T) {
	t.Parallel()
	c := newTestCollection(t, nil)
	mustApply(t, c, delta.Batch{Reset: true, Records: []delta.Record{record(1, 0), record(2, 0), synced(3)}, Replayed: true, Next: 4})
	key := record(1, 0).Key
	kind := &delta.UnknownError{Part: delta.PartKind, Value: "compacted"}
	gone := delta.Record{
		Kind: delta.KindDelta, Key: key, Type: delta.Deleted, DeleteReason: "boredom", RV: "9", Watermark: "9", Epoch: 1, Term: 2, Sequence: 6,
		PublishedAt: now.Add(-time.Second),
	}
	mustApply(t, c, delta.Batch{
		Passed: []delta.Passed{{Sequence: 4, Unknown: kind}, {Sequence: 5, Unknown: kind}}, Records: []delta.Record{gone}, Next: 7,
	})
	snap := c.store.Snapshot()
	if snap.Get(string(key)) != nil || snap.State().Revision.RV != "9" || snap.State().Position.Sequence != 6 {
		t.Errorf("a deletion for an unknown reason: %+v at %+v, want the key gone", snap.Get(string(key)), snap.State())
	}
	if got := c.Unknown(); !slices.Equal(got, []string{`kind "compacted"`, `reason "boredom"`}) {
		t.Errorf("it names %q", got)
	}
	if c.LastError() != "" || c.Lagging() || !c.Exact(delta.Position{Sequence: 5}) {
		t.Errorf("last error %q, lagging %v; want neither, and no hole", c.LastError(), c.Lagging())
	}
	for part, want := range map[delta.Part]float64{delta.PartKind: 2, delta.PartReason: 1} {
		if n := unknownRecords(t, c, string(part)); n != want {
			t.Errorf("%v records with an unknown %s are counted, want %v", n, part, want)
		}
	}
}
