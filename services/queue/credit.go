package queue

import (
	"slices"
	"sync"
)

// credit is how many keys a worker can take: of each queue by itself, and of
// any queue. It is shared by the waiters of one stream, or of one Get.
type credit struct {
	mu      sync.Mutex
	any     int  // guarded by mu, as is all that follows
	blocked bool // the worker does not read what it was given
	// waiting wanted credit when there was none, the longest waiting first. Of
	// what comes back each is granted one before it can be taken by others, so
	// that no queue and no partition starves another.
	waiting []creditWait
}

type creditWait struct {
	waiter  *waiter
	granted bool // one is kept for it, and it was told
}

// queueCredit is a stream's credit for one queue alone. Guarded by the credit's mu.
type queueCredit struct {
	free int
	used int // reserved or leased
}

// give adds credit, for one queue or, without one, for any. It returns waiters
// that waited for it.
func (c *credit) give(p *queueCredit, n int) (fed []*waiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p == nil {
		return c.put(n)
	}
	p.free += n
	return nil
}

// put adds credit for any queue, first to those who wait. Mu must be held.
func (c *credit) put(n int) (fed []*waiter) {
	for i := range c.waiting {
		if n == 0 || c.blocked {
			break
		}
		if s := &c.waiting[i]; !s.granted {
			s.granted = true
			fed = append(fed, s.waiter)
			n--
		}
	}
	c.any += n
	return fed
}

// take removes a waiter from those that wait, and returns what was kept for it.
// Mu must be held.
func (c *credit) take(t *waiter) int {
	for i := range c.waiting {
		if c.waiting[i].waiter == t {
			granted := c.waiting[i].granted
			c.waiting = slices.Delete(c.waiting, i, i+1)
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
func (c *credit) reserve(t *waiter, n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.any += c.take(t)
	if c.blocked {
		c.wait(t)
		return 0
	}
	own := 0
	if t.own != nil {
		if own = min(n, t.own.free); own > 0 {
			t.own.free -= own
			t.own.used += own
		}
	}
	some := min(n-own, c.any, max(1, c.any/(1+len(c.waiting))))
	c.any -= some
	if own+some == 0 && t.reserved == 0 { // not when it is this waiter that holds it all
		c.wait(t)
	}
	return own + some
}

// wait remembers a waiter that has to be told of credit that comes back. Mu
// must be held.
func (c *credit) wait(t *waiter) {
	if !slices.ContainsFunc(c.waiting, func(s creditWait) bool { return s.waiter == t }) {
		c.waiting = append(c.waiting, creditWait{waiter: t})
	}
}

// refund gives back what was reserved and not used, or what was used and is
// free again. It returns waiters that waited for it.
func (c *credit) refund(t *waiter, n int) (fed []*waiter) {
	if n <= 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	own := 0
	if t.own != nil {
		if own = min(n, t.own.used); own > 0 {
			t.own.used -= own
			t.own.free += own
			if c.take(t) > 0 { // it need not wait any more
				n++
			}
			fed = append(fed, t)
		}
	}
	return append(fed, c.put(n-own)...)
}

// has says whether the waiter can take anything; if not, it is told later.
func (c *credit) has(t *waiter) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.blocked && (c.any > 0 || t.own != nil && t.own.free > 0) {
		return true
	}
	c.wait(t)
	return false
}

// block keeps credit from being used, or lets it be used again; it returns
// waiters that waited for that.
func (c *credit) block(blocked bool) (fed []*waiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.blocked = blocked; blocked {
		return nil
	}
	for _, s := range c.waiting {
		if s.granted {
			c.any++
		}
		fed = append(fed, s.waiter)
	}
	c.waiting = nil
	return fed
}

// forget takes a waiter that has left out of those that wait. It returns waiters
// that what was kept for it is of use to.
func (c *credit) forget(t *waiter) (fed []*waiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.put(c.take(t))
}
