package follow

import (
	"runtime"
	"sync"
	"time"
)

const (
	// reclaimLeast is how long it is at the soonest until garbage is collected
	// again for an index that was left out; twice as long each time that it was
	// of no use, up to reclaimMost, which is when the runtime does it anyway.
	reclaimLeast, reclaimMost = 10 * time.Second, 2 * time.Minute
)

// reclaimed is when garbage was last collected for an index that was left out.
type reclaimed struct {
	mu    sync.Mutex
	at    time.Time     // guarded by mu
	pause time.Duration // guarded by mu
}

// due reports whether garbage may be collected now.
func (r *reclaimed) due(now time.Time) bool { return now.Sub(r.at) >= r.pause }

// note takes in that it was, and whether that was of use.
func (r *reclaimed) note(now time.Time, useful bool) {
	if r.at = now; useful {
		r.pause = 0
	}
	r.pause = min(max(2*r.pause, reclaimLeast), reclaimMost)
}

// fits reports whether indexes may take so many bytes more at present. What was
// deleted counts until it is collected, which a process with little to do does
// every two minutes: if that may make the difference, it is collected now.
func (s *Collections) fits(size int) bool {
	most := int(buildShare*float64(s.cfg.MemoryBudget)) - size
	if s.memory() <= most {
		return true
	}
	r := &s.reclaimed
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.memory()-s.unused() > most || !r.due(time.Now()) {
		return false
	}
	s.collect()
	useful := s.memory() <= most
	r.note(time.Now(), useful)
	return useful
}

// collect collects garbage and notes what is left.
func (s *Collections) collect() {
	runtime.GC()
	for _, c := range s.names.Load().All {
		c.keeper.Measure()
	}
}

// unused is what is kept beside the payloads of all collections, as far as is
// known: some of it is garbage.
func (s *Collections) unused() int {
	n := 0
	for _, c := range s.names.Load().All {
		n += max(0, c.keeper.Held()-c.store.Snapshot().StoredBytes())
	}
	return n
}
