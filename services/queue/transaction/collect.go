package transaction

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/history"
)

// batch is one transaction in the making.
type batch struct {
	tx       workqueue.Transaction
	calls    []*Call
	waiters  []*Waiter // one per Take, repeats possible
	finished []*Waiter
	fold     fold
	who      []history.Author
	next     time.Duration // until tokens for the dispatch limiter are there; zero for none awaited

	fundedByFirst bool // its tokens are the first partition's

	// Guarded by the dispatcher's mu.
	over bool // the transaction is done
	lent bool // it takes long, and its waiters' credit is of use elsewhere meanwhile
}

// authors are those who asked for the operations of the transaction.
func (b *batch) authors() []history.Author {
	b.who = b.who[:0]
	for _, c := range b.calls {
		b.who = append(b.who, history.Author{Session: c.Session, First: c.first, Count: c.ownOps()})
	}
	return b.who
}

const (
	// share is how many leases one waiter is offered before the next one is served.
	share = 16
	// spare is how many leases are asked for beyond what is known to be ready.
	spare = 32
)

// collect takes what goes into the next transaction.
func (d *Dispatcher) collect(b *batch) {
	clear(b.tx.Ops)
	clear(b.calls)
	clear(b.waiters)
	b.tx.Ops, b.tx.Takes, b.calls, b.waiters, b.finished = b.tx.Ops[:0], b.tx.Takes[:0], b.calls[:0], b.waiters[:0], b.finished[:0]
	limit := d.queues.MaxTransaction

	d.mu.Lock()
	defer d.mu.Unlock()
	b.over, b.lent = false, false
	d.requested = false
	n := b.fold.take(&b.tx, d.pending, limit)
	b.calls = append(b.calls, d.pending[:n]...)
	for _, c := range b.calls {
		d.waiting -= len(c.Ops)
	}
	d.pending = slices.Delete(d.pending, 0, n)

	left := min(limit, len(b.tx.Ops)+d.ready+max(4, spare/len(d.Queue.Partitions)))
	if d.failing { // credit that may be held for long is of use elsewhere
		left = 0
	}
	for more := true; more && left > 0; {
		more = false
		for _, t := range d.waiters {
			if left == 0 {
				break
			}
			most := min(share, left)
			if t.Single || len(d.waiters) == 1 {
				most = left
			}
			if t.Single && t.inTransaction {
				continue
			}
			n := t.Credit.reserve(t, most)
			if n == 0 {
				continue
			}
			t.inTransaction, more = true, true
			t.reserved += n
			left -= n
			b.tx.Takes = append(b.tx.Takes, workqueue.Take{Holder: t.Holder, Max: n, For: t.LeaseFor})
			b.waiters = append(b.waiters, t)
		}
	}
}

// lendCredit gives the credit of a transaction's waiters back while the transaction takes long,
// so that a partition that does not answer keeps no other from handing out keys. The function
// it returns must be called when the transaction is over.
func (d *Dispatcher) lendCredit(b *batch) (over func()) {
	d.mu.Lock()
	d.began = time.Now()
	d.mu.Unlock()
	timer := time.AfterFunc(PartitionTimeout, func() {
		var unblocked []*Waiter
		d.mu.Lock()
		if !b.over {
			b.lent = true
			for _, t := range b.waiters {
				unblocked = append(unblocked, t.Credit.Refund(t, t.reserved)...)
				t.reserved = 0
			}
		}
		d.mu.Unlock()
		RejoinAll(unblocked)
	})
	return func() {
		timer.Stop()
		d.mu.Lock()
		b.over, d.began = true, time.Time{}
		d.mu.Unlock()
	}
}

// admit is how many of the leases of a transaction whose credit was lent its waiter can
// take now.
func (d *Dispatcher) admit(b *batch, t *Waiter, leases int) int {
	if !b.lent {
		return leases
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for n < leases {
		more := t.Credit.reserve(t, leases-n)
		if more == 0 {
			break
		}
		t.reserved, n = t.reserved+more, n+more
	}
	return n
}

// transact has one transaction done. A queue whose data was lost is made again, one that
// was deleted is not. When the
// store is full or evicts keys, what would make it grow is refused and the rest
// is done.
func (d *Dispatcher) transact(ctx context.Context, b *batch) (*workqueue.Result, error) {
	if err := d.fundTokens(ctx, b); err != nil {
		return nil, err
	}
	r, err := d.q.Apply(ctx, &b.tx)
	if errors.Is(err, engine.ErrDeleted) {
		return nil, err
	}
	if errors.Is(err, engine.ErrNoQueue) {
		found, missing := d.queues.Engine.Open(ctx, d.Name)
		switch {
		case errors.Is(missing, engine.ErrDeleted):
			return nil, missing
		case missing == nil && len(found.Partitions()) != len(d.Queue.Partitions):
			return nil, fmt.Errorf("%w: %q, and made again", engine.ErrDeleted, d.Name)
		}
		d.queues.Log.LogAttrs(ctx, slog.LevelWarn, "queue was lost by its store and is made again", slog.String(telemetry.KeyQueue, d.Name))
		if _, _, err := d.queues.Engine.Configure(ctx, d.Name, d.Queue.Stored.Config()); err != nil {
			return nil, err
		}
		r, err = d.q.Apply(ctx, &b.tx)
	}
	if IsLimited(err) {
		d.queues.Refused(err)
	}
	if IsLimited(err) && len(b.calls) > 0 {
		kept := b.calls[:0]
		b.tx.Ops = b.tx.Ops[:0]
		for _, c := range b.calls {
			c.folded = nil
			if grows(c.Ops) {
				c.Err = err
				c.Done(c)
				continue
			}
			kept = append(kept, c)
			c.first = len(b.tx.Ops)
			b.tx.Ops = append(b.tx.Ops, c.Ops...)
		}
		b.calls = kept
		r, err = d.q.Apply(ctx, &b.tx)
	}
	d.returnTokens(b, r, err)
	return r, err
}

// endsLeases says that operations only end or extend leases, or are another
// partition's part in doing so.
func endsLeases(ops []workqueue.Op) bool {
	for i := range ops {
		switch ops[i].Kind {
		case workqueue.OpSettle, workqueue.OpExtend, workqueue.OpReserve, workqueue.OpAdmit:
		default:
			return false
		}
	}
	return true
}

func grows(ops []workqueue.Op) bool {
	for i := range ops {
		switch ops[i].Kind {
		case workqueue.OpAdd, workqueue.OpSave, workqueue.OpExpect, workqueue.OpBackoffNext, workqueue.OpPutBack:
			return true
		}
	}
	return false
}
