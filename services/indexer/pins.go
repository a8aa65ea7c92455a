package indexer

import (
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
// use and up to a number. It is safe for concurrent use.
type pins struct {
	max int
	ttl time.Duration

	mu   sync.Mutex
	next uint64
	byID map[uint64]*pin
}

type pin struct {
	id    uint64
	parts []part
	used  time.Time
}

func newPins(limit int, ttl time.Duration) *pins {
	return &pins{max: limit, ttl: ttl, byID: map[uint64]*pin{}}
}

// hold keeps snapshots and returns their number, the same for the same ones.
// Beyond the limit those least recently used go.
func (p *pins) hold(parts []part, now time.Time) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	var oldest *pin
	for _, held := range p.byID {
		if slices.Equal(held.parts, parts) {
			held.used = now
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
	p.byID[p.next] = &pin{id: p.next, parts: slices.Clone(parts), used: now}
	return p.next
}

// get returns the snapshots of a number, nil when they are gone.
func (p *pins) get(id uint64, now time.Time) []part {
	p.mu.Lock()
	defer p.mu.Unlock()
	held, ok := p.byID[id]
	if !ok {
		return nil
	}
	held.used = now
	return held.parts
}

// expire lets go of what has not been used for the TTL.
func (p *pins) expire(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, held := range p.byID {
		if now.Sub(held.used) > p.ttl {
			delete(p.byID, held.id)
		}
	}
}

func (p *pins) len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.byID)
}
