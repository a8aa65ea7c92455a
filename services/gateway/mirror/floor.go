package mirror

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/deltaplane/deltaplane/internal/attempt"
)

// floor is what was written through the gateway: reads are not older.
type floor struct {
	version atomic.Uint64
	waiting atomic.Int64 // len(gone), to be looked at without the lock
	doubts  atomic.Int64 // writes of which nobody knows the version

	mu   sync.Mutex
	gone map[string]time.Time // UIDs whose deletion the index has not shown yet; guarded by mu
	seen map[string]time.Time // UIDs whose deletion it has shown lately; guarded by mu
}

// deletionKept is how long a deletion is waited for, and how long one is remembered: the answer to
// who deleted may come after the event.
const deletionKept = 30 * time.Second

const maxDeletions = 10_000

// Wrote notes the version of an object that was written.
func (m *Mirror) Wrote(version uint64) {
	for {
		was := m.floor.version.Load()
		if version <= was || m.floor.version.CompareAndSwap(was, version) {
			return
		}
	}
}

// WroteSomething notes a write of which the version is not known, and returns once one is known
// that is not lower. Where the API server does not say it, reads are held up until it does.
func (m *Mirror) WroteSomething(ctx context.Context) {
	m.floor.doubts.Add(1)
	version, err := m.Recent(ctx)
	if err != nil {
		go m.resolve(version, err)
		return
	}
	m.resolve(version, nil)
}

// resolve ends a doubt by a version that is not lower than what was written, and asks until the API
// server says one.
func (m *Mirror) resolve(version uint64, err error) {
	for err != nil && attempt.Sleep(m.life, time.Second) {
		version, err = m.Recent(m.life)
	}
	m.Wrote(version)
	m.floor.doubts.Add(-1)
}

// forget drops what is known by versions that mean nothing any more.
func (f *floor) forget() {
	f.version.Store(0)
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.gone)
	clear(f.seen)
	f.waiting.Store(0)
}

// Deleted notes that the object with a UID is gone: reads wait until the index has said so.
func (m *Mirror) Deleted(uid string) {
	f := &m.floor
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, seen := f.seen[uid]; !seen && len(f.gone) < maxDeletions {
		f.gone[uid] = now
	}
	f.waiting.Store(int64(len(f.gone)))
}

// sees notes deletions that a view has.
func (f *floor) sees(events []*Event) {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range events {
		if e.New == nil {
			uid := e.Old.UID()
			delete(f.gone, uid)
			f.seen[uid] = now
		}
	}
	if len(f.seen) > maxDeletions {
		for uid, at := range f.seen {
			if now.Sub(at) > deletionKept || len(f.seen) > 2*maxDeletions {
				delete(f.seen, uid)
			}
		}
	}
	f.waiting.Store(int64(len(f.gone)))
}

// Met reports whether a view has what was written through the gateway.
func (m *Mirror) Met(v *View) bool { return m.floor.met(v) }

// met reports whether a view has what was written.
func (f *floor) met(v *View) bool {
	if f.doubts.Load() > 0 || v.Revision < f.version.Load() {
		return false
	}
	if f.waiting.Load() == 0 {
		return true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for uid, at := range f.gone {
		if time.Since(at) > deletionKept {
			delete(f.gone, uid)
		}
	}
	f.waiting.Store(int64(len(f.gone)))
	return len(f.gone) == 0
}
