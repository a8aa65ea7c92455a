package transaction

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/metrics"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

// Call is operations that belong together: they go into one transaction, in order.
type Call struct {
	Ops          []workqueue.Op
	Replies      []workqueue.Reply // one per operation, when Err is nil
	Failed       []error           // per operation, when some partitions failed
	Now          int64             // the store's clock at the transaction
	Err          error
	Session      string      // session that asked, for the history; empty for none
	Done         func(*Call) // called once by the dispatcher; must not block
	ReadsReplies bool        // Done uses Reply, not Replies
	Via          *Dispatcher // who calls Done, when a transaction was done

	confirmed bool    // done once, unresolved
	first     int     // place of the first operation in the transaction
	folded    *folded // set when some operations became one with others
}

// A Waker is woken at the end of a transaction that gave it something.
type Waker interface{ Wake() }

// Dispatcher runs the transactions of one partition of a queue.
type Dispatcher struct {
	Name    string
	queues  *Queues
	Queue   *Queue
	Part    int
	q       engine.Partition
	Metrics *metrics.Queue
	signal  chan struct{} // holds one token when there is a reason to look

	mu        sync.Mutex
	pending   []*Call   // guarded by mu, as is all that follows
	waiting   int       // operations in pending
	waiters   []*Waiter // those that wait for keys, the next one first
	requested bool      // there is a reason for a transaction besides pending
	ready     int       // keys ready after the last transaction
	failing   bool      // the last transaction failed
	began     time.Time // the transaction under way; zero for none
	ended     error     // why there are no more transactions

	// Of the dispatcher's own goroutine.
	ClockAhead int64 // what the server's clock was ahead of the store's before the transaction was sent
	woken      []Waker
	tats       []float64 // of the limiter's buckets while the first partition is away: when the next token is there
	throttle   float64   // the same of the dispatch limiter
	clock      int64     // the store's, when it last answered
	lastHeard  time.Time // zero for never
	unresolved bool      // a transaction that opens, closes, pauses or resumes may be applied yet
	audited    time.Time // when an audit was put into a transaction last
	auditAt    int       // where the next one goes on
	holds      bool      // keys were held after the last transaction
}

func newDispatcher(l *Queue, part int, p engine.Partition) *Dispatcher {
	return &Dispatcher{Name: l.Name, queues: l.queues, Queue: l, Part: part, q: p, Metrics: l.Metrics, signal: make(chan struct{}, 1), requested: true, audited: time.Now()}
}

// Wake has the dispatcher look at what waits. It does not block.
func (d *Dispatcher) Wake() {
	select {
	case d.signal <- struct{}{}:
	default:
	}
}

// Submit hands a call to the next transaction; its Done is called when it is over, or
// at once when too many operations wait already: what ends or extends leases
// is never refused.
func (d *Dispatcher) Submit(c *Call) {
	d.mu.Lock()
	if d.ended != nil {
		c.Err = d.ended
		d.mu.Unlock()
		c.Done(c)
		return
	}
	if d.waiting+len(c.Ops) > d.queues.MaxPending && !endsLeases(c.Ops) {
		d.mu.Unlock()
		d.Metrics.Overflows.Inc()
		c.Err = wire.ErrOverload
		c.Done(c)
		return
	}
	d.pending = append(d.pending, c)
	d.waiting += len(c.Ops)
	d.mu.Unlock()
	d.Wake()
}

// Offer puts a waiter in line, if it is not there, and has the queue looked at.
func (d *Dispatcher) Offer(t *Waiter) {
	d.Join(t)
	d.request()
}

// Join puts a waiter in line, if it is not there, for the next transaction.
func (d *Dispatcher) Join(t *Waiter) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !t.queued && !t.gone {
		t.queued = true
		d.waiters = append(d.waiters, t)
	}
}

// Withdraw takes a waiter out of line permanently. It reports false when a transaction may be
// leasing for it right now: its finish is then still to come.
func (d *Dispatcher) Withdraw(t *Waiter) bool {
	defer func(unblocked []*Waiter) { RejoinAll(unblocked) }(t.Credit.forget(t))
	d.mu.Lock()
	defer d.mu.Unlock()
	t.gone = true
	if t.inTransaction {
		t.leaving = true
		return false
	}
	if t.queued {
		t.queued = false
		d.waiters = slices.DeleteFunc(d.waiters, func(o *Waiter) bool { return o == t })
	}
	return true
}

// LastTry lets a waiter have one more transaction if there is something ready or a
// transaction is under way. Otherwise it leaves the line, is not finished, and
// lastCall reports false.
func (d *Dispatcher) LastTry(t *Waiter) bool {
	d.mu.Lock()
	stays := t.gone || t.inTransaction || d.ready > 0
	t.Once = true
	d.mu.Unlock()
	if !stays {
		return !d.Withdraw(t)
	}
	d.Offer(t)
	return true
}

// Finalize lets a waiter have what is ready and then finishes it.
func (d *Dispatcher) Finalize(t *Waiter) {
	d.mu.Lock()
	t.final = true
	d.mu.Unlock()
	d.Offer(t)
}

// Serves says that a transaction under way may lease for a waiter.
func (d *Dispatcher) Serves(t *Waiter) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return t.inTransaction || t.leaving
}

// request asks for a transaction although nobody here has a reason.
func (d *Dispatcher) request() {
	d.mu.Lock()
	d.requested = true
	d.mu.Unlock()
	d.Wake()
}

// run does transactions until ctx ends, and then answers what is left with an error.
func (d *Dispatcher) run(ctx context.Context) {
	var b batch
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	pause := time.Duration(0) // after an error
	for {
		for !d.due() {
			select {
			case <-d.signal:
			case <-timer.C:
				d.request()
			case <-ctx.Done():
				d.stop()
				return
			}
		}
		if ctx.Err() != nil {
			d.stop()
			return
		}
		d.audit()
		d.collect(&b)
		began := time.Now()
		over := d.lendCredit(&b)
		r, err := d.transact(ctx, &b)
		over()
		d.Metrics.Transaction(len(b.tx.Ops), time.Since(began), d.Queue.counted(d.Part, r))
		if err != nil {
			d.Metrics.Failed(err)
			d.failed(&b, err)
			d.wakeAll()
			if errors.Is(err, engine.ErrDeleted) {
				d.queues.Drop(d.Queue, err)
			}
			pause = min(max(2*pause, 20*time.Millisecond), time.Second)
			timer.Reset(pause)
			continue
		}
		pause, d.clock, d.lastHeard = 0, r.Now, time.Now()
		if len(b.tx.Ops)+len(b.tx.Takes) > 0 {
			d.Queue.Used.Store(began.UnixNano())
		}
		next := d.distribute(&b, r, began)
		d.wakeAll()
		timer.Reset(next)
	}
}

// EndedWith is why there are no more transactions, nil while there are.
func (d *Dispatcher) EndedWith() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ended
}

func (d *Dispatcher) due() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.requested || len(d.pending) > 0
}

// failed ends a transaction that was not done.
func (d *Dispatcher) failed(b *batch, err error) {
	unknown := errors.Is(err, engine.ErrUnknown)
	for _, c := range b.calls {
		d.unresolved = d.unresolved || unknown && gates(c.Ops)
		c.Err = err
		c.Done(c)
	}
	d.requeue(b, 0, false, err)
}

// stop answers everything that waits and what still comes: the service is going
// away, or the queue was deleted.
func (d *Dispatcher) stop() {
	why := d.Queue.Ended()
	d.mu.Lock()
	d.ended = why
	calls, waiters := d.pending, d.waiters
	d.pending, d.waiters = nil, nil
	d.mu.Unlock()
	for _, c := range calls {
		c.Err = why
		c.Done(c)
	}
	for _, t := range waiters {
		t.Finish(why)
	}
	d.wakeAll()
}
