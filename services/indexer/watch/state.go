package watch

import (
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/message"
)

const (
	// shareFor is how long watches of a group may join the sending of a state that
	// has begun: for as long, what happens behind it is kept for them.
	shareFor = time.Second
	// keepFor is how long a snapshot is kept for the readers of a state. One that
	// takes longer is sent the rest from newer snapshots and, before the end is
	// marked, what has changed since its first.
	keepFor = 10 * time.Second
)

// state is the objects of a group in one snapshot, on their way to the watches
// that began together. Each part of it is written once.
type state struct {
	g      *group
	at     delta.Position
	place  place // of a reader that has it
	bounds bounds
	told   uint64 // number of the last change in it
	shared bool
	users  int    // g.mu guards it
	open   bool   // others may join; g.mu guards it
	hold   cursor // while they may, keeps what happened since; g.mu guards it

	mu     sync.Mutex
	snap   *store.Snapshot // nil when it is no longer kept
	chunks []*chunk
	held   int         // of the request memory, for chunks
	timer  *time.Timer // runs forget
}

// chunk is one message of a state.
type chunk struct {
	frame *message.Frame // nil when it would be empty
	last  string         // key of the last object looked at
	end   bool
	own   int  // memory of the frame beside stored bytes
	kept  bool // for others, and counted
}

// begin puts a watch behind a snapshot and returns the state of it to send: one
// that others of its group are being sent, if that suits, and with alone one of
// its own.
func (h *hub) begin(w *watcher, alone bool) (*state, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	snap, err := h.advance()
	if err != nil {
		return nil, err
	}
	g := w.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil {
		return nil, g.err
	}
	g.detach(&w.cursor)
	if st := g.state; st != nil && !alone && st.suits(w, snap) {
		st.users++
		g.attach(&w.cursor, st.hold.next)
		return st, nil
	}
	g.attach(&w.cursor, g.end())
	st := &state{g: g, at: snap.State().Position, place: g.filter.by(placeAt(snap)), bounds: boundsOf(snap), told: snap.LastChange(), snap: snap, users: 1, shared: !alone, open: !alone}
	st.timer = time.AfterFunc(keepFor, st.forget)
	if st.open {
		if g.state != nil {
			g.state.shut()
		}
		g.state = st
		g.attach(&st.hold, g.end())
		time.AfterFunc(shareFor, st.close)
	}
	return st, nil
}

// suits reports whether a watch may join: when nothing happened to the group
// since, or when the watch has waited in line with others and what happened is
// kept for it; never when it has seen a later state. g.mu is held.
func (st *state) suits(w *watcher, snap *store.Snapshot) bool {
	switch {
	case st.hold.next < st.g.base, st.at.Epoch != snap.State().Position.Epoch, st.bounds.revision.Compare(w.least) < 0:
		return false
	case st.hold.next == st.g.end():
		return true
	default:
		return w.waited && (w.at.Epoch != st.at.Epoch || w.at.Sequence <= st.at.Sequence)
	}
}

// close lets nobody join any more.
func (st *state) close() {
	st.g.mu.Lock()
	st.shut()
	last := st.users == 0
	st.g.mu.Unlock()
	if last {
		st.forget()
	}
}

// shut is close for who holds g.mu.
func (st *state) shut() {
	if !st.open {
		return
	}
	st.open = false
	st.g.detach(&st.hold)
	if st.g.state == st {
		st.g.state = nil
	}
}

// leave is called once by each watch that has the whole state, or wants none.
func (st *state) leave() {
	st.g.mu.Lock()
	st.users--
	last := st.users == 0 && !st.open
	st.g.mu.Unlock()
	if last {
		st.forget()
	}
}

// forget lets go of the snapshot and of what was written from it.
func (st *state) forget() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.timer.Stop()
	st.g.requests.Give("", st.held)
	st.snap, st.chunks, st.held = nil, nil, 0
}

// kept returns the snapshot, nil when it is no longer kept.
func (st *state) kept() *store.Snapshot {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.snap
}

// chunk returns part i, which begins behind a key; nil when the snapshot is not
// kept any more.
func (st *state) chunk(i int, after string, known map[string]string) (*chunk, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch {
	case st.snap == nil:
		return nil, nil
	case i < len(st.chunks):
		return st.chunks[i], nil
	}
	ch, err := st.g.chunk(st.snap, after, known)
	if err != nil || !st.shared {
		return ch, err
	}
	// Without memory for it each watch writes the rest for itself: no part may be left out.
	if st.shared = st.g.requests.Take("", ch.own) == nil; st.shared {
		ch.kept, st.held, st.chunks = true, st.held+ch.own, append(st.chunks, ch)
	}
	return ch, nil
}

// chunk writes the next part of the group's objects in a snapshot. What a
// reader is known to have is left out and taken from the list.
func (g *group) chunk(snap *store.Snapshot, after string, known map[string]string) (*chunk, error) {
	src, err := g.filter.Source(snap)
	if err != nil {
		return nil, err
	}
	var events []message.Event
	size, own, ch := 0, 0, &chunk{last: after, end: true}
	for o := range src.After(after) {
		if !src.Exact && !g.filter.Match(snap, o) {
			continue
		}
		key := o.Key()
		if rv := known[key]; rv != "" && !o.Faulty() && rv == o.RV() {
			delete(known, key)
			ch.last = key
			continue
		}
		e := message.Event{Type: deltav1.DeltaType_DELTA_TYPE_ADDED, Item: g.view.Item(o)}
		if len(events) >= g.most.events || len(events) > 0 && size+e.Len() > g.most.bytes {
			ch.end = false
			break
		}
		if _, codec := o.Stored(); codec != nil || g.view.Mask != nil {
			own += len(e.Item.Payload)
		}
		delete(known, key)
		events, size, ch.last = append(events, e), size+e.Len(), key
	}
	if len(events) > 0 {
		b := newBlock(events, place{}, bounds{}.towards(snap))
		ch.frame, ch.own = b.Frame, b.Cost+own
	}
	return ch, nil
}

// forgotten writes that keys a reader has are gone, or not chosen in a snapshot. Of those outside
// what the watch covers it says nothing but that.
func (f *selector) forgotten(snap *store.Snapshot, keys []string) *message.Frame {
	events := make([]message.Event, 0, len(keys))
	for _, key := range keys {
		if !f.Sees(store.Namespace(key)) {
			reason := deltav1.DeleteReason_DELETE_REASON_INFERRED
			if !f.scope.All {
				reason = deltav1.DeleteReason_DELETE_REASON_NOT_VISIBLE
			}
			events = append(events, deletion(key, "", "", reason))
			continue
		}
		if o := snap.Get(key); o != nil {
			events = append(events, deletion(key, o.UID(), o.RV(), deltav1.DeleteReason_DELETE_REASON_FILTERED))
			continue
		}
		events = append(events, deletion(key, "", "", deltav1.DeleteReason_DELETE_REASON_INFERRED))
	}
	return newBlock(events, place{}, bounds{}.towards(snap)).Frame
}

// knownOf is what a reader says it has. In another epoch resource versions mean
// something else: then only the keys count.
func knownOf(req *indexv1.WatchRequest, epoch uint64) map[string]string {
	known := req.GetKnown()
	if req.GetKnownEpoch() != epoch {
		for key := range known {
			known[key] = ""
		}
	}
	return known
}
