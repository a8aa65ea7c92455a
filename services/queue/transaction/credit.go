package transaction

import (
	"slices"
	"sync"
)

// Credit is how many keys a worker can take: of each queue by itself, and of
// any queue. It is shared by the waiters of one stream, or of one Get.
type Credit struct {
	mu      sync.Mutex
	Any     int  // guarded by mu, as is all that follows
	blocked bool // the worker does not read what it was given
	// waiting wanted credit when there was none, the longest waiting first. Of
	// what comes back each is granted one before it can be taken by others, so
	// that no queue and no partition keeps another waiting.
	waiting []creditWait
}

type creditWait struct {
	waiter  *Waiter
	granted bool // one is reserved for it, and it was notified
}

// QueueCredit is a stream's credit for one queue alone. Guarded by the credit's mu.
type QueueCredit struct {
	free int
	used int // reserved or leased
}

// Give adds credit, for one queue or, without one, for any. It returns waiters
// that waited for it.
func (c *Credit) Give(p *QueueCredit, n int) (unblocked []*Waiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p == nil {
		return c.put(n)
	}
	p.free += n
	return nil
}

// put adds credit for any queue, first to those who wait. Mu must be held.
func (c *Credit) put(n int) (unblocked []*Waiter) {
	for i := range c.waiting {
		if n == 0 || c.blocked {
			break
		}
		if s := &c.waiting[i]; !s.granted {
			s.granted = true
			unblocked = append(unblocked, s.waiter)
			n--
		}
	}
	c.Any += n
	return unblocked
}

// take removes a waiter from those that wait, and returns what was kept for it.
// Mu must be held.
func (c *Credit) take(t *Waiter) int {
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
func (c *Credit) reserve(t *Waiter, n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Any += c.take(t)
	if c.blocked {
		c.wait(t)
		return 0
	}
	own := 0
	if t.Own != nil {
		if own = min(n, t.Own.free); own > 0 {
			t.Own.free -= own
			t.Own.used += own
		}
	}
	some := min(n-own, c.Any, max(1, c.Any/(1+len(c.waiting))))
	c.Any -= some
	if own+some == 0 && t.reserved == 0 { // not when it is this waiter that holds it all
		c.wait(t)
	}
	return own + some
}

// wait remembers a waiter that is to be notified of credit that comes back. Mu
// must be held.
func (c *Credit) wait(t *Waiter) {
	if !slices.ContainsFunc(c.waiting, func(s creditWait) bool { return s.waiter == t }) {
		c.waiting = append(c.waiting, creditWait{waiter: t})
	}
}

// Refund gives back what was reserved and not used, or what was used and is
// free again. It returns waiters that waited for it.
func (c *Credit) Refund(t *Waiter, n int) (unblocked []*Waiter) {
	if n <= 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	own := 0
	if t.Own != nil {
		if own = min(n, t.Own.used); own > 0 {
			t.Own.used -= own
			t.Own.free += own
			if c.take(t) > 0 { // it need not wait any more
				n++
			}
			unblocked = append(unblocked, t)
		}
	}
	return append(unblocked, c.put(n-own)...)
}

// has says whether the waiter can take anything; if not, it is notified later.
func (c *Credit) has(t *Waiter) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.blocked && (c.Any > 0 || t.Own != nil && t.Own.free > 0) {
		return true
	}
	c.wait(t)
	return false
}

// CanTake says whether a waiter has credit, also where a transaction has reserved it.
func (d *Dispatcher) CanTake(t *Waiter) bool {
	d.mu.Lock()
	reserved := t.reserved > 0
	d.mu.Unlock()
	t.Credit.mu.Lock()
	defer t.Credit.mu.Unlock()
	return !t.Credit.blocked && (reserved || t.Credit.Any > 0 || t.Own != nil && t.Own.free > 0)
}

// Block keeps credit from being used, or lets it be used again; it returns
// waiters that waited for that.
func (c *Credit) Block(blocked bool) (unblocked []*Waiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.blocked = blocked; blocked {
		return nil
	}
	for _, s := range c.waiting {
		if s.granted {
			c.Any++
		}
		unblocked = append(unblocked, s.waiter)
	}
	c.waiting = nil
	return unblocked
}

// forget takes a waiter that has left out of those that wait. It returns waiters
// that what was kept for it is of use to.
func (c *Credit) forget(t *Waiter) (unblocked []*Waiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.put(c.take(t))
}
