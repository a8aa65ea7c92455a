package queue

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/telemetry"
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
	name string
	svc  *Service
	of   *lines
	part int
	q    engine.Partition
	line *line
	wake chan struct{} // holds one token when there is a reason to look

	mu      sync.Mutex
	pending []*call  // guarded by mu, as is all that follows
	waiting int      // operations in pending
	takers  []*taker // those that wait for keys, the next one first
	look    bool     // there is a reason for a turn beside pending
	ready   int      // keys ready after the last turn
	failing bool     // the last turn failed

	// Of the dispatcher's own goroutine.
	woken []waker
	doubt bool // a turn that opens, closes, pauses or resumes may be applied yet
}

func newDispatcher(l *lines, part int, p engine.Partition) *dispatcher {
	return &dispatcher{name: l.name, svc: l.svc, of: l, part: part, q: p, line: l.line, wake: make(chan struct{}, 1), look: true}
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
	if d.waiting+len(c.ops) > d.svc.cfg.MaxPending && !endsLeases(c.ops) {
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
		d.collect(&b)
		began := time.Now()
		r, err := d.turn(ctx, &b)
		d.line.turn(len(b.turn.Ops), time.Since(began), d.of.counted(d.part, r))
		if err != nil {
			d.line.failed(err)
			d.failed(&b, err)
			d.tell()
			pause = min(max(2*pause, 20*time.Millisecond), time.Second)
			timer.Reset(pause)
			continue
		}
		pause = 0
		next := d.deal(&b, r, began)
		d.tell()
		timer.Reset(next)
	}
}

func (d *dispatcher) due() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.look || len(d.pending) > 0
}

// batch is one turn in the making.
type batch struct {
	turn   workqueue.Turn
	calls  []*call
	takers []*taker // one per Take, repeats possible
	gone   []*taker
	fold   fold
	next   time.Duration // until tokens for the dispatch limiter are there; zero for none awaited
}

const (
	// share is how many leases one taker is offered before it is the next one's turn.
	share = 16
	// spare is how many leases are asked for beyond what is known to be ready.
	spare = 32
)

// collect takes what goes into the next turn.
func (d *dispatcher) collect(b *batch) {
	clear(b.turn.Ops)
	clear(b.calls)
	clear(b.takers)
	b.turn.Ops, b.turn.Takes, b.calls, b.takers, b.gone = b.turn.Ops[:0], b.turn.Takes[:0], b.calls[:0], b.takers[:0], b.gone[:0]
	limit := d.svc.cfg.MaxTurn

	d.mu.Lock()
	defer d.mu.Unlock()
	d.look = false
	n := b.fold.take(&b.turn, d.pending, limit)
	b.calls = append(b.calls, d.pending[:n]...)
	for _, c := range b.calls {
		d.waiting -= len(c.ops)
	}
	d.pending = slices.Delete(d.pending, 0, n)

	left := min(limit, len(b.turn.Ops)+d.ready+max(4, spare/len(d.of.all)))
	if d.failing { // credit that may be held for long is of use elsewhere
		left = 0
	}
	for more := true; more && left > 0; {
		more = false
		for _, t := range d.takers {
			if left == 0 {
				break
			}
			most := min(share, left)
			if t.single || len(d.takers) == 1 {
				most = left
			}
			if t.single && t.inTurn {
				continue
			}
			n := t.credit.reserve(t, most)
			if n == 0 {
				continue
			}
			t.inTurn, more = true, true
			t.asked += n
			left -= n
			b.turn.Takes = append(b.turn.Takes, workqueue.Take{Holder: t.holder, Max: n, For: t.leaseFor})
			b.takers = append(b.takers, t)
		}
	}
}

// turn has one turn done. A queue whose data was lost is made again. When the
// store is full, what would make it grow is refused and the rest is done.
func (d *dispatcher) turn(ctx context.Context, b *batch) (*workqueue.Result, error) {
	if err := d.fund(ctx, b); err != nil {
		return nil, err
	}
	r, err := d.q.Turn(ctx, &b.turn)
	if errors.Is(err, engine.ErrNoQueue) {
		d.svc.log.LogAttrs(ctx, slog.LevelWarn, "queue was lost by its store and is made again", slog.String(telemetry.KeyQueue, d.name))
		if _, _, err := d.svc.engine.Configure(ctx, d.name, d.of.of.Config()); err != nil {
			return nil, err
		}
		r, err = d.q.Turn(ctx, &b.turn)
	}
	if errors.Is(err, engine.ErrFull) && len(b.calls) > 0 {
		kept := b.calls[:0]
		b.turn.Ops = b.turn.Ops[:0]
		for _, c := range b.calls {
			c.folded = nil
			if grows(c.ops) {
				c.err = err
				c.done(c)
				continue
			}
			kept = append(kept, c)
			c.first = len(b.turn.Ops)
			b.turn.Ops = append(b.turn.Ops, c.ops...)
		}
		b.calls = kept
		r, err = d.q.Turn(ctx, &b.turn)
	}
	d.spend(b, r, err)
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
		case workqueue.OpAdd, workqueue.OpSave, workqueue.OpExpect, workqueue.OpBackoffNext:
			return true
		}
	}
	return false
}

// deal gives replies and leases to whom they belong, and tells how long until
// the next turn without a reason.
func (d *dispatcher) deal(b *batch, r *workqueue.Result, began time.Time) time.Duration {
	d.svc.history.turn(d.name, b.calls, &b.turn, r)
	if d.doubt {
		d.confirm(b)
	}
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
		some, t := r.Leases[first:last], b.takers[r.Leases[first].Take]
		d.line.leased(r.Now, some)
		if t.deliver(d, some, r.Now) {
			t.got += len(some)
		} else {
			d.release(some)
		}
		first = last
	}
	hungry := d.relieve(b, r.Counts.Ready, len(r.Leases) > 0, nil)

	next := time.Hour
	if hungry {
		next = d.svc.cfg.FallbackEvery
		if b.next > 0 && r.Counts.Ready > 0 {
			next = min(next, b.next)
		}
	}
	if r.NextDue != 0 {
		due := time.Duration(r.NextDue-r.Now)*time.Microsecond - time.Since(began)
		next = min(next, max(due, 0)+100*time.Microsecond)
	}
	return next
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
// before they are answered: a turn whose outcome is unknown may have been read
// by the store after them, but not after a turn that was sent since.
func (d *dispatcher) confirm(b *batch) {
	sure := false
	kept := b.calls[:0]
	for _, c := range b.calls {
		if !gates(c.ops) {
			kept = append(kept, c)
			continue
		}
		if sure = c.again; sure {
			kept = append(kept, c)
			continue
		}
		c.again = true
		d.submit(c)
	}
	clear(b.calls[len(kept):])
	b.calls = kept
	d.doubt = !sure
}

// later has a waker nudged when the turn has been dealt out, so that all it
// was given leaves together.
func (d *dispatcher) later(w waker) { d.woken = append(d.woken, w) }

func (d *dispatcher) tell() {
	for i, w := range d.woken {
		w.nudge()
		d.woken[i] = nil
	}
	d.woken = d.woken[:0]
}

// relieve ends the takers' part in a turn: credit that was not used goes back,
// and they wait on or are finished. It reports whether any waits.
func (d *dispatcher) relieve(b *batch, ready int, leased bool, err error) bool {
	d.mu.Lock()
	if d.failing && err == nil {
		d.look = true // now for the takers
	}
	d.ready, d.failing = ready, err != nil
	var starved []*taker
	served := 0
	kept := d.takers[:0]
	for i, t := range d.takers {
		if !t.inTurn && !t.final && !t.leaving {
			kept = append(kept, t)
			continue
		}
		asked, got := t.asked, t.got
		t.inTurn, t.asked, t.got = false, 0, 0
		starved = append(starved, t.credit.refund(t, asked-got)...)
		if got > 0 {
			served = i + 1
		}
		over := t.leaving || t.single && (got > 0 || t.once || err != nil) || t.final && ready == 0 && err == nil
		switch {
		case over:
			t.inLine, t.gone = false, true
			starved = append(starved, t.credit.forget(t)...)
			b.gone = append(b.gone, t)
		case t.credit.has(t) || t.final:
			kept = append(kept, t)
		default:
			t.inLine = false
		}
	}
	clear(d.takers[len(kept):])
	d.takers = kept
	if served > 0 && served < len(kept) { // the others first next time
		d.takers = slices.Concat(kept[served:], kept[:served])
	}
	hungry := len(d.takers) > 0
	if ready > 0 && leased && hungry {
		d.look = true
	}
	d.mu.Unlock()
	for _, t := range b.gone {
		t.finish(err)
	}
	callAll(starved)
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

// stop answers everything that waits; the service is going away.
func (d *dispatcher) stop() {
	d.mu.Lock()
	calls, takers := d.pending, d.takers
	d.pending, d.takers = nil, nil
	d.mu.Unlock()
	for _, c := range calls {
		c.err = errStopping
		c.done(c)
	}
	for _, t := range takers {
		t.finish(errStopping)
	}
	d.tell()
}
