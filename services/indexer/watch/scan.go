package watch

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
	"github.com/deltaplane/deltaplane/services/indexer/message"
)

// scan is what readers have missed whose changes are not kept any more: the
// latest state of each key that changed behind the first of their positions. It
// costs a look at every key, so all who are behind share one, a collection makes
// one at a time, and rests after it for a few times as long as it took.
type scan struct {
	waiting []*watcher // hub.mu guards it
	ready   chan struct{}

	// Set when ready is closed.
	err    error
	at     delta.Position
	place  place // of a reader that received all of it
	bounds bounds
	from   uint64 // readers at a lower sequence are not helped
	helped bool
	missed atomic.Pointer[missed] // nil when it is no longer kept
}

// scanning is what of scans a hub keeps.
type scanning struct {
	scan    *scan // gathering those who will share it
	resting time.Time
	scans   chan struct{} // one place for the scans of all collections
}

// missed is what a scan has found: the newest of each key, by sequence.
type missed struct {
	snap *store.Snapshot
	list []latest
}

// latest is the newest of a key: one of the two is set.
type latest struct {
	object *store.Object
	tomb   *store.Tombstone
}

func (l latest) sequence() uint64 {
	if l.object != nil {
		return l.object.Sequence()
	}
	return l.tomb.Sequence
}

// The next scan waits restShare times as long as the last one took.
const (
	restShare   = 4
	longestRest = 5 * time.Second
)

// missed makes a scan for a watch, with others that wait for one, and puts it
// behind the scan's snapshot.
func (h *hub) missed(ctx context.Context, w *watcher) (*scan, error) {
	h.mu.Lock()
	s := h.scan
	if s == nil {
		s = &scan{ready: make(chan struct{})}
		h.scan = s
		go h.makeScan(s, time.Until(h.resting))
	}
	s.waiting = append(s.waiting, w)
	h.mu.Unlock()
	select {
	case <-s.ready:
		return s, s.err
	case <-ctx.Done():
	case <-w.s.waits.Stopping:
	case <-w.c.Evicted():
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s.waiting = slices.DeleteFunc(s.waiting, func(o *watcher) bool { return o == w })
	return nil, w.over(ctx)
}

func (h *hub) makeScan(s *scan, wait time.Duration) {
	if err := h.place(wait); err != nil {
		h.mu.Lock()
		h.scan, s.waiting, s.err = nil, nil, err
		h.mu.Unlock()
		close(s.ready)
		return
	}
	defer func() { <-h.scans }()
	began := time.Now()
	h.mu.Lock()
	h.scan = nil
	var snap *store.Snapshot
	var sequences []uint64
	if len(s.waiting) > 0 {
		if snap, s.err = h.advance(); s.err == nil {
			s.at, s.place, s.bounds = snap.State().Position, placeAt(snap), boundsOf(snap)
			for _, w := range s.waiting {
				w.group.move(&w.cursor)
				if w.at.Epoch == s.at.Epoch {
					sequences = append(sequences, w.at.Sequence)
				}
			}
		}
		s.waiting = nil
	}
	h.mu.Unlock()
	slices.Sort(sequences)
	for _, from := range slices.Compact(sequences) {
		if objects, tombs, ok := snap.Since(from); ok {
			s.from, s.helped = from, true
			s.missed.Store(&missed{snap, interleave(objects, tombs)})
			time.AfterFunc(keepFor, func() { s.missed.Store(nil) })
			break
		}
	}
	took := time.Since(began)
	h.mu.Lock()
	h.resting = time.Now().Add(min(restShare*took, longestRest))
	h.mu.Unlock()
	close(s.ready)
}

// place waits, and takes the place for a scan.
func (h *hub) place(wait time.Duration) error {
	timer := time.NewTimer(max(wait, 0))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-h.stopping:
		return fault.New(fault.ErrStopping, "resume the watch on another replica")
	}
	select {
	case h.scans <- struct{}{}:
		return nil
	case <-h.stopping:
		return fault.New(fault.ErrStopping, "resume the watch on another replica")
	}
}

// interleave brings objects and tombstones into one order, by sequence.
func interleave(objects []*store.Object, tombs []*store.Tombstone) []latest {
	list := make([]latest, 0, len(objects)+len(tombs))
	for len(objects) > 0 || len(tombs) > 0 {
		if len(tombs) == 0 || len(objects) > 0 && objects[0].Sequence() < tombs[0].Sequence {
			list, objects = append(list, latest{object: objects[0]}), objects[1:]
		} else {
			list, tombs = append(list, latest{tomb: tombs[0]}), tombs[1:]
		}
	}
	return list
}

// behind returns the index of the first key behind a sequence.
func (m *missed) behind(sequence uint64) int {
	i, _ := slices.BinarySearchFunc(m.list, sequence+1, func(l latest, seq uint64) int { return cmp.Compare(l.sequence(), seq) })
	return i
}

// part returns the events of one message, from an index on, the index behind
// them, and up to which sequence that is all there is.
func (m *missed) part(g *group, i int) (events []message.Event, next int, at uint64) {
	size := 0
	for ; i < len(m.list); i++ {
		e, ok := g.latest(m.snap, m.list[i])
		if !ok {
			continue
		}
		if len(events) >= g.most.events || len(events) > 0 && size+e.Len() > g.most.bytes {
			// Keys swept together share a sequence: resuming below it repeats them and loses none.
			return events, i, m.list[i].sequence() - 1
		}
		events, size = append(events, e), size+e.Len()
	}
	return events, i, m.snap.State().Position.Sequence
}

// latest is what the newest of a key means to the group: whether a reader has a
// key that is not chosen is not known, so it is instructed to forget it.
func (g *group) latest(snap *store.Snapshot, l latest) (message.Event, bool) {
	var e message.Event
	switch {
	case l.tomb != nil:
		e = deletion(l.tomb.Key, l.tomb.UID, l.tomb.RV, deleteReasons[l.tomb.Reason])
	case g.filter.Match(snap, l.object):
		return message.Event{Type: deltav1.DeltaType_DELTA_TYPE_UPDATED, Item: g.view.Item(l.object)}, true
	default:
		e = deletion(l.object.Key(), l.object.UID(), l.object.RV(), deltav1.DeleteReason_DELETE_REASON_FILTERED)
	}
	return e, g.filter.Sees(store.Namespace(e.Item.Key))
}
