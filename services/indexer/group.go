package indexer

import (
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/deltaplane/deltaplane/core/store"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/limit"
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
	view   projection
	most   chunkSize

	requests *limit.Quota // of the service

	// These belong to the pass under way; hub.mu guards them.
	refs   int    // open watches
	stamp  uint64 // number of the change looked at last
	events []event
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

// block is some changes of a group made ready for the wire.
type block struct {
	frame       *frame
	body        mem.BufferSlice // the events of frame
	n, size     int             // of the events
	cost        int             // memory beside the payloads
	left        int             // cursors that have not taken it
	first, last uint64          // numbers of the changes
	at          place           // behind it; zero within a state
	bounds      bounds
	made        time.Time
}

// partCost is about what one more piece of a message takes.
const partCost = 48

// newBlock writes events, and where a reader is behind them.
func newBlock(events []event, at place, b bounds) *block {
	return writeBlock(events, false, at, b)
}

// writeBlock is newBlock that also says whether earlier events were left out.
func writeBlock(events []event, folded bool, at place, b bounds) *block {
	o := newOut()
	o.changes(events)
	if folded {
		o.uint(2, 1)
	}
	size, cost := o.len(), len(o.buf)-o.from
	body := o.shared()
	o = newOut()
	o.head(1, size)
	head := o.flat()
	o = newOut()
	o.trailer(at, b)
	tail := o.flat()
	parts := make(mem.BufferSlice, 0, len(body)+2)
	parts = append(append(append(parts, mem.SliceBuffer(head)), body...), mem.SliceBuffer(tail))
	return &block{
		frame: &frame{parts: parts}, body: parts[1 : len(parts)-1], n: len(events), size: size,
		cost: cost + len(head) + len(tail) + partCost*len(parts), at: at, bounds: b, made: time.Now(),
	}
}

// trailer ends a WatchResponse.
func (o *out) trailer(at place, b bounds) {
	if !at.isZero() {
		o.place(5, at)
	}
	if !b.revision.IsZero() {
		o.revision(6, b.revision)
	}
	if !b.upper.IsZero() {
		o.revision(7, b.upper)
	}
}

// changes writes the repeated field of an Events message.
func (o *out) changes(list []event) {
	for i := range list {
		e := &list[i]
		o.head(1, e.len())
		o.uint(1, uint64(e.typ))
		o.item(2, &e.item)
		o.uint(3, uint64(e.reason))
		if !e.position.IsZero() {
			o.position(4, e.position)
		}
		if e.item.quarantined {
			o.uint(5, 1)
		}
		if e.unknown {
			o.uint(6, 1)
		}
		if e.unindexed {
			o.uint(7, 1)
		}
	}
}

// flat returns what was written, without stored bytes, and gives o back.
func (o *out) flat() []byte {
	defer o.free()
	return o.bytes()
}

// shared is what frame makes, in pieces that many streams may send: nothing of
// it goes back to a pool.
func (o *out) shared() mem.BufferSlice {
	defer o.free()
	buf := append(make([]byte, 0, len(o.buf)-o.from), o.buf[o.from:]...)
	parts := make(mem.BufferSlice, 0, 2*len(o.cuts)+1)
	at := 0
	for _, c := range o.cuts {
		end := c.at - o.from
		if at < end {
			parts = append(parts, mem.SliceBuffer(buf[at:end:end]))
		}
		parts = append(parts, mem.SliceBuffer(c.data))
		at = end
	}
	if at < len(buf) {
		parts = append(parts, mem.SliceBuffer(buf[at:]))
	}
	return parts
}

// merge makes one message of several blocks.
func merge(blocks []*block) *frame {
	if len(blocks) == 1 {
		return blocks[0].frame
	}
	size, n := 0, 2
	for _, b := range blocks {
		size += b.size
		n += len(b.body)
	}
	o := newOut()
	o.head(1, size)
	parts := append(make(mem.BufferSlice, 0, n), mem.SliceBuffer(o.flat()))
	for _, b := range blocks {
		parts = append(parts, b.body...)
	}
	last := blocks[len(blocks)-1].frame.parts
	return &frame{parts: append(parts, last[len(last)-1])}
}

// event is what a change means to the group; false when nothing.
func (g *group) event(snap *store.Snapshot, c *store.Change, items *items) (event, bool) {
	had := c.Old != nil && g.filter.match(snap, c.Old)
	has := c.New != nil && g.filter.match(snap, c.New)
	switch {
	case has && had:
		return event{typ: deltav1.DeltaType_DELTA_TYPE_UPDATED, item: items.of(&g.view, c)}, true
	case has:
		return event{typ: deltav1.DeltaType_DELTA_TYPE_ADDED, item: items.of(&g.view, c)}, true
	case had && c.New != nil:
		e := deletion(c.Key, c.New.UID(), c.RV, deltav1.DeleteReason_DELETE_REASON_FILTERED)
		if g.filter.index != "" {
			_, err := snap.Values(g.filter.index, c.New)
			_, e.unindexed = errors.AsType[*store.FailedError](err)
		}
		return e, true
	case had:
		e := deletion(c.Key, c.Old.UID(), c.RV, deleteReasons[c.Reason])
		if c.Final != nil {
			e.final(items.of(&g.view, c))
		}
		return e, true
	default:
		return event{}, false
	}
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
func deletion(key, uid, rv string, reason deltav1.DeleteReason) event {
	return event{
		typ: deltav1.DeltaType_DELTA_TYPE_DELETED, item: item{key: key, uid: uid, rv: rv}, reason: reason,
		unknown: reason != deltav1.DeleteReason_DELETE_REASON_FILTERED,
	}
}

// final makes a deletion one of a known object, as a view shows it. What is not
// in the view stays as it was: a deletion has its version in any.
func (e *event) final(it item) {
	if it.quarantined {
		return
	}
	e.item.payload, e.item.encoding, e.unknown = it.payload, it.encoding, false
}

// items remembers how one change looks in the views that were asked for, so
// that a payload is decoded or cut once for all groups.
type items struct {
	n    uint64
	seen []viewed
}

type viewed struct {
	mask *maskNode
	keys bool
	item item
}

func (m *items) of(p *projection, c *store.Change) item {
	if m.n != c.N {
		m.n, m.seen = c.N, m.seen[:0]
	}
	keys := p.view == indexv1.View_VIEW_KEYS
	for i := range m.seen {
		if v := &m.seen[i]; v.mask == p.mask && v.keys == keys {
			return v.item
		}
	}
	o := c.New
	if o == nil {
		o = c.Final
	}
	it := p.item(o)
	m.seen = append(m.seen, viewed{mask: p.mask, keys: keys, item: it})
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
		if n > 0 && (events+b.n > g.most.events || size+b.size > g.most.bytes) {
			break
		}
		n, events, size = n+1, events+b.n, size+b.size
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
		g.cost -= b.cost
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
	g.cost += b.cost
	n := 0
	for cost := g.cost; cost > limit && n < len(g.blocks)-1; n++ {
		cost -= g.blocks[n].cost
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
