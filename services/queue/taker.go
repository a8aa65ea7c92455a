package queue

import (
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

// reserve takes up to n, the taker's own credit first.
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
	return own + any
}

// refund gives back what was reserved and not used, or what was used and is
// free again.
func (c *credit) refund(t *taker, n int) {
	if n <= 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	own := min(n, c.out[t])
	if own > 0 {
		c.out[t] -= own
		c.own[t] += own
	}
	c.any += n - own
}

func (c *credit) has(t *taker) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.any > 0 || c.own[t] > 0
}
