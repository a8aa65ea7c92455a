package watch

import (
	"slices"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	"github.com/deltaplane/deltaplane/services/indexer/follow"
)

// place is where a reader is, and what it resumes from.
//
// What a watch tells need not come in the log's order: it coalesces, it tells a
// new epoch by its differences, and records may have been replaced before they
// were read. In the middle of that a reader has some keys as they are and others
// as they were. Should it go on elsewhere from the last position at which it had
// all, by what happened since, it could keep a key that it was notified of and that
// was gone before the other replica read it. So a place also names what lies
// beyond: the reader's goroutine waits until it has come as far, and then
// tells the latest of every key that changed behind at, chosen or not.
type place struct {
	at        delta.Position // the reader has received everything up to here; zero when that is nowhere in the log
	told      delta.Position // nothing beyond this; zero when nothing beyond at
	selection uint64         // the definition of the index that chooses; 0 for none, or one that is built in
	scope     uint64         // a print of what is visible; 0 for all
}

func placeOf(p *deltav1.Position) place {
	return place{
		at:        delta.Position{Epoch: p.GetEpoch(), Sequence: p.GetSequence(), Term: p.GetTerm()},
		told:      delta.Position{Epoch: p.GetToldEpoch(), Sequence: p.GetToldSequence(), Term: p.GetToldTerm()},
		selection: p.GetSelection(),
		scope:     p.GetScope(),
	}
}

func (p place) isZero() bool { return p.at.IsZero() && p.told.IsZero() }

// end is the last of which the reader may have been told.
func (p place) end() delta.Position {
	if p.told.Epoch > p.at.Epoch || p.told.Epoch == p.at.Epoch && p.told.Sequence > p.at.Sequence {
		return p.told
	}
	return p.at
}

// ahead reports whether the reader may have been notified of more than at.
func (p place) ahead() bool { return p.end() != p.at }

// placeAt is the place of a reader that received all of a snapshot. Where it
// lacks records that were replaced before they were read, that is nowhere in the
// log: another replica may have told readers of those, and would not of what
// became of them.
func placeAt(snap *store.Snapshot) place {
	if snap.State().Frozen {
		return place{told: snap.State().Position}
	}
	return place{at: snap.State().Position}
}

// between is the place of a reader that received all of a snapshot and some of
// what happened up to a later one.
func between(before, snap *store.Snapshot) place {
	p := placeAt(before)
	p.told = snap.State().Position
	if before.Run() != snap.Run() { // what is no longer in the log is told as changes too
		p.at = delta.Position{}
	}
	return p
}

// by adds how the filter chooses, and among what.
func (f *selector) by(p place) place {
	p.selection, p.scope = f.selection, f.scope.Print()
	return p
}

// from is the place with all up to a sequence told, if that is news.
func (p place) from(sequence uint64) place {
	if sequence > p.at.Sequence {
		p.at.Sequence = sequence
	}
	return p
}

// floors finds, for each change of a snapshot from first on, the least sequence
// of it and all that follow; one more stands for what the snapshot does not hold
// yet. into is used again. The error is that of a change that was dropped.
func floors(c *follow.Collection, into []uint64, first uint64, snap *store.Snapshot) ([]uint64, error) {
	n := int(snap.LastChange() + 1 - first)
	list := slices.Grow(into[:0], n+1)[:n+1]
	least := snap.State().Position.Sequence + 1
	list[n] = least
	for i := n - 1; i >= 0; i-- {
		change, err := c.Store().Change(first + uint64(i))
		if err != nil {
			return list, err
		}
		least = min(least, change.Sequence)
		list[i] = least
	}
	return list, nil
}

// orderly reports whether the changes between two snapshots are those that the
// log had: a reader that received all up to a sequence then knows what the log
// said there. They are not when it started over in between, or was not complete,
// or records had been replaced before they were read.
func orderly(before, snap *store.Snapshot) bool {
	from, to := before.State(), snap.State()
	return before.Run() == snap.Run() && from.Position.Epoch == to.Position.Epoch && from.Position.Term == to.Position.Term &&
		!from.Frozen && !to.Frozen && to.StaleTo <= from.Position.Sequence
}

// bounds are what may be claimed of what a reader received: every event at or below
// the revision, and none above upper. Zero ones are not claimed.
type bounds struct{ revision, upper delta.Revision }

func boundsOf(snap *store.Snapshot) bounds {
	st := snap.State()
	return bounds{st.Revision, st.Upper}
}

// towards are the bounds of a reader that received some of what lies between
// these and a later snapshot.
func (b bounds) towards(snap *store.Snapshot) bounds {
	b.upper = snap.State().Upper
	return b
}
