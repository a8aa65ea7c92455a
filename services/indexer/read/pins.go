package read

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/services/indexer/follow"
)

// part is one collection of an answer, at one moment.
type part struct {
	c    *follow.Collection
	snap *store.Snapshot
}

// pins keeps the snapshots that page tokens name, for a time after their last
// use, no longer than an age in all, and up to a number. Beyond that those go that
// clients with many hold, so that a client which lists much does not end the
// listings of others. It is safe for concurrent use.
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
	users []string // the clients that page through it, at most maxUsers
}

// maxUsers is from how many clients on a snapshot is kept as that of a client
// which has no other.
const maxUsers = 8

func newPins(limit int, ttl, age time.Duration, bytes int) *pins {
	return &pins{max: limit, ttl: ttl, age: age, bytes: bytes, byID: map[uint64]*pin{}}
}

// hold keeps snapshots for a client and returns their number, the same for the
// same ones.
func (p *pins) hold(client string, parts []part, now time.Time) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, held := range p.byID {
		if slices.Equal(held.parts, parts) && (held.current() || now.Sub(held.made) <= p.age) {
			if held.used = now; held.current() {
				held.made = now // nothing is kept for it yet
			}
			if len(held.users) < maxUsers && !slices.Contains(held.users, client) {
				held.users = append(held.users, client)
			}
			return held.id
		}
	}
	if len(p.byID) >= p.max {
		delete(p.byID, p.victim(client).id)
	}
	p.next++
	p.byID[p.next] = &pin{id: p.next, parts: slices.Clone(parts), made: now, used: now, users: []string{client}}
	return p.next
}

// victim is what goes for one more of a client: of the pins whose every user has
// the most, the one least recently used. p.mu is held, and there is one.
func (p *pins) victim(client string) (victim *pin) {
	has := map[string]int{client: 1}
	for _, held := range p.byID {
		for _, user := range held.users {
			has[user]++
		}
	}
	most := 0
	for _, held := range p.byID {
		n := has[held.users[0]]
		for _, user := range held.users[1:] {
			n = min(n, has[user])
		}
		if len(held.users) == maxUsers {
			n = 1
		}
		if n > most || n == most && held.used.Before(victim.used) {
			victim, most = held, n
		}
	}
	return victim
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
		if p.c.Snapshot() != p.snap {
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
		then, now := p.snap.State().Position, p.c.Snapshot().State().Position
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
