package queue

import (
	"slices"
	"sync"

	"github.com/deltaplane/deltaplane/core/workqueue"
)

// taker is somebody who waits for keys of one partition of a queue: a Get, or
// a Work stream. Its functions are called by the dispatcher and must not block.
type taker struct {
	holder   string
	leaseFor int64 // microseconds, zero for the queue's
	credit   *credit
	purse    *purse // credit for this queue alone; nil for none
	single   bool   // one delivery is all it takes
	once     bool   // it does not wait

	// deliver hands over leases; false when nobody is there to take them.
	deliver func(d *dispatcher, leases []workqueue.Lease, now int64) bool
	// finish is called when it left the line for good: after its delivery, when
	// nothing more will come, or because of an error.
	finish func(err error)

	// again puts it in line once more, when credit it lacked has come.
	again func()

	// Guarded by the dispatcher's mu.
	inLine, inTurn bool
	gone           bool // withdrawn or finished
	leaving        bool // withdrawn while in a turn
	final          bool // what is ready now is the last of it
	asked          int

	got int // of the dispatcher's goroutine, during a turn
}

// credit is how many keys a worker can take: of each queue by itself, and of
// any queue. It is shared by the takers of one stream, or of one Get.
type credit struct {
	mu      sync.Mutex
	any     int  // guarded by mu, as is all that follows
	blocked bool // the worker does not read what it was given
	// starved wanted credit when there was none, the longest waiting first. Of
	// what comes back each is granted one before it can be taken by others, so
	// that no queue and no partition starves another.
	starved []starving
}

type starving struct {
	t       *taker
	granted bool // one is kept for it, and it was told
}

// purse is a stream's credit for one queue alone. Guarded by the credit's mu.
type purse struct {
	own int
	out int // reserved or leased
}

// give adds credit, for one queue or, without one, for any. It returns takers
// that waited for it.
func (c *credit) give(p *purse, n int) (fed []*taker) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p == nil {
		return c.put(n)
	}
	p.own += n
	return nil
}

// put adds credit for any queue, first to those who wait. Mu must be held.
func (c *credit) put(n int) (fed []*taker) {
	for i := range c.starved {
		if n == 0 || c.blocked {
			break
		}
		if s := &c.starved[i]; !s.granted {
			s.granted = true
			fed = append(fed, s.t)
			n--
		}
	}
	c.any += n
	return fed
}

// take removes a taker from those that wait, and returns what was kept for it.
// Mu must be held.
func (c *credit) take(t *taker) int {
	for i := range c.starved {
		if c.starved[i].t == t {
			granted := c.starved[i].granted
			c.starved = slices.Delete(c.starved, i, i+1)
			if granted {
				return 1
			}
			return 0
		}
	}
	return 0
}

// reserve takes up to n, the queue's own credit first. The dispatcher's mu must
// be held.
func (c *credit) reserve(t *taker, n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.any += c.take(t)
	if c.blocked {
		c.starve(t)
		return 0
	}
	own := 0
	if t.purse != nil {
		if own = min(n, t.purse.own); own > 0 {
			t.purse.own -= own
			t.purse.out += own
		}
	}
	some := min(n-own, c.any, max(1, c.any/(1+len(c.starved))))
	c.any -= some
	if own+some == 0 && t.asked == 0 { // not when it is this taker that holds it all
		c.starve(t)
	}
	return own + some
}

// starve remembers a taker that has to be told of credit that comes back. Mu
// must be held.
func (c *credit) starve(t *taker) {
	if !slices.ContainsFunc(c.starved, func(s starving) bool { return s.t == t }) {
		c.starved = append(c.starved, starving{t: t})
	}
}

// refund gives back what was reserved and not used, or what was used and is
// free again. It returns takers that waited for it.
func (c *credit) refund(t *taker, n int) (fed []*taker) {
	if n <= 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	own := 0
	if t.purse != nil {
		if own = min(n, t.purse.out); own > 0 {
			t.purse.out -= own
			t.purse.own += own
			if c.take(t) > 0 { // it need not wait any more
				n++
			}
			fed = append(fed, t)
		}
	}
	return append(fed, c.put(n-own)...)
}

// has says whether the taker can take anything; if not, it is told later.
func (c *credit) has(t *taker) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.blocked && (c.any > 0 || t.purse != nil && t.purse.own > 0) {
		return true
	}
	c.starve(t)
	return false
}

// block keeps credit from being used, or lets it be used again; it returns
// takers that waited for that.
func (c *credit) block(blocked bool) (fed []*taker) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.blocked = blocked; blocked {
		return nil
	}
	for _, s := range c.starved {
		c.any += btoi(s.granted)
		fed = append(fed, s.t)
	}
	c.starved = nil
	return fed
}

// forget takes a taker that has left out of those that wait. It returns takers
// that what was kept for it is of use to.
func (c *credit) forget(t *taker) (fed []*taker) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.put(c.take(t))
}

// callAll puts takers in line again.
func callAll(fed []*taker) {
	for _, t := range fed {
		t.again()
	}
}
