package transaction

import (
	"slices"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
)

// distribute gives replies and leases to whom they belong, and tells how long until
// the next transaction without a reason.
func (d *Dispatcher) distribute(b *batch, r *workqueue.Result, began time.Time) time.Duration {
	d.queues.History.Record(d.Name, b.authors(), &b.tx, r)
	if r.Corrected != nil {
		d.Queue.Step.Store(r.Corrected)
	}
	if d.unresolved {
		d.confirm(b)
	}
	// The transaction was done after it began: what is left of a lease by the server's
	// clock is no more than the store leaves it.
	d.ClockAhead = d.queues.Clock(began) - r.Now
	for _, c := range b.calls {
		c.Now, c.Via = r.Now, d
		if c.folded == nil {
			c.Replies = r.Replies[c.first : c.first+len(c.Ops) : c.first+len(c.Ops)]
		} else if c.folded.replies = r.Replies; !c.ReadsReplies {
			c.Unfold()
		}
		d.notice(c)
		c.Done(c)
	}
	for first := 0; first < len(r.Leases); {
		last := first + 1
		for last < len(r.Leases) && r.Leases[last].Take == r.Leases[first].Take {
			last++
		}
		some, t := r.Leases[first:last], b.waiters[r.Leases[first].Take]
		first = last
		if n := d.admit(b, t, len(some)); n < len(some) {
			d.Release(some[n:])
			some = some[:n]
		}
		d.Metrics.Leased(r.Now, some)
		if len(some) == 0 {
			continue
		}
		if t.Deliver(d, some, r.Now) {
			t.granted += len(some)
		} else {
			d.Release(some)
		}
	}
	waits := d.requeue(b, r.Counts.Ready, len(r.Leases) > 0, nil)

	next := time.Hour
	if waits {
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
		next = min(next, d.Queue.Stored.Config().MaxLease/2)
	}
	return min(next, sweepIn(&b.tx, r), d.auditIn(r.Counts.Processing))
}

// sweepIn is how long until a transaction should free what is kept for a time only: a
// transaction with operations does not tell, and is asked after.
func sweepIn(t *workqueue.Transaction, r *workqueue.Result) time.Duration {
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
func (d *Dispatcher) confirm(b *batch) {
	sure := false
	kept := b.calls[:0]
	for _, c := range b.calls {
		if !gates(c.Ops) {
			kept = append(kept, c)
			continue
		}
		if sure = c.confirmed; sure {
			kept = append(kept, c)
			continue
		}
		c.confirmed = true
		d.Submit(c)
	}
	clear(b.calls[len(kept):])
	b.calls = kept
	d.unresolved = !sure
}

// Later has a waker woken when the transaction has been dealt out, so that all it
// was given leaves together.
func (d *Dispatcher) Later(w Waker) { d.woken = append(d.woken, w) }

func (d *Dispatcher) wakeAll() {
	for i, w := range d.woken {
		w.Wake()
		d.woken[i] = nil
	}
	d.woken = d.woken[:0]
}

// requeue ends the waiters' part in a transaction: credit that was not used goes back,
// and they wait on or are finished. It reports whether any waits.
func (d *Dispatcher) requeue(b *batch, ready int, leased bool, err error) bool {
	d.mu.Lock()
	if d.failing && err == nil {
		d.requested = true // now for the waiters
	}
	d.ready, d.failing = ready, err != nil
	var unblocked []*Waiter
	served := 0
	kept := d.waiters[:0]
	for i, t := range d.waiters {
		if !t.inTransaction && !t.final && !t.leaving && !(t.Single && err != nil) {
			kept = append(kept, t)
			continue
		}
		asked, got := t.reserved, t.granted
		t.inTransaction, t.reserved, t.granted = false, 0, 0
		unblocked = append(unblocked, t.Credit.Refund(t, asked-got)...)
		if got > 0 {
			served = i + 1
		}
		over := t.leaving || t.Single && (got > 0 || t.Once || err != nil) || t.final && ready == 0 && err == nil
		switch {
		case over:
			t.queued, t.gone = false, true
			unblocked = append(unblocked, t.Credit.forget(t)...)
			b.finished = append(b.finished, t)
		case t.Credit.has(t) || t.final:
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
	waits := len(d.waiters) > 0
	if ready > 0 && leased && waits {
		d.requested = true
	}
	d.mu.Unlock()
	for _, t := range b.finished {
		t.Finish(err)
	}
	RejoinAll(unblocked)
	return waits
}

// Release gives leases back that nobody was there to take.
func (d *Dispatcher) Release(leases []workqueue.Lease) {
	c := &Call{Done: func(*Call) {}}
	for _, l := range leases {
		c.Ops = append(c.Ops, workqueue.Op{Kind: workqueue.OpSettle, Key: l.Key, Token: l.Token, Outcome: workqueue.Release})
	}
	d.Submit(c)
}
