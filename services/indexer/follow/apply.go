package follow

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/tracing"
)

// apply makes one snapshot of one batch of the log.
func (c *Collection) apply(ctx context.Context, b intake) {
	// A plan that is replaced between batches holds for all that is applied later.
	plan, release := c.Indexes.Hold()
	defer release()
	c.extract.Follow(plan)
	now := c.now()
	live := c.replayed.Load()
	batch := store.Batch{Ops: c.ops[:0]}
	defer func() {
		clear(batch.Ops)
		c.ops = batch.Ops[:0]
	}()
	if b.Reset {
		batch.Replay, c.sweepDue, c.replaying, c.replayAt, c.replayBegan = true, true, true, now, now
		c.terms.Store(nil)
	}
	lagged := c.lagging(now)
	c.noteLog(&b.Batch)
	c.noteUnknown(ctx, &b.Batch)
	seen := c.follower.Position().Sequence
	if b.Reset {
		seen = 0
	}
	c.noteTerms(b.Records, seen)
	for i := range b.Records {
		r := &b.Records[i]
		if !r.Kind.BeginsTerm() && r.PublishedAt.After(c.fresh) {
			c.fresh = r.PublishedAt
			if c.fresh.After(now) { // by a clock that is ahead of this one
				c.fresh = now
			}
		}
		c.known.note(r)
		c.horizon(&batch, r)
		if op, ok := c.op(ctx, r, b.faults[i]); ok {
			if live { // nobody watches before
				op.Trace = tracing.Recorded(r.Trace)
			}
			batch.Ops = append(batch.Ops, op)
		}
	}
	gap := holed(&b.Batch, seen)
	c.proof.note(&b.Batch)
	c.follower.Apply(b.Batch)
	if c.noteStale(b.Reset, gap, seen) {
		c.staleTo = c.follower.Position().Sequence
	}
	for _, u := range b.Unreadable {
		c.metrics.unreadable.WithLabelValues(c.Label).Inc()
		if u.Key != "" {
			batch.Ops = append(batch.Ops, store.Op{Doubt: &store.Doubt{
				Key: string(u.Key), Epoch: c.follower.Position().Epoch, Sequence: u.Sequence, Fault: u.Err.Error(),
			}})
		}
	}
	if len(b.Unreadable) > 0 { // watchers resume by sequence: changes are made in the log's order
		slices.SortStableFunc(batch.Ops, func(a, b store.Op) int { return cmp.Compare(sequenceOf(a), sequenceOf(b)) })
	}
	state := c.state(&c.follower)
	batch.State = &state
	// Behind the horizon that a replay began with, tombstones expire from half a TTL on.
	slow := c.replaying && now.Sub(c.replayBegan) > c.ttl/2
	if b.Replayed && (slow || !c.replayAt.IsZero()) {
		batch.Horizon, c.replayAt = max(state.Position.Sequence, 1), time.Time{}
	}
	if c.sweepDue && state.Synced {
		batch.Sweep, c.sweepDue = true, false
	}
	refuted := c.ask(&batch)
	result := c.store.Apply(batch, now)
	if result.Unproven {
		c.follower, c.refuted, state = refuted, true, batch.Unproven
		c.metrics.refuted.WithLabelValues(c.Label).Inc()
	}
	switch {
	case !state.Frozen && c.Newer() == nil:
		c.frozen.Store(0)
	case c.frozen.Load() == 0:
		c.frozen.Store(now.UnixNano())
	}
	if lagged != c.lagging(now) {
		c.observer.Wake()
	}
	visible := c.now()
	if live {
		c.observer.Applied(len(b.Records))
	}
	if c.follower.Readable() && !c.follower.Frozen() {
		c.endStale(c.follower.Position().Sequence)
	}
	if state.Synced {
		c.refused.Store(nil)
	}
	if c.refuted {
		c.replaying = true
		c.fail(errRefuted)
		return
	}
	if b.Replayed {
		c.replaying = false
		c.replayed.Store(true)
		c.Indexes.Wake() // what was there before may have been read by another plan
	}
	c.fail(nil)
	if n := len(b.Unreadable); n > 0 {
		c.fail(fmt.Errorf("record %d cannot be read: %w", b.Unreadable[n-1].Sequence, b.Unreadable[n-1].Err))
	}
	c.metrics.applied(c.Label, result)
	if live {
		c.observe(ctx, b.Records, now, visible)
	}
}

// holed reports whether a batch that follows a sequence leaves some out: records
// that were replaced before they were read.
func holed(b *delta.Batch, seen uint64) bool {
	n := uint64(len(b.Records) + len(b.Unreadable) + len(b.Passed))
	return b.End > 0 || b.Next > seen+1+n
}

// horizon finds, during a replay, from where on every delete is still in the
// log: a tombstone that has expired is older than every record younger than
// half the TTL, and so has a lower sequence.
func (c *Collection) horizon(batch *store.Batch, r *delta.Record) {
	stored := r.StoredAt // not PublishedAt: the reflector's clock may be ahead
	if c.replayAt.IsZero() || r.Sequence == 0 || stored.IsZero() || !stored.After(c.replayAt.Add(-c.ttl/2)) {
		return
	}
	batch.Horizon, c.replayAt = max(r.Sequence-1, 1), time.Time{}
}

func sequenceOf(op store.Op) uint64 {
	switch {
	case op.Put != nil:
		return op.Put.Sequence()
	case op.Delete != nil:
		return op.Delete.Sequence
	default:
		return op.Doubt.Sequence
	}
}

// op turns a record that was taken in into a store operation; control records
// have none.
func (c *Collection) op(ctx context.Context, r *delta.Record, fault error) (store.Op, bool) {
	switch {
	case r.Kind != delta.KindDelta || r.Type == delta.Bookmark:
		return store.Op{}, false
	case r.Type != delta.Deleted:
		return store.Op{Put: c.extract.Checked(ctx, r, fault)}, true
	}
	at := r.PublishedAt
	if at.IsZero() {
		at = c.now()
	}
	// A record's texts are parts of its message, which is not to be kept for them.
	return store.Op{Delete: &store.Tombstone{
		Key: strings.Clone(string(r.Key)), UID: strings.Clone(r.UID), RV: strings.Clone(r.RV), Epoch: r.Epoch, Sequence: r.Sequence, Reason: reasons[r.DeleteReason], At: at,
	}, Final: c.final(ctx, r, fault)}, true
}

// final is the object as it was deleted, if the record of the deletion has it.
func (c *Collection) final(ctx context.Context, r *delta.Record, fault error) *store.Object {
	if len(r.Payload) == 0 || fault != nil {
		return nil
	}
	if o := c.extract.Checked(ctx, r, nil); !o.Faulty() {
		return o
	}
	return nil
}

var reasons = map[delta.DeleteReason]store.Reason{
	delta.Observed: store.Observed, delta.Inferred: store.Inferred, delta.FilteredOut: store.Filtered,
}
