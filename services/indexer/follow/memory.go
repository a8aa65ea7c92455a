package follow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/attempt"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
)

// pressure is the share of the memory budget from which collections turn
// compact.
const pressure = 0.7

// recordMemory is about what a record takes besides its payload until it has
// been applied.
const recordMemory = 600

// Memory is about what the collection takes.
func (c *Collection) Memory() int {
	snap := c.store.Snapshot()
	return snap.Memory() + max(0, c.keeper.Held()-snap.StoredBytes())
}

// memory is about what all collections take.
func (s *Collections) memory() int {
	n := 0
	for _, c := range s.names.Load().All {
		n += c.Memory()
	}
	return n
}

// admit makes room for a batch before it is applied: a replay waits for what is
// being compressed, and what would pass the memory budget is refused.
func (s *Collections) admit(ctx context.Context, in *feed, b *delta.Batch) error {
	c := in.c
	if in.replay {
		if err := c.holdBack(ctx); err != nil {
			return err
		}
	}
	if s.cfg.MemoryBudget == 0 {
		return nil
	}
	size := 0
	for i := range b.Records {
		if n := len(b.Records[i].Payload); n > 0 {
			size += n + recordMemory
		}
	}
	before := in.size
	in.size = size
	if size == 0 || s.memory()+before+size <= int(pressure*float64(s.cfg.MemoryBudget)) {
		return nil
	}
	in.wait() // so that what came before is counted once
	if s.memory()+size <= int(pressure*float64(s.cfg.MemoryBudget)) {
		return nil
	}
	if s.cfg.Tier == TierAuto {
		for _, c := range s.names.Load().All {
			c.keeper.Compact(true)
		}
	}
	for {
		err := s.fit(ctx, c, size)
		if !errors.Is(err, fault.ErrMemoryBudget) || !c.Indexes.Evict(ctx, c.Memory(), err) {
			return err
		}
	}
}

// holdBack waits while too much of a replay is yet to be compressed.
func (c *Collection) holdBack(ctx context.Context) error {
	for {
		full, progress := c.keeper.Backlog()
		if !full {
			return nil
		}
		if !attempt.SleepUntil(ctx, tendIdle, progress) {
			return ctx.Err()
		}
	}
}

const (
	// fitWithin is how long a batch waits for room that compression may yet make.
	fitWithin = 30 * time.Second
	// garbageCollections is how often garbage is collected before a batch is refused.
	garbageCollections = 4
)

// fit waits until a batch of some size fits into the budget, or it is clear
// that it will not.
func (s *Collections) fit(ctx context.Context, c *Collection, size int) error {
	limit := time.NewTimer(fitWithin)
	defer limit.Stop()
	for collected := 0; ; {
		used := s.memory() + size
		if used <= s.cfg.MemoryBudget {
			return nil
		}
		pending := false
		for _, c := range s.names.Load().All {
			pending = pending || c.keeper.Pending()
		}
		if !pending && collected == garbageCollections {
			return s.overBudget(c, used)
		}
		// What was compressed or replaced may not have been collected yet, and readers, or a walk that is
		// under way, may still have held it when the last collection began.
		if !pending {
			s.collect()
			collected++
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-limit.C:
			return s.overBudget(c, used)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// buildShare is the share of the memory budget that indexes may fill when they
// are built: the rest is for what is written next.
const buildShare = 0.9

// roomOf is what memory the indexes of a collection may take.
type roomOf struct {
	s *Collections
	c *Collection
}

// Spare waits until an index that is built may take size more bytes. The error
// tells that it will not, or that ctx has ended.
func (r *roomOf) Spare(ctx context.Context, size int) error {
	s := r.s
	budget := s.cfg.MemoryBudget
	if budget == 0 || s.memory()+size <= int(buildShare*float64(budget)) {
		return nil
	}
	if s.cfg.Tier == TierAuto {
		for _, c := range s.names.Load().All {
			c.keeper.Compact(true)
		}
	}
	return s.fit(ctx, r.c, size+budget-int(buildShare*float64(budget)))
}

// Fits reports whether indexes may take so many bytes more at present.
func (r *roomOf) Fits(size int) bool { return r.s.fits(size) }

// refusal is why a collection is not held, and what it would need.
type refusal struct {
	fault *fault.Error
	need  int    // memory it had when it was refused
	log   uint64 // bytes of its log then, at least
	again int    // how often it was refused before without having been served
}

// wants is how much room is worth another try, now that the log has so many
// bytes; 0 when that is not known.
func (r *refusal) wants(log uint64) int {
	need := r.need + r.need/10
	if log < r.log {
		need = int(float64(need) * float64(log) / float64(r.log))
	}
	if log > 0 {
		// What was counted may be more than this log ever needs: garbage, buffers used in part, or a part
		// of a log that was larger when it was read. The log is not, and it may not change any more.
		need = min(need, int(log+log/4))
	}
	return need
}

func (s *Collections) overBudget(c *Collection, used int) *fault.Error {
	budget := s.cfg.MemoryBudget
	need := c.Memory() + used - s.memory()
	return fault.New(fault.ErrMemoryBudget, fmt.Sprintf("%s took %d bytes of %d, all collections would take %d", c.Name, need, budget, used),
		"collection", c.Name, "bytes", strconv.Itoa(need), "used_bytes", strconv.Itoa(used), "budget_bytes", strconv.Itoa(budget))
}

// evict replaces a collection that does not fit by one that holds nothing and
// says so. The old one is gone when its last reader is.
func (s *Collections) evict(c *Collection, f *fault.Error) *Collection {
	next := s.newCollection(c.ID)
	// A log that became smaller since the last look must not seem unread for ever.
	r := &refusal{fault: f, need: c.Memory(), log: max(c.logState.bytes.Load(), uint64(c.store.Snapshot().Bytes()))}
	if before := c.refused.Load(); before != nil {
		r.again = before.again + 1
	}
	next.refused.Store(r)
	next.logState.bytes.Store(c.logState.bytes.Load())
	next.tail.Store(c.tail.Load())
	next.head.Store(c.head.Load())
	next.fail(f)
	c.refused.Store(next.refused.Load())
	s.naming.Lock()
	s.names.Store(s.names.Load().without(c).with(next))
	next.Indexes.Declare()
	s.naming.Unlock()
	next.Indexes.Declare()
	close(c.evicted)
	c.store.Apply(store.Batch{State: &store.State{}}, c.now()) // wakes who waits for it
	s.metrics.refused.WithLabelValues(c.Label).Inc()
	s.slog.Warn("collection does not fit into the memory budget",
		slog.String(telemetry.KeyCollection, c.Name), telemetry.Err(f))
	return next
}

// awaitRoom waits until a refused collection may fit: others have become
// smaller, or its own log has, or what is declared for it has changed.
func (s *Collections) awaitRoom(ctx context.Context, c *Collection) {
	r, declared := c.refused.Load(), c.Indexes.Version()
	tick := time.NewTicker(min(time.Second, s.cfg.DiscoverEvery))
	defer tick.Stop()
	for r != nil {
		for range 1 << min(r.again, 5) { // a replay that is refused again costs collections of garbage
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			if c.Indexes.Version() != declared {
				return
			}
		}
		if s.cfg.MemoryBudget-s.memory() >= r.wants(c.logState.bytes.Load()) {
			return
		}
	}
}

const (
	// tendIdle is how often collections without work are looked at.
	tendIdle = 250 * time.Millisecond
	// tendShare is the share of one core that work in the background may take
	// while reads are answered.
	tendShare = 0.5
)

// tend compresses payloads and puts them together, a little at a time, until
// ctx ends.
func (s *Collections) tend(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil
		}
		began, busy, urgent := time.Now(), false, false
		for _, c := range s.names.Load().All {
			if c.keeper.Step(time.Now()) {
				busy = true
				urgent = urgent || c.keeper.Behind() && !c.store.Snapshot().State().Synced
			}
		}
		switch took := time.Since(began); {
		case !busy:
			timer.Reset(tendIdle)
		case urgent:
			timer.Reset(0)
		default:
			timer.Reset(time.Duration((1 - tendShare) / tendShare * float64(took)))
		}
	}
}
