package history

import (
	"hash/maphash"
	"sync"

	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// Recent remembers what happened last to the keys this server saw last, for
// people: Inspect shows it. It is in memory and of this server, not in the
// store: there it would cost every cycle bytes and time in the one place that
// all replicas share, and what is kept of finished work is what fills a Redis.
//
// It is bounded: events per key are a ring, keys are evicted by a clock (one
// not touched since the hand passed goes first), texts and names of sessions
// are rings as well. Nothing in it holds a pointer that grows with the keys, so
// that the garbage collector has nothing to scan, and recording allocates
// nothing once the table is full. Keys are known by a 64-bit hash. One lock is
// taken once a transaction; a cycle of add, lease and settle costs 0.1 to 0.3 us of CPU
// (BenchmarkHistory), about a hundredth of what the server spends on it.
type Recent struct {
	max  int // keys
	seed maphash.Seed

	mu       sync.Mutex
	index    map[uint64]int32 // guarded by mu, as is all that follows
	chunks   [][]keyEvents
	count    int // of pasts in use
	hand     int
	text     []byte // the ring of texts
	written  int64  // bytes of text ever written
	sessions sessionNames
	scratch  []byte // a text that is being made
}

const (
	keptEvents  = 8
	pastChunk   = 1024
	textPerKey  = 96
	keptNames   = 1 << 14
	longestText = 1024
)

// New keeps the events of max keys, none below one.
func New(max int) *Recent {
	if max < 1 {
		return nil
	}
	return &Recent{max: max, seed: maphash.MakeSeed(), index: map[uint64]int32{}, sessions: sessionNames{ids: map[string]uint32{}}}
}

func (h *Recent) hash(queue uint64, key string) uint64 { return maphash.String(h.seed, key) ^ queue }

// Author is who asked for a row of a transaction's operations.
type Author struct {
	Session      string // empty for none
	First, Count int
}

// Record notes what a transaction of a queue did. A duplicate that was folded into
// another add of its transaction is not told apart.
func (h *Recent) Record(queue string, authors []Author, t *workqueue.Transaction, r *workqueue.Result) {
	if h == nil || len(t.Ops) != len(r.Replies) {
		return
	}
	q := maphash.String(h.seed, queue)*2 + 1
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, a := range authors {
		by := uint32(0)
		if a.Session != "" {
			by = h.sessions.id(a.Session)
		}
		for at := a.First; at < a.First+a.Count; at++ {
			h.op(q, by, &t.Ops[at], &r.Replies[at], r.Now)
		}
	}
	take, holder := -1, uint32(0)
	for i := range r.Leases {
		l := &r.Leases[i]
		if l.Take != take {
			take, holder = l.Take, h.sessions.id(t.Takes[l.Take].Holder)
		}
		h.leased(q, holder, l, r.Now)
	}
}

func (h *Recent) op(q uint64, by uint32, op *workqueue.Op, rep *workqueue.Reply, now int64) {
	switch op.Kind {
	case workqueue.OpAdd:
		switch rep.Status {
		case workqueue.AlreadyQueued, workqueue.Queued, workqueue.MarkedDirty, workqueue.Delayed:
			p := h.of(h.hash(q, op.Key))
			last := p.last(0)
			if last != nil && last.kind == added && (rep.Status == workqueue.AlreadyQueued || last.session == by && last.sum == h.sum(op.Trace)) {
				last.repeats++
				last.at = now
				return
			}
			h.add(p, event{at: now, kind: added, session: by, sum: h.sum(op.Trace)}, h.causes(op))
		}
	case workqueue.OpSettle:
		switch rep.Status {
		case workqueue.Settled, workqueue.Requeued:
			p := h.of(h.hash(q, op.Key))
			e := event{at: now, kind: endedWell, token: op.Token, outcome: op.Outcome, session: by}
			p.since(&e)
			h.add(p, e, h.outcome(op))
		case workqueue.Lost:
			h.lost(h.of(h.hash(q, op.Key)), op.Token, by, now)
		}
	case workqueue.OpExtend:
		if rep.Status == workqueue.Lost {
			h.lost(h.of(h.hash(q, op.Key)), op.Token, by, now)
		}
	case workqueue.OpRetryNow, workqueue.OpRevoke, workqueue.OpDelete, workqueue.OpPutBack:
		if rep.Status == workqueue.OK {
			h.add(h.of(h.hash(q, op.Key)), event{at: now, kind: operated, session: by}, operations[op.Kind])
		}
	}
}

var operations = map[workqueue.OpKind][]byte{
	workqueue.OpRetryNow: []byte("RetryNow"), workqueue.OpRevoke: []byte("ReleaseItems"), workqueue.OpDelete: []byte("DeleteItems"),
	workqueue.OpPutBack: []byte("RestoreItems"),
}

const (
	added     = uint8(queuev1.EventKind_EVENT_KIND_ADDED)
	begun     = uint8(queuev1.EventKind_EVENT_KIND_LEASED)
	endedWell = uint8(queuev1.EventKind_EVENT_KIND_SETTLED)
	lostLease = uint8(queuev1.EventKind_EVENT_KIND_LOST)
	operated  = uint8(queuev1.EventKind_EVENT_KIND_OPERATOR)
)

// leased records a lease, and that the one before it was lost when the key was
// never settled.
func (h *Recent) leased(q uint64, holder uint32, l *workqueue.Lease, now int64) {
	p := h.of(h.hash(q, l.Key))
	if l.Attempt > 1 {
		if before := p.open(); before != nil {
			h.lost(p, before.token, before.session, now)
		}
	}
	h.add(p, event{at: now, kind: begun, token: l.Token, session: holder}, nil)
}

// lost records a lost lease, once.
func (h *Recent) lost(p *keyEvents, token uint64, by uint32, now int64) {
	for i := range keptEvents {
		if e := p.last(i); e != nil && e.kind == lostLease && e.token == token {
			return
		}
	}
	e := event{at: now, kind: lostLease, token: token, session: by}
	p.since(&e)
	h.add(p, e, nil)
}

// of finds what is remembered of a key, or makes room for it.
func (h *Recent) of(hash uint64) *keyEvents {
	if i, ok := h.index[hash]; ok {
		p := h.at(i)
		p.seen = true
		return p
	}
	var i int32
	if h.count < h.max {
		i = int32(h.count)
		if h.count++; int(i)%pastChunk == 0 {
			h.chunks = append(h.chunks, make([]keyEvents, min(pastChunk, h.max-int(i))))
		}
	} else {
		for h.at(int32(h.hand)).seen {
			h.at(int32(h.hand)).seen = false
			h.hand = (h.hand + 1) % h.count
		}
		i = int32(h.hand)
		h.hand = (h.hand + 1) % h.count
		delete(h.index, h.at(i).hash)
	}
	h.index[hash] = i
	p := h.at(i)
	p.hash, p.begun, p.seen = hash, 0, false
	return p
}

func (h *Recent) at(i int32) *keyEvents { return &h.chunks[i/pastChunk][i%pastChunk] }

func (h *Recent) add(p *keyEvents, e event, text []byte) {
	if len(text) > 0 {
		e.text, e.textLen = h.write(text[:min(len(text), longestText)])
	}
	p.events[p.begun%keptEvents] = e
	p.begun++
}

// write puts text into the ring, whole: what does not fit before its end
// begins at the start.
func (h *Recent) write(text []byte) (at int64, n uint16) {
	if h.text == nil {
		h.text = make([]byte, max(h.max*textPerKey, 4*longestText))
	}
	size := int64(len(h.text))
	if room := size - h.written%size; room < int64(len(text)) {
		h.written += room
	}
	at = h.written
	copy(h.text[at%size:], text)
	h.written += int64(len(text))
	return at, uint16(len(text))
}

// read is the text of an event, nil when it has been overwritten.
func (h *Recent) read(e *event) []byte {
	size := int64(len(h.text))
	if e.textLen == 0 || e.text < h.written-size {
		return nil
	}
	return h.text[e.text%size:][:e.textLen]
}

func (h *Recent) sum(text string) uint32 {
	if text == "" {
		return 0
	}
	return uint32(maphash.String(h.seed, text))
}
