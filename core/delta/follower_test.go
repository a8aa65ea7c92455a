package delta_test

import (
	"testing"

	"github.com/deltaplane/deltaplane/core/delta"
)

func batch(first uint64, records ...delta.Record) delta.Batch {
	b := delta.Batch{Records: records}
	for i := range records {
		records[i].Sequence = first + uint64(i)
		if records[i].Epoch == 0 {
			records[i].Epoch = 1
		}
	}
	b.Next = first + uint64(len(records))
	return b
}

func at(w string) delta.Record { return delta.Record{Kind: delta.KindProgress, Watermark: w} }

func synced(w string) delta.Record {
	return delta.Record{Kind: delta.KindSynced, RV: w, Watermark: w}
}

func TestACollectionIsReadableWhenTheSyncedRecordOfItsEpochIsApplied(t *testing.T) {
	t.Parallel()
	var f delta.Follower
	first := batch(1, at(""))
	first.Reset = true
	if rev := f.Apply(first); f.Readable() || !rev.IsZero() {
		t.Errorf("readable %v at %v before the synced record", f.Readable(), rev)
	}
	if f.Apply(batch(2, synced("10"))); f.Readable() {
		t.Error("readable within the replay")
	}
	last := batch(3, at("12"))
	last.Replayed = true
	if rev := f.Apply(last); rev != (delta.Revision{Epoch: 1, RV: "12"}) || !f.Readable() {
		t.Errorf("revision %v, readable %v after the replay", rev, f.Readable())
	}
	next := at("3")
	next.Epoch = 2
	if rev := f.Apply(batch(4, next)); f.Readable() || rev.Epoch != 1 {
		t.Errorf("revision %v, readable %v in an epoch that is not synced", rev, f.Readable())
	}
	again := synced("4")
	again.Epoch = 2
	if rev := f.Apply(batch(5, again)); !f.Readable() || rev != (delta.Revision{Epoch: 2, RV: "4"}) {
		t.Errorf("revision %v, readable %v after the new epoch's synced record", rev, f.Readable())
	}
}

func TestTheRevisionStandsStillFromAGapToTheEndSeenAfterIt(t *testing.T) {
	t.Parallel()
	var f delta.Follower
	f.Apply(batch(1, synced("10")))
	hole := batch(5, at("20"))
	hole.End = 8
	if rev := f.Apply(hole); rev.RV != "10" || !f.Frozen() {
		t.Errorf("revision %v, frozen %v behind a hole", rev, f.Frozen())
	}
	if rev := f.Apply(batch(6, at("21"), at("22"))); rev.RV != "10" {
		t.Errorf("revision %v before the end was applied", rev)
	}
	if rev := f.Apply(batch(8, at("23"))); rev.RV != "23" || f.Frozen() {
		t.Errorf("revision %v, frozen %v at the end", rev, f.Frozen())
	}
	if p := f.Position(); p.Sequence != 8 || p.Epoch != 1 {
		t.Errorf("position %+v", p)
	}
}

// What is synced behind a hole has no revision that could be claimed yet, and must not be read
// without one.
func TestACollectionIsNotReadableBeforeItsFirstRevisionOfTheEpoch(t *testing.T) {
	t.Parallel()
	var f delta.Follower
	hole := batch(1, synced("10"))
	hole.End = 3
	if rev := f.Apply(hole); rev != (delta.Revision{}) || f.Readable() {
		t.Errorf("revision %v, readable %v behind a hole", rev, f.Readable())
	}
	if rev := f.Apply(batch(3, at("12"))); rev.RV != "12" || !f.Readable() {
		t.Errorf("revision %v, readable %v at the end", rev, f.Readable())
	}
}

func TestTheClaimedRevisionNeverGoesBack(t *testing.T) {
	t.Parallel()
	var f delta.Follower
	f.Apply(batch(1, synced("10"), at("30")))
	reset := batch(1, synced("10"))
	reset.Reset = true
	if rev := f.Apply(reset); rev.RV != "30" {
		t.Errorf("revision %v after a reset, want what was claimed", rev)
	}
	done := batch(2, at("20"))
	done.Replayed = true
	if rev := f.Apply(done); rev.RV != "30" {
		t.Errorf("revision %v after the replay, want what was claimed", rev)
	}
}

func TestApplyIsMonotoneAndDetectsRecreations(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		held, next delta.Stamp
		want       bool
	}{
		{delta.Stamp{}, delta.Stamp{Epoch: 1, RV: "1"}, true},
		{delta.Stamp{Epoch: 1, RV: "9"}, delta.Stamp{Epoch: 1, RV: "10"}, true},
		{delta.Stamp{Epoch: 1, RV: "10"}, delta.Stamp{Epoch: 1, RV: "10"}, true},
		{delta.Stamp{Epoch: 1, RV: "10"}, delta.Stamp{Epoch: 1, RV: "9"}, false},
		{delta.Stamp{Epoch: 1, RV: "10"}, delta.Stamp{Epoch: 2, RV: "3"}, true},
		{delta.Stamp{Epoch: 2, RV: "3"}, delta.Stamp{Epoch: 1, RV: "10"}, false},
	} {
		if got := delta.Apply(row.held, row.next); got != row.want {
			t.Errorf("Apply(%v, %v) = %v", row.held, row.next, got)
		}
	}
	if !delta.Recreated("a", "b") || delta.Recreated("a", "a") || delta.Recreated("", "b") || delta.Recreated("a", "") {
		t.Error("a recreation is another known uid under the same key")
	}
}

func changed(rv, w string) delta.Record {
	return delta.Record{Kind: delta.KindDelta, Type: delta.Updated, Key: "d/a", RV: rv, Watermark: w}
}

func exact(f *delta.Follower) bool { return f.Upper().Compare(f.Revision()) <= 0 }

func TestTheUpperBoundIsTheHighestVersionApplied(t *testing.T) {
	t.Parallel()
	var f delta.Follower
	upper := func(when, want string, isExact bool) {
		t.Helper()
		if got := f.Upper(); got != (delta.Revision{Epoch: f.Position().Epoch, RV: want}) || exact(&f) != isExact {
			t.Errorf("%s: upper %v at %v, want %s, exact %v", when, got, f.Revision(), want, isExact)
		}
	}
	f.Apply(batch(1, changed("9", ""), synced("10")))
	upper("synced", "10", true)
	f.Apply(batch(3, changed("12", "12"), at("15")))
	upper("a bookmark moves only the revision", "12", true)
	f.Apply(batch(5, changed("19", "16"), changed("17", "17")))
	upper("between changes out of order", "19", false)
	f.Apply(batch(7, at("19")))
	upper("all of them are in", "19", true)
	hole := batch(12, changed("30", "30"))
	hole.End = 14
	f.Apply(hole)
	upper("behind a hole", "30", false)
	f.Apply(batch(13, changed("33", "33"), at("33")))
	upper("at the end behind the hole", "33", true)
	first := changed("4", "")
	first.Epoch = 2
	f.Apply(batch(15, first))
	upper("a new epoch", "4", false)
	again := synced("5")
	again.Epoch = 2
	f.Apply(batch(16, again))
	upper("a new epoch that is synced", "5", true)
}

func TestTheUpperBoundOfAReplayCoversDeletionsTheLogHasForgotten(t *testing.T) {
	t.Parallel()
	var f delta.Follower
	f.Apply(batch(1, changed("9", ""), synced("10"), changed("30", "30"), at("40")))
	reset := batch(1, changed("9", ""), synced("10"), at("40"))
	reset.Reset, reset.Replayed = true, true
	if f.Apply(reset); f.Upper().RV != "40" || !exact(&f) {
		t.Errorf("upper %v at %v after a replay, want all that may have been met", f.Upper(), f.Revision())
	}
}

func TestACollectionIsNotReadableWhileItsLogSaysLessThanWasClaimed(t *testing.T) {
	t.Parallel()
	var f delta.Follower
	f.Apply(batch(1, synced("10"), at("30")))
	reset := batch(1, synced("10"), at("20"))
	reset.Reset, reset.Replayed = true, true
	if rev := f.Apply(reset); f.Readable() {
		t.Errorf("readable at %v with the state of 20", rev)
	}
	if rev := f.Apply(batch(3, at("31"))); !f.Readable() || rev.RV != "31" {
		t.Errorf("revision %v, readable %v once the log has gone on", rev, f.Readable())
	}
}

func TestARestoredFollowerKeepsItsUpperBound(t *testing.T) {
	t.Parallel()
	var f delta.Follower
	f.Apply(batch(1, synced("10"), changed("19", "12")))
	mark, ok := f.Mark()
	r := delta.Restore(mark)
	if !ok || r.Upper() != f.Upper() || r.Upper().RV != "19" {
		t.Errorf("upper %v restored from %v", r.Upper(), f.Upper())
	}
}

func TestARevisionStandsStillUntilTheEndBehindAHoleIsKnown(t *testing.T) {
	t.Parallel()
	at := func(seq uint64, w delta.RV) delta.Batch {
		return delta.Batch{Records: []delta.Record{{Kind: delta.KindDelta, Epoch: 1, Term: 1, Sequence: seq, RV: w, Watermark: w}}, Next: seq + 1}
	}
	var f delta.Follower
	first := at(1, "10")
	first.Reset, first.Replayed = true, true
	first.Records = append(first.Records, delta.Record{Kind: delta.KindSynced, Epoch: 1, Term: 1, Sequence: 2, RV: "10", Watermark: "10"})
	f.Apply(first)
	hole := at(5, "13")
	hole.End = delta.EndUnknown
	if rev := f.Apply(hole); rev.RV != "10" || !f.Frozen() {
		t.Fatalf("behind the hole %v is claimed, frozen %v", rev, f.Frozen())
	}
	if rev := f.Apply(at(6, "14")); rev.RV != "10" || !f.Frozen() {
		t.Fatalf("a record further %v is claimed, frozen %v", rev, f.Frozen())
	}
	mark, _ := f.Mark()
	known := delta.Batch{End: 7, Next: 7}
	if rev := f.Apply(known); rev.RV != "10" || !f.Frozen() {
		t.Errorf("before the end that is known now %v is claimed, frozen %v", rev, f.Frozen())
	}
	if rev := f.Apply(at(7, "15")); rev.RV != "15" || f.Frozen() {
		t.Errorf("at the end %v is claimed, frozen %v", rev, f.Frozen())
	}
	again := delta.Restore(mark)
	if rev := again.Apply(at(7, "15")); rev.RV != "10" {
		t.Errorf("restored and not caught up, %v is claimed", rev)
	}
	if rev := again.Apply(delta.Batch{Replayed: true, Next: 8}); rev.RV != "15" || again.Frozen() {
		t.Errorf("restored and caught up, %v is claimed, frozen %v", rev, again.Frozen())
	}
}
