package queue

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

// call is operations that belong together: they go into one transaction, in order.
type call struct {
	ops     []workqueue.Op
	replies []workqueue.Reply // one per operation, when err is nil
	failed  []error           // per operation, when some partitions failed
	now     int64             // the store's clock at the transaction
	err     error
	by      string      // session that asked, for the history; empty for none
	done    func(*call) // called once by the dispatcher; must not block
	reads   bool        // done uses reply, not replies
	via     *dispatcher // who calls done, when a transaction was done

	confirmed bool    // done once, unresolved
	first     int     // place of the first operation in the transaction
	folded    *folded // set when some operations became one with others
}

// waker is told at the end of a transaction that it was given something.
type waker interface{ wakeUp() }

// dispatcher runs the transactions of one partition of a queue.
type dispatcher struct {
	name    string
	queues  *queues
	of      *lines
	part    int
	q       engine.Partition
	metrics *metrics.Queue
	signal  chan struct{} // holds one token when there is a reason to look

	mu        sync.Mutex
	pending   []*call   // guarded by mu, as is all that follows
	waiting   int       // operations in pending
	waiters   []*waiter // those that wait for keys, the next one first
	requested bool      // there is a reason for a transaction beside pending
	ready     int       // keys ready after the last transaction
	failing   bool      // the last transaction failed
	began     time.Time // the transaction under way; zero for none
	ended     error     // why there are no more transactions

	// Of the dispatcher's own goroutine.
	ahead      int64 // what the server's clock was ahead of the store's before the transaction was sent
	woken      []waker
	tats       []float64 // of the limiter's buckets while the first partition is away: when the next token is there
	throttle   float64   // the same of the dispatch limiter
	clock      int64     // the store's, when it was heard of last
	lastHeard  time.Time // zero for never
	unresolved bool      // a transaction that opens, closes, pauses or resumes may be applied yet
	audited    time.Time // when an audit was put into a transaction last
	auditAt    int       // where the next one goes on
	holds      bool      // keys were held after the last transaction
}

func newDispatcher(l *lines, part int, p engine.Partition) *dispatcher {
	return &dispatcher{name: l.name, queues: l.queues, of: l, part: part, q: p, metrics: l.metrics, signal: make(chan struct{}, 1), requested: true, audited: time.Now()}
}

func (d *dispatcher) wakeUp() {
	select {
	case d.signal <- struct{}{}:
	default:
	}
}

// submit hands a call to the next transaction; its done is called when it is over, or
// at once when too many operations wait already: what ends or extends leases
// is never refused.
func (d *dispatcher) submit(c *call) {
	d.mu.Lock()
	if d.ended != nil {
		c.err = d.ended
		d.mu.Unlock()
		c.done(c)
		return
	}
	if d.waiting+len(c.ops) > d.queues.MaxPending && !endsLeases(c.ops) {
		d.mu.Unlock()
		d.metrics.Overflows.Inc()
		c.err = wire.ErrOverload
		c.done(c)
		return
	}
	d.pending = append(d.pending, c)
	d.waiting += len(c.ops)
	d.mu.Unlock()
	d.wakeUp()
}

// offer puts a waiter in line, if it is not there, and has the queue looked at.
func (d *dispatcher) offer(t *waiter) {
	d.join(t)
	d.request()
}

// join puts a waiter in line, if it is not there, for the next transaction.
func (d *dispatcher) join(t *waiter) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !t.queued && !t.gone {
		t.queued = true
		d.waiters = append(d.waiters, t)
	}
}

// withdraw takes a waiter out of line permanently. It reports false when a transaction may be
// leasing for it right now: its finish is then still to come.
func (d *dispatcher) withdraw(t *waiter) bool {
	defer func(fed []*waiter) { rejoinAll(fed) }(t.credit.forget(t))
	d.mu.Lock()
	defer d.mu.Unlock()
	t.gone = true
	if t.inTransaction {
		t.leaving = true
		return false
	}
	if t.queued {
		t.queued = false
		d.waiters = slices.DeleteFunc(d.waiters, func(o *waiter) bool { return o == t })
	}
	return true
}

// lastTry lets a waiter have one more transaction if there is something ready or a
// transaction is under way. Otherwise it leaves the line, is not finished, and
// lastCall reports false.
func (d *dispatcher) lastTry(t *waiter) bool {
	d.mu.Lock()
	stays := t.gone || t.inTransaction || d.ready > 0
	t.once = true
	d.mu.Unlock()
	if !stays {
		return !d.withdraw(t)
	}
	d.offer(t)
	return true
}

// finalize lets a waiter have what is ready and then finishes it.
func (d *dispatcher) finalize(t *waiter) {
	d.mu.Lock()
	t.final = true
	d.mu.Unlock()
	d.offer(t)
}

// serves says that a transaction under way may lease for a waiter.
func (d *dispatcher) serves(t *waiter) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return t.inTransaction || t.leaving
}

// request asks for a transaction although nobody here has a reason.
func (d *dispatcher) request() {
	d.mu.Lock()
	d.requested = true
	d.mu.Unlock()
	d.wakeUp()
}

// run does transactions until ctx ends, and then answers what is left with an error.
func (d *dispatcher) run(ctx context.Context) {
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
		d.metrics.Transaction(len(b.turn.Ops), time.Since(began), d.of.counted(d.part, r))
		if err != nil {
			d.metrics.Failed(err)
			d.failed(&b, err)
			d.wakeAll()
			if errors.Is(err, engine.ErrDeleted) {
				d.queues.drop(d.of, err)
			}
			pause = min(max(2*pause, 20*time.Millisecond), time.Second)
			timer.Reset(pause)
			continue
		}
		pause, d.clock, d.lastHeard = 0, r.Now, time.Now()
		if len(b.turn.Ops)+len(b.turn.Takes) > 0 {
			d.of.used.Store(began.UnixNano())
		}
		next := d.distribute(&b, r, began)
		d.wakeAll()
		timer.Reset(next)
	}
}

// endedWith is why there are no more transactions, nil while there are.
func (d *dispatcher) endedWith() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ended
}

func (d *dispatcher) due() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.requested || len(d.pending) > 0
}

// failed ends a transaction that was not done.
func (d *dispatcher) failed(b *batch, err error) {
	unknown := errors.Is(err, engine.ErrUnknown)
	for _, c := range b.calls {
		d.unresolved = d.unresolved || unknown && gates(c.ops)
		c.err = err
		c.done(c)
	}
	d.requeue(b, 0, false, err)
}

// stop answers everything that waits and what still comes: the service is going
// away, or the queue was deleted.
func (d *dispatcher) stop() {
	why := d.of.ended()
	d.mu.Lock()
	d.ended = why
	calls, takers := d.pending, d.waiters
	d.pending, d.waiters = nil, nil
	d.mu.Unlock()
	for _, c := range calls {
		c.err = why
		c.done(c)
	}
	for _, t := range takers {
		t.finish(why)
	}
	d.wakeAll()
}
