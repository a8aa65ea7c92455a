package indexer

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/core/store"
)

// part is one collection of an answer, at one moment.
type part struct {
	c    *collection
	snap *store.Snapshot
}

// pins keeps the snapshots that page tokens name, for a time after their last
// use, no longer than an age in all, and up to a number. It is safe for
// concurrent use.
type pins struct {
	max   int
	ttl   time.Duration
	age   time.Duration
	bytes int // that may be held by them alone

	mu   sync.Mutex
	next uint64
	byID map[uint64]*pin
}

type pin struct {
	id    uint64
	parts []part
	made  time.Time
	used  time.Time
}

func newPins(limit int, ttl, age time.Duration, bytes int) *pins {
	return &pins{max: limit, ttl: ttl, age: age, bytes: bytes, byID: map[uint64]*pin{}}
}

// hold keeps snapshots and returns their number, the same for the same ones.
// Beyond the limit those least recently used go.
func (p *pins) hold(parts []part, now time.Time) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	var oldest *pin
	for _, held := range p.byID {
		if slices.Equal(held.parts, parts) && (held.current() || now.Sub(held.made) <= p.age) {
			if held.used = now; held.current() {
				held.made = now // nothing is kept for it yet
			}
			return held.id
		}
		if oldest == nil || held.used.Before(oldest.used) {
			oldest = held
		}
	}
	if len(p.byID) >= p.max {
		delete(p.byID, oldest.id)
	}
	p.next++
	p.byID[p.next] = &pin{id: p.next, parts: slices.Clone(parts), made: now, used: now}
	return p.next
}

// get returns the snapshots of a number, nil when they are gone.
func (p *pins) get(id uint64, now time.Time) []part {
	p.mu.Lock()
	defer p.mu.Unlock()
	held, ok := p.byID[id]
	if !ok || now.Sub(held.made) > p.age {
		return nil
	}
	held.used = now
	return held.parts
}

// expire lets go of what has not been used for the TTL or is too old, and of
// the oldest while they hold more bytes than they may.
func (p *pins) expire(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	held := 0
	byAge := slices.SortedFunc(maps.Values(p.byID), func(a, b *pin) int { return cmp.Compare(b.id, a.id) })
	for _, x := range byAge { // the newest first
		n := x.held()
		if now.Sub(x.used) > p.ttl || now.Sub(x.made) > p.age || held+n > p.bytes {
			delete(p.byID, x.id)
			continue
		}
		held += n
	}
}

// current reports whether the collections hold just what is pinned.
func (x *pin) current() bool {
	for _, p := range x.parts {
		if p.c.store.Snapshot() != p.snap {
			return false
		}
	}
	return true
}

// held is about how many bytes of payloads only the pin keeps: those of as many
// objects as records have come since. Pins that keep the same ones are each
// counted with them, so that several hold less than their sum.
func (x *pin) held() (n int) {
	for _, p := range x.parts {
		then, now := p.snap.State().Position, p.c.store.Snapshot().State().Position
		bytes, objects := p.snap.StoredBytes(), p.snap.Len()
		switch {
		case objects == 0:
		case then.Epoch != now.Epoch || now.Sequence < then.Sequence || now.Sequence-then.Sequence >= uint64(objects):
			n += bytes
		default:
			n += int(now.Sequence-then.Sequence) * (bytes / objects)
		}
	}
	return n
}

func (p *pins) len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.byID)
}
