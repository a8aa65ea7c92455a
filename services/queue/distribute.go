package queue

import (
	"slices"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
)

// distribute gives replies and leases to whom they belong, and tells how long until
// the next transaction without a reason.
func (d *dispatcher) distribute(b *batch, r *workqueue.Result, began time.Time) time.Duration {
	d.queues.History.Record(d.name, b.authors(), &b.turn, r)
	if d.unresolved {
		d.confirm(b)
	}
	// The transaction was done after it began: what is left of a lease by the server's
	// clock is no more than the store leaves it.
	d.ahead = d.queues.clock(began) - r.Now
	for _, c := range b.calls {
		c.now, c.via = r.Now, d
		if c.folded == nil {
			c.replies = r.Replies[c.first : c.first+len(c.ops) : c.first+len(c.ops)]
		} else if c.folded.replies = r.Replies; !c.reads {
			c.unfold()
		}
		d.notice(c)
		c.done(c)
	}
	for first := 0; first < len(r.Leases); {
		last := first + 1
		for last < len(r.Leases) && r.Leases[last].Take == r.Leases[first].Take {
			last++
		}
		some, t := r.Leases[first:last], b.waiters[r.Leases[first].Take]
		first = last
		if n := d.admit(b, t, len(some)); n < len(some) {
			d.release(some[n:])
			some = some[:n]
		}
		d.metrics.Leased(r.Now, some)
		if len(some) == 0 {
			continue
		}
		if t.deliver(d, some, r.Now) {
			t.got += len(some)
		} else {
			d.release(some)
		}
	}
	hungry := d.requeue(b, r.Counts.Ready, len(r.Leases) > 0, nil)

	next := time.Hour
	if hungry {
		next = d.queues.FallbackEvery
		if b.next > 0 && r.Counts.Ready > 0 {
			next = min(next, b.next)
		}
	}
	if r.NextDue != 0 {
		due := time.Duration(r.NextDue-r.Now)*time.Microsecond - time.Since(began)
		next = min(next, max(due, 0)+100*time.Microsecond)
		// A step of the store's clock is found out by transactions, before a server that has
		// just come takes the time for the right one: after one longest lease.
		next = min(next, d.of.of.Config().MaxLease/2)
	}
	return min(next, sweepIn(&b.turn, r), d.auditIn(r.Counts.Processing))
}

// sweepIn is how long until a transaction should free what is kept for a time only: a
// transaction with operations does not tell, and is asked after.
func sweepIn(t *workqueue.Turn, r *workqueue.Result) time.Duration {
	const ask, most, least = time.Minute, time.Hour, 100 * time.Millisecond
	switch {
	case len(t.Ops) > 0:
		return ask
	case r.NextSweep == 0:
		return most
	}
	return max(time.Duration(r.NextSweep-r.Now)*time.Microsecond, least)
}

// gates says that operations open, close, pause or resume the queue.
func gates(ops []workqueue.Op) bool {
	for i := range ops {
		switch ops[i].Kind {
		case workqueue.OpClose, workqueue.OpOpen, workqueue.OpPause, workqueue.OpResume:
			return true
		}
	}
	return false
}

// confirm has calls that open, close, pause or resume the queue done once more
// before they are answered: a transaction whose outcome is unknown may have been read
// by the store after them, but not after a transaction that was sent since.
func (d *dispatcher) confirm(b *batch) {
	sure := false
	kept := b.calls[:0]
	for _, c := range b.calls {
		if !gates(c.ops) {
			kept = append(kept, c)
			continue
		}
		if sure = c.confirmed; sure {
			kept = append(kept, c)
			continue
		}
		c.confirmed = true
		d.submit(c)
	}
	clear(b.calls[len(kept):])
	b.calls = kept
	d.unresolved = !sure
}

// later has a waker woken when the transaction has been dealt out, so that all it
// was given leaves together.
func (d *dispatcher) later(w waker) { d.woken = append(d.woken, w) }

func (d *dispatcher) wakeAll() {
	for i, w := range d.woken {
		w.wakeUp()
		d.woken[i] = nil
	}
	d.woken = d.woken[:0]
}

// requeue ends the waiters' part in a transaction: credit that was not used goes back,
// and they wait on or are finished. It reports whether any waits.
func (d *dispatcher) requeue(b *batch, ready int, leased bool, err error) bool {
	d.mu.Lock()
	if d.failing && err == nil {
		d.requested = true // now for the waiters
	}
	d.ready, d.failing = ready, err != nil
	var starved []*waiter
	served := 0
	kept := d.waiters[:0]
	for i, t := range d.waiters {
		if !t.inTransaction && !t.final && !t.leaving && !(t.single && err != nil) {
			kept = append(kept, t)
			continue
		}
		asked, got := t.reserved, t.got
		t.inTransaction, t.reserved, t.got = false, 0, 0
		starved = append(starved, t.credit.refund(t, asked-got)...)
		if got > 0 {
			served = i + 1
		}
		over := t.leaving || t.single && (got > 0 || t.once || err != nil) || t.final && ready == 0 && err == nil
		switch {
		case over:
			t.queued, t.gone = false, true
			starved = append(starved, t.credit.forget(t)...)
			b.finished = append(b.finished, t)
		case t.credit.has(t) || t.final:
			kept = append(kept, t)
		default:
			t.queued = false
		}
	}
	clear(d.waiters[len(kept):])
	d.waiters = kept
	if served > 0 && served < len(kept) { // the others first next time
		d.waiters = slices.Concat(kept[served:], kept[:served])
	}
	hungry := len(d.waiters) > 0
	if ready > 0 && leased && hungry {
		d.requested = true
	}
	d.mu.Unlock()
	for _, t := range b.finished {
		t.finish(err)
	}
	rejoinAll(starved)
	return hungry
}

// release gives leases back that nobody was there to take.
func (d *dispatcher) release(leases []workqueue.Lease) {
	c := &call{done: func(*call) {}}
	for _, l := range leases {
		c.ops = append(c.ops, workqueue.Op{Kind: workqueue.OpSettle, Key: l.Key, Token: l.Token, Outcome: workqueue.Release})
	}
	d.submit(c)
}
