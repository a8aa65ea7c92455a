package logs

import (
	"strconv"

	"github.com/deltaplane/deltaplane/bench/internal/system"
	"github.com/deltaplane/deltaplane/core/delta"
)

// audit follows a log of a scripted history and notes where it does not keep
// its word. It is for one goroutine.
type audit struct {
	keys  []delta.Key // of the history: event i is of key i modulo their number
	first int         // resource version before any event

	follower delta.Follower
	state    map[delta.Key]system.ObjectState // tombstones included
	dead     map[delta.Key]bool
	seen     map[delta.Key]bool // since the replay began
	checked  int                // events whose place below the claimed revision has been checked
	term     uint64             // of the newest term record
	holder   string             // who wrote it
	Faults   faults
}

// faults are what must not be in a log, but for the last ones.
type faults struct {
	// OldTerm counts records of an older term after the record of a newer one.
	OldTerm int `json:"old_term"`
	// Gaps counts events at or below a claimed revision that were not applied by then.
	Gaps int `json:"gaps"`
	// Back counts records that are older than what was held for their key.
	Back int `json:"back"`
	// Damaged counts payloads that do not have the hash that the header tells.
	Damaged int `json:"damaged"`
	// Unreadable counts records that could not be decoded.
	Unreadable int `json:"unreadable"`
	// Resets counts replays from the start: one is where the reader began.
	Resets int `json:"resets"`
	// Terms counts leadership terms and Deltas records of changes that were seen.
	Terms  int `json:"terms"`
	Deltas int `json:"deltas"`
}

func newAudit(keys []string, first int) *audit {
	a := &audit{first: first, state: map[delta.Key]system.ObjectState{}, dead: map[delta.Key]bool{}, seen: map[delta.Key]bool{}}
	for _, k := range keys {
		a.keys = append(a.keys, delta.Key(k))
	}
	return a
}

// apply takes a batch as every reader does.
func (a *audit) apply(b delta.Batch) {
	if b.Reset {
		a.Faults.Resets++
		clear(a.seen)
	}
	a.Faults.Unreadable += len(b.Unreadable)
	for i := range b.Records {
		a.record(&b.Records[i])
	}
	if b.Replayed {
		for key := range a.state {
			if !a.seen[key] {
				delete(a.state, key)
			}
		}
	}
	a.claim(a.follower.Apply(b))
}

func (a *audit) record(r *delta.Record) {
	if r.Term < a.term {
		a.Faults.OldTerm++
	}
	if r.Kind == delta.KindTerm {
		a.Faults.Terms++
		a.term, a.holder = max(a.term, r.Term), r.Writer
	}
	if r.Kind != delta.KindDelta {
		return
	}
	a.Faults.Deltas++
	a.seen[r.Key] = true
	hash := uint64(0)
	if r.Payload != nil {
		if hash = delta.Hash(r.Payload); hash != r.Hash {
			a.Faults.Damaged++
		}
	}
	if held, ok := a.state[r.Key]; ok && delta.Compare(r.RV, held.RV) < 0 {
		a.Faults.Back++
		return
	}
	a.state[r.Key], a.dead[r.Key] = system.ObjectState{RV: r.RV, Hash: hash}, r.Tombstone()
}

// claim checks every event at or below a revision that was not checked before.
func (a *audit) claim(revision delta.Revision) {
	rv, err := strconv.Atoi(revision.RV)
	if err != nil || len(a.keys) == 0 {
		return // nothing may be claimed yet
	}
	for ; a.first+1+a.checked <= rv; a.checked++ {
		key := a.keys[a.checked%len(a.keys)]
		if held, ok := a.state[key]; ok && delta.Compare(held.RV, strconv.Itoa(a.first+1+a.checked)) < 0 {
			a.Faults.Gaps++
		}
	}
}

// live is what is not deleted.
func (a *audit) live() map[delta.Key]system.ObjectState {
	out := make(map[delta.Key]system.ObjectState, len(a.state))
	for key, o := range a.state {
		if !a.dead[key] {
			out[key] = o
		}
	}
	return out
}
