package history

import (
	"hash/maphash"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

// keyEvents is the last events of one key.
type keyEvents struct {
	hash   uint64
	begun  uint32 // events ever, also those overwritten
	seen   bool   // since the hand passed
	events [keptEvents]event
}

// event is a queuev1.HistoryEvent without pointers.
type event struct {
	at      int64
	token   uint64
	text    int64  // where it begins, of all text ever written
	sum     uint32 // of the trace context of an add
	textLen uint16
	kind    uint8
	outcome workqueue.Outcome
	held    float32 // seconds
	session uint32  // zero for none
	repeats uint32
}

// last is the event i before the last one; nil when it is not kept.
func (p *keyEvents) last(i int) *event {
	if i >= keptEvents || uint32(i) >= p.begun {
		return nil
	}
	return &p.events[(p.begun-1-uint32(i))%keptEvents]
}

// open is the last lease, unless it is known how it ended.
func (p *keyEvents) open() *event {
	for i := range keptEvents {
		e := p.last(i)
		if e == nil || e.kind == endedWell || e.kind == lostLease {
			return nil
		}
		if e.kind == begun {
			return e
		}
	}
	return nil
}

// since fills in how long the lease that e ends was held and, when it is not
// known, who held it.
func (p *keyEvents) since(e *event) {
	from := int64(e.token) // a token is the time of its lease, or barely above it
	for i := range keptEvents {
		if b := p.last(i); b != nil && b.kind == begun && b.token == e.token {
			from = b.at
			if e.session == 0 {
				e.session = b.session
			}
			break
		}
	}
	e.held = float32(max(e.at-from, 0)) / 1e6
}

// Key tells what happened to a key, newest first.
func (h *Recent) Key(queue, key string) []*queuev1.HistoryEvent {
	if h == nil {
		return nil
	}
	q := maphash.String(h.seed, queue)*2 + 1
	h.mu.Lock()
	defer h.mu.Unlock()
	i, ok := h.index[h.hash(q, key)]
	if !ok {
		return nil
	}
	var out []*queuev1.HistoryEvent
	for n := range keptEvents {
		e := h.at(i).last(n)
		if e == nil {
			break
		}
		_, session := wire.SplitSession(h.sessions.name(e.session))
		o := &queuev1.HistoryEvent{
			Kind: queuev1.EventKind(e.kind), Time: wire.Stamp(e.at), SessionId: session,
			Outcome: wire.OutcomeOut(e.outcome), Repeats: int64(e.repeats),
		}
		switch text, records := split(string(h.read(e))); e.kind {
		case added:
			o.Traceparent, o.Barrier = text, wire.Revisions(barrierOf(records))
		case endedWell:
			o.Reason, o.Writes = text, wire.Writes(writesOf(records))
		default:
			o.Reason = text
		}
		if e.kind == endedWell || e.kind == lostLease {
			o.Held = durationpb.New(time.Duration(float64(e.held) * float64(time.Second)).Round(time.Microsecond))
		}
		out = append(out, o)
	}
	return out
}

// sessionNames are numbers for the sessions seen last.
type sessionNames struct {
	ids  map[string]uint32
	ring []string
	next uint32 // the last number given
}

func (n *sessionNames) id(name string) uint32 {
	if id, ok := n.ids[name]; ok {
		return id
	}
	if n.ring == nil {
		n.ring = make([]string, keptNames)
	}
	n.next++
	at := int(n.next) % keptNames
	delete(n.ids, n.ring[at])
	n.ring[at] = name
	n.ids[name] = n.next
	return n.next
}

func (n *sessionNames) name(id uint32) string {
	if id == 0 || n.next-id >= keptNames {
		return ""
	}
	return n.ring[int(id)%keptNames]
}
