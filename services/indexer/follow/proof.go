package follow

import (
	"errors"
	"slices"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
)

// errRefuted ends a reading of a log that did not bring all that its leader wrote. The log is read
// again from its start then, perhaps from another server.
var errRefuted = errors.New("what was read is not all that was written: the log is read from its start again")

// proof compares what is held with what the log's records say of it.
type proof struct {
	digest   delta.Digest // of the last record that could have one
	digested bool         // it had one
	doubted  bool         // a record could not be read: nobody can say what is to be held
	refuted  bool         // what is held is something else
}

// note takes what a batch says.
func (p *proof) note(b *delta.Batch) {
	if b.Reset {
		*p = proof{}
	}
	for _, r := range slices.Backward(b.Records) {
		if !r.Kind.BeginsTerm() { // without a digest it was written by an older version
			p.digest, p.digested = r.Digest, r.Digested
			break
		}
	}
	p.doubted = p.doubted || len(b.Unreadable) > 0
}

// ask adds to a batch what the store must hold after it, where that is known: not before a replay
// is complete, and not behind a hole. The returned follower is the one to go on with where it holds
// something else.
func (c *Collection) ask(batch *store.Batch) delta.Follower {
	after := c.follower
	if !c.digested || c.doubted || !after.Readable() || after.Frozen() {
		return after
	}
	after.Refute()
	batch.Proof, batch.Unproven = &c.digest, c.state(&after)
	return after
}

// state is what readers are shown of a follower.
func (c *Collection) state(f *delta.Follower) store.State {
	return store.State{
		Revision: f.Revision(), Upper: f.Upper(), Position: f.Position(), Synced: f.Readable(), Frozen: f.Frozen(), StaleTo: c.staleTo, Fresh: c.fresh,
	}
}
