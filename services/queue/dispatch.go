package queue

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

// call is operations that belong together: they go into one turn, in order.
type call struct {
	ops     []workqueue.Op
	replies []workqueue.Reply // one per operation, when err is nil
	failed  []error           // per operation, when some partitions failed
	now     int64             // the store's clock at the turn
	err     error
	by      string      // session that asked, for the history; empty for none
	done    func(*call) // called once by the dispatcher; must not block
	reads   bool        // done uses reply, not replies
	via     *dispatcher // who calls done, when a turn was done

	again  bool    // done once, in doubt
	first  int     // place of the first operation in the turn
	folded *folded // set when some operations became one with others
}

// waker is told at the end of a turn that it was given something.
type waker interface{ nudge() }

// dispatcher runs the turns of one partition of a queue.
type dispatcher struct {
	name   string
	queues *queues
	of     *lines
	part   int
	q      engine.Partition
	line   *line
	wake   chan struct{} // holds one token when there is a reason to look

	mu      sync.Mutex
	pending []*call   // guarded by mu, as is all that follows
	waiting int       // operations in pending
	takers  []*taker  // those that wait for keys, the next one first
	look    bool      // there is a reason for a turn beside pending
	ready   int       // keys ready after the last turn
	failing bool      // the last turn failed
	began   time.Time // the turn under way; zero for none
	ended   error     // why there are no more turns

	// Of the dispatcher's own goroutine.
	ahead    int64 // what the server's clock was ahead of the store's before the turn was sent
	woken    []waker
	tats     []float64 // of the limiter's buckets while the first partition is away: when the next token is there
	throttle float64   // the same of the dispatch limiter
	clock    int64     // the store's, when it was heard of last
	heard    time.Time // zero for never
	doubt    bool      // a turn that opens, closes, pauses or resumes may be applied yet
	audited  time.Time // when an audit was put into a turn last
	auditAt  int       // where the next one goes on
	holds    bool      // keys were held after the last turn
}

func newDispatcher(l *lines, part int, p engine.Partition) *dispatcher {
	return &dispatcher{name: l.name, queues: l.queues, of: l, part: part, q: p, line: l.line, wake: make(chan struct{}, 1), look: true, audited: time.Now()}
}

func (d *dispatcher) nudge() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// submit hands a call to the next turn; its done is called when it is over, or
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
		d.line.shed.Inc()
		c.err = errOverload
		c.done(c)
		return
	}
	d.pending = append(d.pending, c)
	d.waiting += len(c.ops)
	d.mu.Unlock()
	d.nudge()
}

// offer puts a taker in line, if it is not there, and has the queue looked at.
func (d *dispatcher) offer(t *taker) {
	d.join(t)
	d.lookNow()
}

// join puts a taker in line, if it is not there, for the next turn.
func (d *dispatcher) join(t *taker) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !t.inLine && !t.gone {
		t.inLine = true
		d.takers = append(d.takers, t)
	}
}

// withdraw takes a taker out of line for good. It reports false when a turn may be
// leasing for it right now: its finish is then still to come.
func (d *dispatcher) withdraw(t *taker) bool {
	defer func(fed []*taker) { callAll(fed) }(t.credit.forget(t))
	d.mu.Lock()
	defer d.mu.Unlock()
	t.gone = true
	if t.inTurn {
		t.leaving = true
		return false
	}
	if t.inLine {
		t.inLine = false
		d.takers = slices.DeleteFunc(d.takers, func(o *taker) bool { return o == t })
	}
	return true
}

// lastCall lets a taker have one more turn if there is something ready or a
// turn is under way. Otherwise it leaves the line, is not finished, and
// lastCall reports false.
func (d *dispatcher) lastCall(t *taker) bool {
	d.mu.Lock()
	stays := t.gone || t.inTurn || d.ready > 0
	t.once = true
	d.mu.Unlock()
	if !stays {
		return !d.withdraw(t)
	}
	d.offer(t)
	return true
}

// finalize lets a taker have what is ready and then finishes it.
func (d *dispatcher) finalize(t *taker) {
	d.mu.Lock()
	t.final = true
	d.mu.Unlock()
	d.offer(t)
}

// serves says that a turn under way may lease for a taker.
func (d *dispatcher) serves(t *taker) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return t.inTurn || t.leaving
}

// lookNow asks for a turn although nobody here has a reason.
func (d *dispatcher) lookNow() {
	d.mu.Lock()
	d.look = true
	d.mu.Unlock()
	d.nudge()
}

// run does turns until ctx ends, and then answers what is left with an error.
func (d *dispatcher) run(ctx context.Context) {
	var b batch
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	pause := time.Duration(0) // after an error
	for {
		for !d.due() {
			select {
			case <-d.wake:
			case <-timer.C:
				d.lookNow()
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
		over := d.lend(&b)
		r, err := d.turn(ctx, &b)
		over()
		d.line.turn(len(b.turn.Ops), time.Since(began), d.of.counted(d.part, r))
		if err != nil {
			d.line.failed(err)
			d.failed(&b, err)
			d.tell()
			if errors.Is(err, engine.ErrDeleted) {
				d.queues.drop(d.of, err)
			}
			pause = min(max(2*pause, 20*time.Millisecond), time.Second)
			timer.Reset(pause)
			continue
		}
		pause, d.clock, d.heard = 0, r.Now, time.Now()
		if len(b.turn.Ops)+len(b.turn.Takes) > 0 {
			d.of.used.Store(began.UnixNano())
		}
		next := d.deal(&b, r, began)
		d.tell()
		timer.Reset(next)
	}
}

// end is why there are no more turns, nil while there are.
func (d *dispatcher) end() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ended
}

func (d *dispatcher) due() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.look || len(d.pending) > 0
}

// failed ends a turn that was not done.
func (d *dispatcher) failed(b *batch, err error) {
	unknown := errors.Is(err, engine.ErrUnknown)
	for _, c := range b.calls {
		d.doubt = d.doubt || unknown && gates(c.ops)
		c.err = err
		c.done(c)
	}
	d.relieve(b, 0, false, err)
}

// stop answers everything that waits and what still comes: the service is going
// away, or the queue was deleted.
func (d *dispatcher) stop() {
	why := d.of.gone()
	d.mu.Lock()
	d.ended = why
	calls, takers := d.pending, d.takers
	d.pending, d.takers = nil, nil
	d.mu.Unlock()
	for _, c := range calls {
		c.err = why
		c.done(c)
	}
	for _, t := range takers {
		t.finish(why)
	}
	d.tell()
}
