package delta

import (
	"maps"
	"math"
	"slices"
	"time"
)

// Batch is what a reader of a collection's log gets at a time.
type Batch struct {
	Collection Collection
	// Records are in the log's order; keys may repeat. They may be empty when only a flag is reported.
	Records []Record
	// Reset begins a replay from the start of the log: what the reader holds stays, but keys that this
	// replay does not name by the batch with Replayed set must be swept.
	Reset bool
	// Replayed reports that with this batch the end of the log, as seen when the replay began, has
	// been applied.
	Replayed bool
	// End, when not 0, is a sequence by which every record that was replaced in a hole of the log
	// has been replaced, the hole being in or before this batch: the revision stays frozen until
	// End has been applied. It is [EndUnknown] where that is not known yet; a later batch says it
	// then, be it one without records.
	End uint64
	// Next is the sequence after the last one this batch accounts for.
	Next uint64
	// Passed names records that this build does not know and may pass over. They are accounted for by
	// Next.
	Passed []Passed
	// Newer is set on a batch without records: the next record needs a later build, and the reader
	// goes on once it is replaced. What the reader holds is the log's state before it. Any other batch
	// says that the reader has gone on.
	Newer *NewerError
	// Unreadable names records that could not be decoded. They are accounted for by Next; what the
	// reader holds for their keys is out of date.
	Unreadable []Unreadable
	// Created is when the log was made; a recreated log is another log. It is zero when the reader
	// does not know.
	Created time.Time
}

// EndUnknown is the End of a batch behind whose hole it is not known yet what must be applied.
const EndUnknown = math.MaxUint64

// Unreadable is a record that could not be decoded.
type Unreadable struct {
	Sequence uint64
	// Key is the key of a delta by its subject; empty for a control record or a subject that says
	// nothing.
	Key Key
	Err error
}

// Follower is the rule every reader of a log shares: which revision it may claim, and whether the
// collection is readable. It keeps no keys. The zero value has read nothing.
type Follower struct {
	epoch, term uint64
	position    Position
	watermark   RV // of the last record applied
	upper       RV // the highest version applied in the epoch
	claimed     Revision
	frozenTo    uint64 // no claim before this sequence has been applied
	replaying   bool
	synced      uint64 // the epoch of the last synced record applied
	// What was claimed before the last batch, and whether a replay was under way.
	claimedBefore   Revision
	replayingBefore bool
	refuted         bool // until a replay begins
}

// Apply takes a batch after the reader has applied its records, and returns the revision that may
// be claimed now.
func (f *Follower) Apply(b Batch) Revision {
	if b.Reset {
		*f = Follower{replaying: true, claimed: f.claimed}
	}
	f.claimedBefore, f.replayingBefore = f.claimed, f.replaying
	for i := range b.Records {
		f.record(&b.Records[i])
	}
	if b.Next > 0 && b.Next-1 > f.position.Sequence {
		f.position.Sequence = b.Next - 1
	}
	switch {
	case b.End == 0:
	case f.frozenTo == EndUnknown:
		f.frozenTo = b.End
	default:
		f.frozenTo = max(f.frozenTo, b.End)
	}
	if b.Replayed {
		f.replaying = false
		if f.frozenTo == EndUnknown && b.End == 0 { // restored: the end of the log now is behind it
			f.frozenTo = 0
		}
		// Deletions that the log has forgotten count as applied: others may have met them.
		f.upper = MaxRV(f.upper, f.watermark)
	}
	if f.synced == f.epoch && f.epoch != 0 && !f.replaying && !f.refuted && f.position.Sequence >= f.frozenTo {
		f.frozenTo = 0
		if r := (Revision{Epoch: f.epoch, RV: f.watermark}); r.Compare(f.claimed) > 0 {
			f.claimed = r
		}
	}
	return f.claimed
}

// Refute takes back what the last Apply allowed, when the reader finds that what it holds is not
// what the log says: no more is claimed, and no mark is taken, until a replay begins.
func (f *Follower) Refute() {
	f.claimed, f.replaying, f.refuted = f.claimedBefore, f.replayingBefore, true
}

func (f *Follower) record(r *Record) {
	if r.Epoch > f.epoch {
		f.epoch, f.watermark, f.upper = r.Epoch, "", ""
	}
	f.term = max(f.term, r.Term)
	if r.Kind == KindSynced {
		f.synced = max(f.synced, r.Epoch)
	}
	if r.Epoch == f.epoch {
		f.watermark = MaxRV(f.watermark, r.Watermark)
		if r.Kind == KindDelta || r.Kind == KindSynced { // a list holds objects that were not published again
			f.upper = MaxRV(f.upper, r.RV)
		}
	}
	f.position = Position{Epoch: f.epoch, Sequence: max(f.position.Sequence, r.Sequence), Term: f.term}
}

// Readable reports whether reads may be answered: a replay is not running, the synced record of the
// current epoch has been applied, and a revision of that epoch may be claimed, so that every answer
// has one. Otherwise every read fails with COLLECTION_NOT_SYNCED. It is not readable either while a
// log that has lost its end says less than what was claimed of it.
func (f *Follower) Readable() bool {
	return !f.replaying && f.epoch != 0 && f.synced == f.epoch && f.claimed.Epoch == f.epoch && Compare(f.watermark, f.claimed.RV) >= 0
}

// Frozen reports whether the revision stands still because of a hole in the sequence, or was
// refuted.
func (f *Follower) Frozen() bool { return f.refuted || f.frozenTo > f.position.Sequence }

// Revision is the highest revision that may be claimed; zero before the collection has been
// readable once. While a new epoch is not yet synced it is still the old epoch's.
func (f *Follower) Revision() Revision { return f.claimed }

// Upper bounds what has been applied: no event above it is in what the reader holds. It is the
// highest resource version of the records of the epoch, and runs ahead of the revision where
// records come in another order than that of their versions: behind a hole, in a list, and where
// changes were coalesced. Where it does not, what the reader holds is exactly the state at the
// revision.
func (f *Follower) Upper() Revision { return Revision{Epoch: f.epoch, RV: f.upper} }

// Position is where reading resumes.
func (f *Follower) Position() Position { return f.position }

// Mark is what a follower must be given back to go on, in another process too, from where it was.
type Mark struct {
	Position  Position
	Watermark RV
	Claimed   Revision
	// Upper is the highest resource version applied in the position's epoch.
	Upper RV
	// FrozenTo is the end of the log that had to be applied after a hole before more could be claimed;
	// 0 without one, [EndUnknown] where it was not known yet.
	FrozenTo uint64
}

// Mark returns the follower's place; false while the collection is not readable, when there is none
// worth keeping.
func (f *Follower) Mark() (Mark, bool) {
	return Mark{Position: f.position, Watermark: f.watermark, Claimed: f.claimed, Upper: f.upper, FrozenTo: f.frozenTo}, f.Readable() && !f.refuted
}

// Restore returns the follower that a mark was taken of. It is not readable, and claims nothing
// more than it had, until a batch with Replayed: what the log says beyond the mark is not known
// yet.
func Restore(m Mark) Follower {
	return Follower{
		epoch: m.Position.Epoch, term: m.Position.Term, position: m.Position, watermark: m.Watermark, claimed: m.Claimed,
		upper: m.Upper, frozenTo: m.FrozenTo, replaying: true, synced: m.Position.Epoch,
	}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
