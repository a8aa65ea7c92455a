package watch

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/services/indexer/follow"
	"github.com/deltaplane/deltaplane/services/indexer/limit"
)

// hub hands the changes of one collection to its watches. A pass, made by one
// goroutine at a time while there are any, looks at each change once and finds the
// groups it concerns by the index values and namespaces they ask for, so that a
// watch is woken by its own events alone.
//
//	store ──snapshot──> pass ──> group ──blocks──> watch (cursor) ──> stream
//	                      │      group ──blocks──> watch, watch, ...
//	                      └── what no group asks for costs a look at its values
//
// While the collection is not synced, or lacks records that were replaced before
// they were read, the hub stands still: what a reader receives is always a state
// that the log was in. The changes are told when it is synced again, as far as they are kept.
type hub struct {
	c        *follow.Collection
	watchers atomic.Int64 // also those that have not joined
	limit    int          // of the bytes that blocks take beside payloads
	most     chunkSize

	requests *limit.Quota    // of the service
	stopping <-chan struct{} // closed when the service stops

	mu   sync.Mutex      // guards the rest
	open int             // watches
	snap *store.Snapshot // that of the last pass; nil without watches
	idle chan struct{}
	directory
	passing
	scanning
}

func newHub(c *follow.Collection, limit int, requests *limit.Quota, scans chan struct{}, stopping <-chan struct{}) *hub {
	h := &hub{c: c, limit: limit, most: chunkSize{chunkEvents, chunkBytes}, requests: requests, stopping: stopping}
	h.scans = scans
	h.clear()
	return h
}

// clear forgets what only open watches need.
func (h *hub) clear() {
	h.snap = nil
	h.directory = newDirectory()
	h.touched, h.floor, h.items = nil, nil, items{}
}

// join enters a watch into the group of those that ask for the same, behind the
// snapshot returned. It must leave again.
func (h *hub) join(w *watcher, key, view string) (*store.Snapshot, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	snap, err := h.enter(w, key, view)
	if err != nil {
		return nil, err
	}
	h.open++
	if h.idle == nil {
		h.idle = make(chan struct{})
		go h.follow(h.idle)
	}
	return snap, nil
}

// rejoin enters a watch into another group.
func (h *hub) rejoin(w *watcher, key, view string) (*store.Snapshot, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.exit(w)
	return h.enter(w, key, view)
}

// enter is join for who holds h.mu.
func (h *hub) enter(w *watcher, key, view string) (*store.Snapshot, error) {
	snap, err := h.advance()
	if err != nil {
		return nil, err
	}
	if err := bind(h.c, &w.filter, snap); err != nil {
		if h.open == 0 {
			h.snap = nil // or it would be kept until somebody watches
		}
		return nil, err
	}
	if len(w.filter.needs) > 0 {
		key += fmt.Sprint(w.filter.needs)
	}
	g := h.groups[key]
	if g == nil {
		if _, ok := h.views[view]; !ok {
			h.views[view] = w.view
		}
		g = &group{key: key, filter: w.filter, view: h.views[view], prior: w.prior, most: h.most, requests: h.requests, cursors: map[*cursor]struct{}{}, wake: make(chan struct{})}
		h.file(g)
	}
	g.refs++
	g.mu.Lock()
	g.attach(&w.cursor, g.end())
	g.mu.Unlock()
	w.group = g
	return snap, nil
}

func (h *hub) leave(w *watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.exit(w)
	if h.open--; h.open == 0 {
		close(h.idle)
		h.idle = nil
		h.clear()
	}
}

// exit takes a watch out of its group, if it has one. h.mu is held.
func (h *hub) exit(w *watcher) {
	g := w.group
	if g == nil {
		return
	}
	w.group = nil
	g.mu.Lock()
	g.detach(&w.cursor)
	g.mu.Unlock()
	if g.refs--; g.refs == 0 {
		h.unfile(g)
	}
}

// Wake makes every watch look whether it is over.
func (h *hub) Wake() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, g := range h.groups {
		g.mu.Lock()
		g.signal()
		g.mu.Unlock()
	}
}

// advance makes a pass up to the latest snapshot and returns it. The error is
// that of a collection that is not synced. h.mu is held.
func (h *hub) advance() (*store.Snapshot, error) {
	snap := h.c.Snapshot()
	if err := h.c.Synced(snap); err != nil {
		return nil, err
	}
	if h.snap == nil {
		h.snap = snap
	}
	h.pass(snap)
	return h.snap, nil
}

// current is the snapshot of the last pass.
func (h *hub) current() *store.Snapshot {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.snap
}

// move puts a cursor behind all blocks.
func (g *group) move(c *cursor) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.detach(c)
	g.attach(c, g.end())
}

// quiet returns the snapshot of the last pass if the watch received everything
// up to it.
func (h *hub) quiet(w *watcher) *store.Snapshot {
	h.mu.Lock()
	defer h.mu.Unlock()
	snap := h.c.Snapshot()
	h.pass(snap)
	g := w.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if snap != h.snap || snap.State().Frozen || g.err != nil || w.cursor.next != g.end() {
		return nil
	}
	return snap
}
