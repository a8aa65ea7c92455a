package watch

import (
	"errors"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/fieldmask"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/limit"
	"github.com/deltaplane/deltaplane/services/indexer/message"
)

// errBehind says that changes which a watch has not been told are dropped.
var errBehind = errors.New("changes are dropped")

// group is all watches of a collection that ask for the same. What happens to
// its objects is found out once, written once as blocks, and sent to each as it
// is. A block is kept until every watch of the group has taken it, or the ring
// has dropped the changes in it.
type group struct {
	key    string
	filter selector
	view   message.Projection
	prior  bool // changes carry the object as it was before
	most   chunkSize

	requests *limit.Quota // of the service

	// These belong to the pass under way; hub.mu guards them.
	refs   int    // open watches
	stamp  uint64 // number of the change looked at last
	events []message.Event
	bytes  int
	first  uint64 // number of the change that events begin with

	mu      sync.Mutex // guards the rest; taken behind hub.mu
	err     error      // ends the watches
	cursors map[*cursor]struct{}
	base    uint64 // index of the first block
	blocks  []*block
	cost    int
	dropped time.Time // when the first unread block that was dropped had been made
	wake    chan struct{}
	state   *state // being sent, and young enough to be shared
}

// cursor is how far a watch has read its group's blocks. Its group's mu guards
// it.
type cursor struct{ next uint64 }

// event is what a change means to the group; false when nothing.
func (g *group) event(snap *store.Snapshot, c *store.Change, items *items) (e message.Event, ok bool) {
	had := c.Old != nil && g.filter.Match(snap, c.Old)
	has := c.New != nil && g.filter.Match(snap, c.New)
	switch {
	case has && had:
		e = message.Event{Type: deltav1.DeltaType_DELTA_TYPE_UPDATED, Item: items.of(&g.view, c, c.New)}
		if g.prior {
			e.Before(items.of(&g.view, c, c.Old))
		}
	case has:
		e = message.Event{Type: deltav1.DeltaType_DELTA_TYPE_ADDED, Item: items.of(&g.view, c, c.New)}
	case had && c.New != nil:
		e = deletion(c.Key, c.New.UID(), c.RV, deltav1.DeleteReason_DELETE_REASON_FILTERED)
		if g.filter.Index != "" {
			_, err := snap.Values(g.filter.Index, c.New)
			_, e.Unindexed = errors.AsType[*store.FailedError](err)
		}
		if g.prior {
			e.Before(items.of(&g.view, c, c.Old))
		}
	case had:
		e = deletion(c.Key, c.Old.UID(), c.RV, deleteReasons[c.Reason])
		if c.Final != nil {
			e.Final(items.of(&g.view, c, c.Final))
		}
	default:
		return e, false
	}
	e.Trace = c.Trace()
	return e, true
}

var deleteReasons = map[store.Reason]deltav1.DeleteReason{
	store.Observed:  deltav1.DeleteReason_DELETE_REASON_OBSERVED,
	store.Inferred:  deltav1.DeleteReason_DELETE_REASON_INFERRED,
	store.Filtered:  deltav1.DeleteReason_DELETE_REASON_FILTERED,
	store.Recreated: deltav1.DeleteReason_DELETE_REASON_OBSERVED,
	store.Swept:     deltav1.DeleteReason_DELETE_REASON_INFERRED,
}

// deletion is that of an object of which nobody can tell what it was like in the
// end, or which lives.
func deletion(key, uid, rv string, reason deltav1.DeleteReason) message.Event {
	return message.Event{
		Type: deltav1.DeltaType_DELTA_TYPE_DELETED, Item: message.Item{Key: key, UID: uid, RV: rv}, Reason: reason,
		Unknown: reason != deltav1.DeleteReason_DELETE_REASON_FILTERED && reason != deltav1.DeleteReason_DELETE_REASON_NOT_VISIBLE,
	}
}

// items remembers how the objects of one change look in the views that were asked for, so
// that a payload is decoded or cut once for all groups.
type items struct {
	n    uint64
	seen []viewed
}

type viewed struct {
	object *store.Object
	mask   *fieldmask.Mask
	keys   bool
	item   message.Item
}

func (m *items) of(p *message.Projection, c *store.Change, o *store.Object) message.Item {
	if m.n != c.N {
		m.n, m.seen = c.N, m.seen[:0]
	}
	keys := p.View == indexv1.View_VIEW_KEYS
	for i := range m.seen {
		if v := &m.seen[i]; v.object == o && v.mask == p.Mask && v.keys == keys {
			return v.item
		}
	}
	it := p.Item(o)
	m.seen = append(m.seen, viewed{object: o, mask: p.Mask, keys: keys, item: it})
	return it
}

// take moves a cursor over the next blocks, as many as make one message. It
// returns none, and what to wait for, when there are none yet. The error is
// errBehind when blocks were dropped before the cursor came for them.
func (g *group) take(c *cursor) (taken []*block, wake <-chan struct{}, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil {
		return nil, nil, g.err
	}
	if c.next < g.base {
		return nil, nil, errBehind
	}
	n, events, size := 0, 0, 0
	rest := g.blocks[c.next-g.base:]
	for n < len(rest) {
		b := rest[n]
		if n > 0 && (events+b.n > g.most.events || size+b.Size > g.most.bytes) {
			break
		}
		n, events, size = n+1, events+b.n, size+b.Size
	}
	if n == 0 {
		return nil, g.wake, nil
	}
	taken = append(make([]*block, 0, n), rest[:n]...)
	for _, b := range taken {
		b.left--
	}
	c.next += uint64(n)
	g.trim()
	return taken, nil, nil
}

// end is the index behind the last block. g.mu is held.
func (g *group) end() uint64 { return g.base + uint64(len(g.blocks)) }

// attach begins to keep blocks for a cursor, from an index on. g.mu is held.
func (g *group) attach(c *cursor, at uint64) {
	c.next = at
	g.cursors[c] = struct{}{}
	for _, b := range g.blocks[at-g.base:] {
		b.left++
	}
}

// detach ends that. g.mu is held.
func (g *group) detach(c *cursor) {
	if _, ok := g.cursors[c]; !ok {
		return
	}
	delete(g.cursors, c)
	for _, b := range g.blocks[max(c.next, g.base)-g.base:] {
		b.left--
	}
	g.trim()
}

// trim lets go of the blocks that everybody has taken. g.mu is held.
func (g *group) trim() {
	n := 0
	for n < len(g.blocks) && g.blocks[n].left == 0 {
		n++
	}
	g.drop(n)
}

// drop lets go of the first n blocks. g.mu is held.
func (g *group) drop(n int) {
	if n == 0 {
		return
	}
	for i, b := range g.blocks[:n] {
		if b.left > 0 && g.dropped.IsZero() {
			g.dropped = b.made
		}
		g.cost -= b.Cost
		g.blocks[i] = nil
	}
	g.base += uint64(n)
	if g.blocks = g.blocks[n:]; len(g.blocks) == 0 {
		g.blocks = nil
	}
}

// add keeps a block for those who have not taken it and wakes them. At most
// limit bytes are kept beside payloads, but always the newest block.
func (g *group) add(b *block, limit int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if b.left = len(g.cursors); b.left == 0 {
		return
	}
	g.blocks = append(g.blocks, b)
	g.cost += b.Cost
	n := 0
	for cost := g.cost; cost > limit && n < len(g.blocks)-1; n++ {
		cost -= g.blocks[n].Cost
	}
	g.drop(n)
	g.signal()
}

// signal wakes the group's watches. g.mu is held.
func (g *group) signal() {
	close(g.wake)
	g.wake = make(chan struct{})
}

// lose drops all blocks, and tells every watch that it has missed some.
func (g *group) lose() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.drop(len(g.blocks))
	g.base++
	if g.dropped.IsZero() {
		g.dropped = time.Now()
	}
	g.signal()
}

// fail ends the group's watches.
func (g *group) fail(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil {
		g.err = err
		g.signal()
	}
}

// failed returns why the group's watches have to end, nil while they have not.
func (g *group) failed() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

// lag is how old the oldest block is that a watch has not taken, and how many
// watches have missed some. since is the number of the first change in it, zero
// when it is not kept any more.
func (g *group) lag() (oldest time.Time, since uint64, behind int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.blocks) > 0 {
		oldest, since = g.blocks[0].made, g.blocks[0].first
	}
	for c := range g.cursors {
		if c.next < g.base {
			behind++
		}
	}
	switch {
	case behind == 0:
		g.dropped = time.Time{}
	case !g.dropped.IsZero():
		oldest, since = g.dropped, 0
	}
	return oldest, since, behind
}
