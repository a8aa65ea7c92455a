package watch

import (
	"slices"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/services/indexer/filter"
)

const (
	// paceWatch is how long the next pass waits for each watch that the last one
	// has woken: a message costs about 20 us, so that many watches of the same
	// objects take two fifths of a core in messages, and more changes make longer
	// ones.
	paceWatch = 50 * time.Microsecond
	// mostPace is what a change may be late for that. Fewer watches than it would
	// matter to are not paced.
	mostPace, leastPace = 5 * time.Millisecond, time.Millisecond
)

// follow makes a pass for every snapshot, or for several when they come fast and
// concern many, until nobody watches any more. It wakes every watch when the
// service stops or the collection is given up.
func (h *hub) follow(idle <-chan struct{}) {
	stopping, evicted := h.stopping, h.c.Evicted()
	for {
		h.mu.Lock()
		select {
		case <-idle:
			h.mu.Unlock()
			return
		default:
		}
		snap := h.c.Snapshot()
		h.woken = 0
		h.pass(snap)
		pace := min(time.Duration(h.woken)*paceWatch, mostPace)
		h.mu.Unlock()
		if pace >= leastPace {
			select {
			case <-time.After(pace):
			case <-idle:
				return
			}
		}
		select {
		case <-snap.Superseded():
		case <-idle:
			return
		case <-stopping:
			stopping = nil
			h.Wake()
		case <-evicted:
			evicted = nil
			h.Wake()
		}
	}
}

// fewRecords is up to how many records of the log are told at once: their pass
// is soon over.
const fewRecords = 4

// Applied tells the watches at once of few records.
func (h *hub) Applied(records int) {
	if h.watchers.Load() > 0 && records <= fewRecords {
		h.atOnce()
	}
}

// atOnce makes the pass that follow is about to make, for a goroutine that has applied
// what it tells: the watches are woken sooner by one goroutine. It leaves the pass
// to follow where it would be paced, and where another is under way.
func (h *hub) atOnce() {
	if !h.mu.TryLock() {
		return
	}
	defer h.mu.Unlock()
	if h.open > 0 && time.Duration(h.crowd)*paceWatch < leastPace {
		h.pass(h.c.Snapshot())
	}
}

// passing is what one pass leaves to the next.
type passing struct {
	items   items
	touched []*group
	floor   []uint64
	woken   int // watches that have got something by the last pass
	crowd   int // the same of the last pass by which any have
	trimmed time.Time
}

// pass tells the groups what happened up to a snapshot. h.mu is held.
func (h *hub) pass(snap *store.Snapshot) {
	before := h.snap
	if snap == before || !snap.State().Synced || snap.State().Frozen || snap.LastChange() < before.LastChange() {
		return
	}
	h.check(snap)
	if !h.look(before, snap) {
		for _, g := range h.groups {
			g.lose()
		}
	}
	woken := 0
	for _, g := range h.touched {
		woken += g.refs
		h.flush(g, snap.LastChange(), placeAt(snap), boundsOf(snap))
	}
	if h.woken += woken; woken > 0 {
		h.crowd = woken
	}
	clear(h.touched)
	h.touched = h.touched[:0]
	h.snap = snap
	if now := time.Now(); now.Sub(h.trimmed) >= trimEvery {
		h.trimmed = now
		h.trim()
	}
}

// trimEvery is how often blocks are dropped whose changes the ring has dropped.
const trimEvery = 50 * time.Millisecond

func (h *hub) trim() {
	for _, g := range h.groups {
		g.mu.Lock()
		n := 0
		for ; n < len(g.blocks); n++ {
			if _, err := h.c.Store().Change(g.blocks[n].first); err == nil {
				break
			}
		}
		g.drop(n)
		g.mu.Unlock()
	}
}

// check ends the watches of indexes that are gone, or are not the ones they began
// with, and strict ones of indexes that have no values for some objects.
func (h *hub) check(snap *store.Snapshot) {
	for n, groups := range h.byNeed {
		if added, ok := snap.Added(n.index); !ok || added != n.added {
			for _, g := range slices.Clone(groups) {
				g.fail(missing(h.c, &g.filter, n))
				h.unfile(g)
			}
		}
	}
	for index := range h.byValue {
		_, err := snap.ByIndex(index, "")
		if filter.Tolerate(err, false) == nil {
			continue
		}
		for _, g := range h.groups {
			if g.filter.Index == index {
				g.fail(h.c.Indexes.IndexError(err))
				h.unfile(g)
			}
		}
	}
	for g := range h.strict {
		if err := g.filter.Vouch(snap); err != nil {
			g.fail(h.c.Indexes.IndexError(err))
			h.unfile(g)
		}
	}
}

// look goes through the changes between two snapshots; false when some of them
// are dropped.
func (h *hub) look(before, snap *store.Snapshot) bool {
	first, last := before.LastChange()+1, snap.LastChange()
	if first > last {
		return true
	}
	var err error
	if h.floor, err = floors(h.c, h.floor, first, snap); err != nil {
		return false
	}
	from, rest := before.State().Position, between(before, snap)
	inOrder := orderly(before, snap)
	for n := first; n <= last; n++ {
		c, err := h.c.Store().Change(n)
		if err != nil {
			h.abandon()
			return false
		}
		at, below := delta.Position{}, rest
		if inOrder {
			at = delta.Position{Epoch: from.Epoch, Sequence: min(c.Sequence, h.floor[n-first+1]-1), Term: from.Term}
			below = rest.from(h.floor[n-first] - 1)
		}
		h.concerned(snap, c, func(g *group) {
			e, ok := g.event(snap, c, &h.items)
			if !ok {
				return
			}
			if len(g.events) >= h.most.events || len(g.events) > 0 && g.bytes+e.Len() > h.most.bytes {
				h.flush(g, n-1, below, boundsOf(before).towards(snap))
			}
			if len(g.events) == 0 {
				g.first = n
				h.touched = append(h.touched, g)
			}
			e.Position = at
			g.events = append(g.events, e)
			g.bytes += e.Len()
		})
	}
	return true
}

// flush makes a block of a group's events.
func (h *hub) flush(g *group, last uint64, at place, b bounds) {
	if len(g.events) == 0 || len(h.groups) == 0 {
		return
	}
	made := newBlock(g.events, g.filter.by(at), b)
	made.first, made.last = g.first, last
	clear(g.events)
	g.events, g.bytes = g.events[:0], 0
	g.add(made, max(leastKept, h.limit/len(h.groups)))
}

// leastKept is what blocks of one group may take in any case.
const leastKept = 16 << 10

// abandon forgets the events of a pass that cannot be told whole.
func (h *hub) abandon() {
	for _, g := range h.touched {
		clear(g.events)
		g.events, g.bytes = nil, 0
	}
	clear(h.touched)
	h.touched = h.touched[:0]
}
