package indexer

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/services/indexer/definition"
	"github.com/deltaplane/deltaplane/services/indexer/extract"
	"github.com/deltaplane/deltaplane/services/indexer/payload"
)

// collection follows one log. The fields above the line belong to the
// goroutine that reads it; the rest is for everybody.
type collection struct {
	follower    delta.Follower
	extract     *extract.Extractor
	ops         []store.Op
	sweepDue    bool      // a replay began and what it did not name is still held
	replaying   bool      // a replay has not come to its end
	replayAt    time.Time // when the replay began; zero once its horizon is known
	replayBegan time.Time // the last one
	fresh       time.Time
	tracer      trace.Tracer
	metrics     *metrics
	ttl         time.Duration
	hazed       uint64 // end of the last span of hazy
	now         func() time.Time

	checkpointing

	ingest sync.Mutex // held while a batch is applied, and while the plan is replaced
	plan   atomic.Pointer[extract.Plan]
	read   atomic.Pointer[extract.Plan] // by which, or a later one, every object has been read
	paths  []definition.Path            // that are read whatever is declared
	slog   *slog.Logger

	declarations *declarations
	declared     atomic.Pointer[[]declaration] // what is declared for the collection, by name
	rebuild      chan struct{}                 // wakes build
	declaring    sync.Mutex                    // guards built and unfit, and orders changes of what is declared
	built        map[string]string             // declared indexes of the store, with their sources
	unfit        map[string]*omission          // declared indexes for which there was no room
	room         func(ctx context.Context, size int) error
	fits         func(size int) bool // whether indexes may take so much more at present
	lookEvery    time.Duration       // how often it is looked whether there is room for one that was left out
	origins      atomic.Pointer[map[string]origin]

	id       delta.Collection
	name     string
	store    *store.Store
	keeper   *payload.Keeper
	refused  atomic.Pointer[refusal] // set while the collection does not fit
	evicted  chan struct{}           // closed when another collection takes its place
	logBytes atomic.Uint64           // size of the log as last known
	replayed atomic.Bool             // the log has been read to its end once
	absent   atomic.Bool             // there is no log yet
	known    discovered
	frozen   atomic.Int64  // since when the revision stands still behind a hole, in nanoseconds; 0 when it does not
	tail     atomic.Uint64 // last sequence of the log as last known
	head     atomic.Uint64 // its first
	watchers atomic.Int64
	hub      *hub
	lastErr  atomic.Pointer[string]
	terms    atomic.Pointer[[]reign]
	hazy     atomic.Pointer[[]span]
}

// reign is a term with the lowest sequence at which it was seen.
type reign struct{ term, first uint64 }

// noteTerms remembers where terms began, for readers that resume. seen is the
// last sequence before the records. A term that is met by another record than
// those that begin it may have begun anywhere behind the one before.
func (c *collection) noteTerms(records []delta.Record, seen uint64) {
	var known []reign
	if p := c.terms.Load(); p != nil {
		known = *p
	}
	changed := false
	for i := range records {
		r := &records[i]
		if r.Sequence == 0 {
			continue
		}
		if n := len(known); n == 0 || known[n-1].term < r.Term {
			first := seen + 1
			if r.Kind == delta.KindTerm || r.Kind == delta.KindFence || r.Kind == delta.KindOrigin {
				first = r.Sequence
			}
			known, changed = append(slices.Clip(known), reign{r.Term, first}), true
		}
		seen = r.Sequence
	}
	if changed {
		c.terms.Store(&known)
	}
}

// disowned reports whether a term newer than the position's began at or below
// it: the record that was there is not part of the log any more (design 6.4).
func (c *collection) disowned(p delta.Position) bool {
	known := c.terms.Load()
	if known == nil || p.Term == 0 {
		return false
	}
	for _, k := range *known {
		if k.term > p.Term && k.first <= p.Sequence {
			return true
		}
	}
	return false
}

// span is the positions between two, both left out.
type span struct{ from, to uint64 }

// open is the end of a span that goes on.
const open = math.MaxUint64

// mostSpans bounds what is remembered; the two oldest become one.
const mostSpans = 64

// holed reports whether a batch that follows a sequence leaves some out: records
// that were replaced before they were read.
func holed(b *delta.Batch, seen uint64) bool {
	n := uint64(len(b.Records) + len(b.Unreadable))
	return b.End > 0 || b.Next > seen+1+n
}

// noteHaze remembers at which positions the objects held are not those of the
// log at that position, since newer records had replaced theirs: until the end
// of the log as it was seen after that.
func (c *collection) noteHaze(b *delta.Batch, gap bool, seen uint64) {
	var spans []span
	if p := c.hazy.Load(); p != nil && !b.Reset {
		spans = slices.Clone(*p)
	}
	n := len(spans)
	hazy := n > 0 && spans[n-1].to == open
	if !hazy && !gap && !b.Reset {
		return
	}
	if !hazy {
		spans = append(spans, span{seen, open})
	}
	c.hazed = c.follower.Position().Sequence
	if n := len(spans); n > mostSpans {
		spans = slices.Replace(spans, 0, 2, span{spans[0].from, spans[1].to})
	}
	c.hazy.Store(&spans)
}

// clearHaze ends a span whose end has been applied. That is done behind the
// snapshot, so that whoever finds it ended finds that too.
func (c *collection) clearHaze() {
	p := c.hazy.Load()
	if p == nil || !c.follower.Readable() || c.follower.Frozen() || (*p)[len(*p)-1].to != open {
		return
	}
	spans := slices.Clone(*p)
	spans[len(spans)-1].to = c.follower.Position().Sequence
	c.hazy.Store(&spans)
}

// exact reports whether a reader of the log up to a position knew what this
// replica knew there, so that its changes since are the reader's.
func (c *collection) exact(p delta.Position) bool {
	if spans := c.hazy.Load(); spans != nil {
		for _, s := range *spans {
			if s.from < p.Sequence && p.Sequence < s.to {
				return false
			}
		}
	}
	return true
}

func (s *Service) newCollection(id delta.Collection) *collection {
	ttl := s.log.TombstoneTTL()
	fields := paths(id, s.cfg.Fields)
	plan := extract.NewPlan(fields, nil)
	c := &collection{
		id: id, name: id.String(), ttl: ttl, now: time.Now, metrics: s.metrics, tracer: s.tracer,
		extract: extract.New(plan), paths: fields, slog: s.slog,
		declarations: s.declarations, rebuild: make(chan struct{}, 1), built: map[string]string{},
		store: store.New(store.Options{
			TombstoneTTL: ttl, RingChanges: s.cfg.RingChanges, RingBytes: s.cfg.RingBytes, Indexers: builtIn(id),
		}),
	}
	c.plan.Store(plan)
	c.read.Store(plan)
	c.declared.Store(&[]declaration{})
	c.origins.Store(&map[string]origin{})
	c.keeper, c.evicted = payload.NewKeeper(c.store, payload.Config{}), make(chan struct{})
	if s.cfg.Tier == TierCompact {
		c.keeper.Compact(false)
	}
	c.unfit, c.room = map[string]*omission{}, func(ctx context.Context, size int) error { return s.spare(ctx, c, size) }
	c.fits, c.lookEvery = s.fits, min(time.Second, s.cfg.DiscoverEvery)
	c.hub = newHub(c, s.cfg.RingBytes, &s.requests, s.scans, s.stopping)
	c.fail(nil)
	return c
}

// fail notes the last error in following the log; nil is well again.
func (c *collection) fail(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	c.lastErr.Store(&text)
}

// apply makes one snapshot of one batch of the log.
func (c *collection) apply(ctx context.Context, b intake) {
	// A plan that is replaced between batches holds for all that is applied later.
	c.ingest.Lock()
	defer c.ingest.Unlock()
	c.extract.Follow(c.plan.Load())
	now := c.now()
	live := c.replayed.Load()
	batch := store.Batch{Ops: c.ops[:0]}
	if b.Reset {
		batch.Replay, c.sweepDue, c.replaying, c.replayAt, c.replayBegan = true, true, true, now, now
		c.terms.Store(nil)
	}
	c.noteLog(&b.Batch)
	seen := c.follower.Position().Sequence
	if b.Reset {
		seen = 0
	}
	c.noteTerms(b.Records, seen)
	for i := range b.Records {
		r := &b.Records[i]
		// A leader writes its fence, its term and the origin before it has spoken to the source.
		if r.Kind != delta.KindTerm && r.Kind != delta.KindFence && r.Kind != delta.KindOrigin && r.PublishedAt.After(c.fresh) {
			c.fresh = r.PublishedAt
			if c.fresh.After(now) { // by a clock that is ahead of this one
				c.fresh = now
			}
		}
		c.known.note(r)
		c.horizon(&batch, r)
		if op, ok := c.op(ctx, r, b.faults[i]); ok {
			batch.Ops = append(batch.Ops, op)
		}
	}
	gap := holed(&b.Batch, seen)
	revision := c.follower.Apply(b.Batch)
	c.noteHaze(&b.Batch, gap, seen)
	for _, u := range b.Unreadable {
		c.metrics.unreadable.WithLabelValues(c.name).Inc()
		if u.Key != "" {
			batch.Ops = append(batch.Ops, store.Op{Doubt: &store.Doubt{
				Key: string(u.Key), Epoch: c.follower.Position().Epoch, Sequence: u.Sequence, Fault: u.Err.Error(),
			}})
		}
	}
	if len(b.Unreadable) > 0 { // watchers resume by sequence: changes are made in the log's order
		slices.SortStableFunc(batch.Ops, func(a, b store.Op) int { return cmp.Compare(sequenceOf(a), sequenceOf(b)) })
	}
	state := store.State{
		Revision: revision, Upper: c.follower.Upper(), Position: c.follower.Position(), Synced: c.follower.Readable(), Frozen: c.follower.Frozen(),
		Hazed: c.hazed, Fresh: c.fresh,
	}
	batch.State = &state
	// Behind the horizon that a replay began with, tombstones expire from half a TTL on.
	slow := c.replaying && now.Sub(c.replayBegan) > c.ttl/2
	if b.Replayed && (slow || !c.replayAt.IsZero()) {
		batch.Horizon, c.replayAt = max(state.Position.Sequence, 1), time.Time{}
	}
	if c.sweepDue && state.Synced {
		batch.Sweep, c.sweepDue = true, false
	}
	lagged := c.lagging(now) && !state.Frozen
	switch {
	case !state.Frozen:
		c.frozen.Store(0)
	case c.frozen.Load() == 0:
		c.frozen.Store(now.UnixNano())
	}
	result := c.store.Apply(batch, now)
	if lagged {
		c.hub.wake()
	}
	visible := c.now()
	if live && c.watchers.Load() > 0 && len(b.Records) <= fewRecords {
		c.hub.atOnce()
	}
	c.clearHaze()
	if state.Synced {
		c.refused.Store(nil)
	}
	if b.Replayed {
		c.replaying = false
		c.replayed.Store(true)
		c.wake() // what was there before may have been read by another plan
	}
	c.fail(nil)
	if n := len(b.Unreadable); n > 0 {
		c.fail(fmt.Errorf("record %d cannot be read: %w", b.Unreadable[n-1].Sequence, b.Unreadable[n-1].Err))
	}
	c.metrics.applied(c.name, result)
	if live {
		c.observe(ctx, b.Records, now, visible)
	}
	clear(batch.Ops)
	c.ops = batch.Ops[:0]
}

// horizon finds, during a replay, from where on every delete is still in the
// log: a tombstone that has expired is older than every record younger than
// half the TTL, and so has a lower sequence (design 6.4).
func (c *collection) horizon(batch *store.Batch, r *delta.Record) {
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
func (c *collection) op(ctx context.Context, r *delta.Record, fault error) (store.Op, bool) {
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
func (c *collection) final(ctx context.Context, r *delta.Record, fault error) *store.Object {
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

// stale reports whether the reflector has been silent for too long.
func stale(state store.State, now time.Time, after time.Duration) bool {
	return state.Fresh.IsZero() || now.Sub(state.Fresh) > after
}
