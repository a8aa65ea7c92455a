package queue

import (
	"slices"
	"sync"

	"github.com/deltaplane/deltaplane/core/workqueue"
)

// taker is somebody who waits for keys of one queue: a Get, or a Work stream.
// Its functions are called by the dispatcher and must not block.
type taker struct {
	holder   string
	leaseFor int64 // microseconds, zero for the queue's
	credit   *credit
	single   bool // one delivery is all it takes
	once     bool // it does not wait

	// deliver hands over leases; false when nobody is there to take them.
	deliver func(d *dispatcher, leases []workqueue.Lease, now int64) bool
	// finish is called when it left the line for good: after its delivery, when
	// nothing more will come, or because of an error.
	finish func(err error)

	// again puts it in line once more; nil when its credit is its own.
	again func()

	// Guarded by the dispatcher's mu.
	inLine, inTurn bool
	leaving        bool // withdrawn while in a turn
	final          bool // what is ready now is the last of it
	asked          int

	got int // of the dispatcher's goroutine, during a turn
}

// credit is how many keys a worker can take: of each queue by itself, and of
// any queue. It is shared by the takers of one stream.
type credit struct {
	mu  sync.Mutex
	any int            // guarded by mu, as is all that follows
	own map[*taker]int // nil until some is given for one queue
	out map[*taker]int // own credit that is reserved or leased
	// starved wanted credit when another queue's turn had reserved it all.
	starved []*taker
}

// give adds credit, for one taker or, without one, for any.
func (c *credit) give(t *taker, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t == nil {
		c.any += n
		return
	}
	if c.own == nil {
		c.own, c.out = map[*taker]int{}, map[*taker]int{}
	}
	c.own[t] += n
}

// reserve takes up to n, the taker's own credit first. The dispatcher's mu must
// be held.
func (c *credit) reserve(t *taker, n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	own := min(n, c.own[t])
	if own > 0 {
		c.own[t] -= own
		c.out[t] += own
	}
	any := min(n-own, c.any)
	c.any -= any
	if own+any == 0 && t.asked == 0 { // not when it is this taker that holds it all
		c.starve(t)
	}
	return own + any
}

// starve remembers a taker that has to be told of credit that comes back. Mu
// must be held.
func (c *credit) starve(t *taker) {
	if t.again != nil && !slices.Contains(c.starved, t) {
		c.starved = append(c.starved, t)
	}
}

// refund gives back what was reserved and not used, or what was used and is
// free again. It returns takers that wait for it.
func (c *credit) refund(t *taker, n int) (starved []*taker) {
	if n <= 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	own := min(n, c.out[t])
	if own > 0 {
		c.out[t] -= own
		c.own[t] += own
	}
	c.any += n - own
	if n > own {
		starved, c.starved = c.starved, nil
	}
	return starved
}

// has says whether the taker can take anything; if not, it is told later.
func (c *credit) has(t *taker) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.any > 0 || c.own[t] > 0 {
		return true
	}
	c.starve(t)
	return false
}
