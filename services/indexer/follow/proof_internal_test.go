package follow

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/attempt"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/services/indexer/indexertest"
)

// digested gives each record the digest of the log after it; the log begins with d.
func digested(d delta.Digest, records ...delta.Record) []delta.Record {
	for i := range records {
		r := &records[i]
		if r.Kind == delta.KindDelta {
			d += delta.DigestOf(string(r.Key), r.RV)
		}
		r.Digest, r.Digested = d, true
	}
	return records
}

func TestARevisionIsClaimedOnlyOfWhatTheLogSaysLives(t *testing.T) {
	t.Parallel()
	s := newTestCollections(t, nil, Config{})
	c := s.Know(indexertest.Pods)
	in := feed{s: s, c: c}
	batch := func(b delta.Batch) error { return in.batch(t.Context(), b) }
	begin := func() []delta.Record { return digested(0, record(1, 0), synced(2)) }
	if err := batch(delta.Batch{Reset: true, Records: begin(), Replayed: true, Next: 3}); err != nil {
		t.Fatal(err)
	}
	whole := digested(begin()[1].Digest, record(3, 0), record(4, 0))
	if err := batch(delta.Batch{Records: whole[1:], Next: 5}); !errors.Is(err, errRefuted) { // the log's server left one out
		t.Fatalf("a record that was left out: %v", err)
	}
	st := c.store.Snapshot().State()
	if st.Revision.RV != "2" || st.Upper.RV != "4" || !st.Frozen || !st.Synced {
		t.Errorf("behind a record that was left out: %+v, want what was known at 2, up to 4", st)
	}
	if _, ok := c.follower.Mark(); ok {
		t.Error("a checkpoint may be taken of it")
	}
	if err := batch(delta.Batch{Reset: true, Records: append(begin(), whole[1]), Replayed: true, Next: 5}); !errors.Is(err, errRefuted) {
		t.Fatalf("a replay from the same server: %v", err)
	}
	if st := c.store.Snapshot().State(); st.Synced || c.replayed.Load() && !c.replaying {
		t.Errorf("it is served: %+v", st)
	}
	if err := batch(delta.Batch{Reset: true, Records: append(begin(), whole...), Replayed: true, Next: 5}); err != nil {
		t.Fatal(err)
	}
	if st := c.store.Snapshot().State(); st.Revision.RV != "4" || st.Frozen || !st.Synced {
		t.Errorf("with everything read: %+v", st)
	}
}

func TestNothingIsComparedWhereItCannotBeKnown(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		batches  []delta.Batch
		revision delta.RV
	}{
		"a hole whose end was not read": {[]delta.Batch{{Records: digested(7, record(9, 0)), End: 12, Next: 10}}, "2"},
		"a record that cannot be read": {[]delta.Batch{
			{Records: digested(7, record(9, 0)), Unreadable: []delta.Unreadable{{Sequence: 3, Key: "d/a", Err: errors.New("odd")}}, Next: 10},
		}, "9"},
		"a leader of an older version": {[]delta.Batch{{Records: []delta.Record{record(3, 0)}, Next: 4}}, "3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newTestCollection(t, nil)
			mustApply(t, c, delta.Batch{Reset: true, Records: digested(0, record(1, 0), synced(2)), Replayed: true, Next: 3})
			for _, b := range row.batches {
				mustApply(t, c, b)
			}
			if c.refuted {
				t.Error("refuted")
			}
			if got := c.store.Snapshot().State().Revision.RV; got != row.revision {
				t.Errorf("revision %s, want %s", got, row.revision)
			}
		})
	}
}

// Behind a hole everything was read once its end is.
func TestTheEndOfAHoleIsNotEnoughWhereARecordIsMissing(t *testing.T) {
	t.Parallel()
	for _, missing := range []bool{false, true} {
		t.Run(strconv.FormatBool(missing), func(t *testing.T) {
			t.Parallel()
			c := newTestCollection(t, nil)
			first := digested(0, record(1, 0), synced(2))
			mustApply(t, c, delta.Batch{Reset: true, Records: first, Replayed: true, Next: 3})
			rest := digested(first[1].Digest, record(9, 0), record(12, 0))
			mustApply(t, c, delta.Batch{Records: rest[:1], End: 12, Next: 10})
			if missing {
				rest[1].Digest++
			}
			mustApply(t, c, delta.Batch{Records: rest[1:], Next: 13})
			if st := c.store.Snapshot().State(); c.refuted != missing || st.Frozen != missing {
				t.Errorf("refuted: %v, state %+v", c.refuted, st)
			}
		})
	}
}

func TestRecordsThatBeginATermDoNotEndTheComparison(t *testing.T) {
	t.Parallel()
	for _, kind := range []delta.Kind{delta.KindFence, delta.KindTerm, delta.KindOrigin} {
		c := newTestCollection(t, nil)
		first := digested(0, record(1, 0), synced(2))
		mustApply(t, c, delta.Batch{Reset: true, Records: first, Replayed: true, Next: 3})
		rest := digested(first[1].Digest+1, record(3, 0)) // something else lived before
		mustApply(t, c, delta.Batch{Records: append(rest, delta.Record{Kind: kind, Epoch: 1, Term: 2, Sequence: 4}), Next: 5})
		if !c.refuted {
			t.Errorf("behind a %v record: not refuted", kind)
		}
	}
}

// unproven is a log whose replay takes long and never brings what its leader wrote.
type unproven struct {
	Log
	reads []time.Time
}

func (l *unproven) Read(ctx context.Context, _ delta.Collection, _ stream.ReadConfig, _ stream.Handler) error {
	l.reads = append(l.reads, time.Now())
	attempt.Sleep(ctx, time.Minute)
	return errRefuted
}

func TestALogThatCannotBeProvenIsReplayedWithLongerAndLongerPauses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newTestCollections(t, nil, Config{})
		l := &unproven{Log: s.log}
		s.log = l
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := s.follow(ctx, s.Know(indexertest.Pods)); err != nil {
			t.Fatal(err)
		}
		n := len(l.reads)
		if n < 10 {
			t.Fatalf("read %d times in an hour", n)
		}
		if pause := l.reads[n-1].Sub(l.reads[n-2]) - time.Minute; pause < 5*time.Second {
			t.Errorf("after %d replays it is replayed again %v after the last", n-1, pause)
		}
	})
}
