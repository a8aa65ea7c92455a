package informer

import "time"

type kind uint8

const (
	added kind = iota + 1
	updated
	deleted
)

// note is one notification.
type note[T any] struct {
	kind     kind
	key, uid string // the UID of obj, or of old when deleted
	old, obj T      // obj of deleted, when folded: what the handler knows
	folded   bool   // of deleted: it was an update as well
	initial  bool   // of added: one that a handler must have finished to be synced
	sync     bool   // of updated: a resync, nothing changed
	rv       string // of deleted: where it was gone
	reason   Reason // of deleted
	final    *T     // of deleted: the object as it was deleted; nil when that is not known
	at       time.Time
}

// merged is what became of a notification that met an earlier one of its key.
type merged uint8

const (
	apart    merged = iota // both must be delivered
	folded                 // the earlier now says both
	vanished               // together they say nothing
)

// merge folds n into p, an earlier notification of the same key that was not
// told yet. The result tells somebody who knew the object before p what it is
// after n; a change of the UID stays visible.
func merge[T any](p *note[T], n note[T]) merged {
	switch {
	case n.sync && p.kind != deleted: // p is of the same state: that is what it is in the store
		return folded
	case p.kind == added && n.kind == deleted:
		return vanished
	case p.kind == added && n.kind == updated:
		p.obj, p.uid = n.obj, n.uid
		return folded
	case p.kind == updated && n.kind == updated:
		p.obj, p.uid, p.sync = n.obj, n.uid, false
		return folded
	case p.kind == updated && n.kind == deleted:
		p.old, p.obj, p.folded = n.old, p.old, true
		p.kind, p.sync, p.uid, p.rv, p.reason, p.final = deleted, false, n.uid, n.rv, n.reason, n.final
		return folded
	case p.kind == deleted && n.kind == added && p.uid == n.uid:
		if p.folded {
			p.old, p.folded = p.obj, false
		}
		p.kind, p.obj, p.rv, p.reason, p.final = updated, n.obj, "", 0, nil
		return folded
	default:
		return apart
	}
}

// buffer holds the notifications of one handler, oldest first. Up to room of
// them it keeps as they are, and any number of initial ones, of which each key has
// one; beyond that it keeps what merge makes of each key's, which is two at most.
// The zero value with a room is ready. It is not safe for concurrent use.
type buffer[T any] struct {
	room int

	first, last *node[T]
	len         int
	initial     int                 // of len, those that are initial
	latest      map[string]*node[T] // the last of each key; nil while there is room
}

type node[T any] struct {
	note[T]
	next, prev *node[T]
	before     *node[T] // the key's next older one, when latest is kept
	gone       bool
}

// push adds a notification. folds counts the notifications that were folded into
// others, and finished the initial ones among them.
func (b *buffer[T]) push(n note[T]) (folds, finished int) {
	if b.latest == nil && b.len-b.initial >= b.room {
		b.coalesce()
	}
	if p := b.latest[n.key]; p != nil {
		switch merge(&p.note, n) {
		case folded:
			return 1, 0
		case vanished:
			if p.initial {
				finished = 1
			}
			b.remove(p)
			return 2, finished
		case apart:
		}
	}
	x := &node[T]{note: n, prev: b.last}
	if b.last != nil {
		b.last.next = x
	} else {
		b.first = x
	}
	b.last = x
	b.len++
	if n.initial {
		b.initial++
	}
	if b.latest != nil {
		x.before, b.latest[n.key] = b.latest[n.key], x
	}
	return 0, 0
}

// coalesce begins to know the last notification of each key.
func (b *buffer[T]) coalesce() {
	b.latest = make(map[string]*node[T], b.len)
	for x := b.first; x != nil; x = x.next {
		x.before, b.latest[x.key] = b.latest[x.key], x
	}
}

// pop takes the oldest notification.
func (b *buffer[T]) pop() (n note[T], ok bool) {
	x := b.first
	if x == nil {
		return n, false
	}
	b.remove(x)
	// Going back and forth at the edge would make the map again and again.
	if b.latest != nil && b.len-b.initial <= b.room/2 {
		b.latest = nil
	}
	return x.note, true
}

func (b *buffer[T]) remove(x *node[T]) {
	if x.prev != nil {
		x.prev.next = x.next
	} else {
		b.first = x.next
	}
	if x.next != nil {
		x.next.prev = x.prev
	} else {
		b.last = x.prev
	}
	if b.latest != nil && b.latest[x.key] == x {
		if x.before != nil && !x.before.gone {
			b.latest[x.key] = x.before
		} else {
			delete(b.latest, x.key)
		}
	}
	x.gone, x.before, x.next, x.prev = true, nil, nil, nil
	b.len--
	if x.initial {
		b.initial--
	}
}

// clear drops everything.
func (b *buffer[T]) clear() { *b = buffer[T]{room: b.room} }
