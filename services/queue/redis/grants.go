package redis

import (
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
)

// grants is what this process remembers of the leases that it granted and
// extended in one partition. It outlives the partition's data.
type grants struct {
	clock estimate

	mu   sync.Mutex
	some bool
	last time.Duration // when the last of them ends, by the process' own clock
}

// note takes in a transaction that was answered at a time of the process' clock. The
// answer was made before: no lease ends later than is remembered here.
func (g *grants) note(at time.Duration, r *workqueue.Result) {
	latest := int64(0)
	for i := range r.Leases {
		latest = max(latest, r.Leases[i].Deadline)
	}
	for i := range r.Replies {
		latest = max(latest, r.Replies[i].Deadline)
	}
	if latest == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.some = true
	g.last = max(g.last, at+time.Duration(latest-r.Now)*time.Microsecond)
}

// left is how long until the last of the leases ends; false when this process
// granted none.
func (g *grants) left(at time.Duration) (time.Duration, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return max(g.last-at, 0), g.some
}

// pause is how long nothing may be handed out when data was lost or may be, and
// leases with it that are worked on: until the last one granted here has ended,
// and one lease time at least, in which other processes tell of theirs. A
// process that granted none takes the longest there can be.
func (g *grants) pause(at time.Duration, cfg *workqueue.Config) time.Duration {
	if left, some := g.left(at); some {
		return max(left, cfg.LeaseFor)
	}
	return cfg.MaxLease
}

// granted is the memory of a partition of a queue.
func (e *Engine) granted(name string, part int) *grants {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := e.grants[name]
	for len(all) <= part {
		all = append(all, &grants{})
	}
	e.grants[name] = all
	return all[part]
}
