package workqueue

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/client"
)

// pending is what was asked for one key and is not sent yet: any number of calls,
// folded to what they come to. The zero value asks for nothing.
type pending struct {
	add     bool
	due     time.Time // the earliest of AddAfter; zero without one
	retried bool      // rate-limited at least once before forget; the earliest of those delays wins
	forget  bool
	limited int // rate-limited adds after forget: each of them counts

	// Of all adds: the highest priority, the highest revisions and the last trace.
	added    bool
	priority int
	barrier  client.Barrier
	trace    string
}

func (w *pending) empty() bool {
	return !w.add && w.due.IsZero() && !w.retried && !w.forget && w.limited == 0
}

// fold adds a call to what is asked for.
func (w *pending) fold(op client.Op, now time.Time) {
	if op.Kind != client.OpForget {
		w.of(op)
	}
	switch op.Kind {
	case client.OpAddAfter:
		if due := now.Add(op.Delay); w.due.IsZero() || due.Before(w.due) {
			w.due = due
		}
	case client.OpAddRateLimited:
		w.limited++
	case client.OpForget:
		w.retried, w.forget, w.limited = w.retried || w.limited > 0, true, 0
	default:
		w.add = true
	}
}

// of notes what comes with an add.
func (w *pending) of(op client.Op) {
	if !w.added || op.Priority > w.priority {
		w.priority = op.Priority
	}
	w.added, w.trace = true, cmp.Or(op.Trace, w.trace)
	if len(op.Barrier) == 0 {
		return
	}
	b := make(client.Barrier, len(op.Barrier))
	b.Merge(w.barrier) // the caller's stays as it is
	b.Merge(op.Barrier)
	w.barrier = b
}

// before puts back an operation that failed: what was asked for since comes after it.
func (w *pending) before(op client.Op, now time.Time) {
	switch {
	case op.Kind == client.OpAddRateLimited && w.forget:
		w.of(op)
		w.retried = true
	case op.Kind == client.OpForget && w.forget: // the later one does for both
	case op.Kind == client.OpForget:
		w.forget = true // what was rate-limited since counts from nothing
	default:
		w.fold(op, now)
	}
}

// operations takes at most most operations of a key off what is pending, in the order in which they
// must be done.
func (w *pending) operations(key string, most int, now time.Time) []client.Op {
	var ops []client.Op
	if w.retried {
		ops = append(ops, client.Op{Key: key, Kind: client.OpAddRateLimited})
	}
	if w.forget {
		ops = append(ops, client.Op{Key: key, Kind: client.OpForget})
	}
	n := min(w.limited, most)
	for range n {
		ops = append(ops, client.Op{Key: key, Kind: client.OpAddRateLimited})
	}
	late := !w.due.IsZero() && !w.due.After(now)
	if w.add || late {
		ops = append(ops, client.Op{Key: key, Kind: client.OpAdd})
	}
	if !w.due.IsZero() && !late {
		ops = append(ops, client.Op{Key: key, Kind: client.OpAddAfter, Delay: w.due.Sub(now)})
	}
	for i := range ops {
		if ops[i].Kind != client.OpForget {
			ops[i].Priority, ops[i].Barrier, ops[i].Trace = w.priority, w.barrier, w.trace
		}
	}
	left := pending{limited: w.limited - n}
	if left.limited > 0 {
		left.added, left.priority, left.barrier, left.trace = w.added, w.priority, w.barrier, w.trace
	}
	*w = left
	return ops
}

// entry is one key of an outbox.
type entry struct {
	key      string
	pending  pending
	flying   int  // operations sent and not answered; until then no more of the key is sent
	listed   bool // in ready or later
	failed   bool // one of those flying is to be sent again
	whole    bool // those flying were all that was asked for
	asked    int  // calls so far
	taken    int  // of these, those before the last sending
	answered int  // of these, those that were answered, well or not
	done     int  // of these, those that were done, or refused permanently
}

// outbox keeps what callers ask for until the service has answered it. It takes any number of
// calls without waiting, and needs memory by distinct key. It is safe for concurrent use.
type outbox struct {
	send func(op client.Op, done func(error))
	// failure receives what failed, and reports whether it is to be sent again. It is called
	// without locks.
	failure func(op client.Op, err error) (again bool)
	window  int // the most operations that are sent and not answered

	mu      sync.Mutex
	moved   sync.Cond // something below has changed
	entries map[string]*entry
	ready   []*entry // with something to send, in the order of their first call
	later   []*entry // with something that failed
	flying  int
	idle    bool // run waits for something to send
	waiting int  // calls of flush that wait
	closed  bool
}

func newOutbox(window int, send func(client.Op, func(error)), failure func(client.Op, error) bool) *outbox {
	o := &outbox{send: send, failure: failure, window: window, entries: map[string]*entry{}}
	o.moved.L = &o.mu
	return o
}

// put takes one call; false when the outbox is closed.
func (o *outbox) put(op client.Op) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return false
	}
	e := o.entries[op.Key]
	if e == nil {
		e = &entry{key: op.Key}
		o.entries[op.Key] = e
	}
	e.asked++
	e.pending.fold(op, time.Now())
	if e.flying == 0 && !e.listed {
		e.listed = true
		o.ready = append(o.ready, e)
		if o.idle {
			o.moved.Broadcast()
		}
	}
	return true
}

// mostOfAKey is how many operations of one key are sent at a time.
const mostOfAKey = 256

// run sends until the outbox is closed.
func (o *outbox) run() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for !o.closed {
		if len(o.ready) == 0 || o.flying >= o.window {
			o.idle = true
			o.moved.Wait()
			o.idle = false
			continue
		}
		e := o.ready[0]
		o.ready[0] = nil
		o.ready = o.ready[1:]
		e.listed = false
		ops := e.pending.operations(e.key, mostOfAKey, time.Now())
		e.flying, e.failed, e.whole, e.taken = len(ops), false, e.pending.empty(), e.asked
		o.flying += len(ops)
		o.mu.Unlock()
		for _, op := range ops {
			o.send(op, func(err error) { o.answer(e, op, err) })
		}
		o.mu.Lock()
	}
}

// answer takes the answer to an operation.
func (o *outbox) answer(e *entry, op client.Op, err error) {
	again := err != nil && o.failure(op, err)
	o.mu.Lock()
	defer o.mu.Unlock()
	if again && !o.closed {
		e.pending.before(op, time.Now())
		e.failed = true
	}
	e.flying--
	o.flying--
	if e.flying > 0 {
		return
	}
	if e.whole || e.failed {
		e.answered = e.taken
	}
	if e.whole && !e.failed {
		e.done = e.taken
	}
	switch {
	case e.pending.empty():
		delete(o.entries, e.key)
	case e.failed:
		e.listed = true
		o.later = append(o.later, e)
	default:
		e.listed = true
		o.ready = append(o.ready, e)
	}
	if o.waiting > 0 || o.idle && len(o.ready) > 0 && o.flying <= o.window/2 {
		o.moved.Broadcast()
	}
}

// again has what failed be sent once more.
func (o *outbox) again() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ready = append(o.ready, o.later...)
	o.later = nil
	o.moved.Broadcast()
}

// flush waits until every call so far was answered, well or not: of one key, or of all when
// key is empty.
func (o *outbox) flush(ctx context.Context, key string) error {
	return o.wait(ctx, key, func(e *entry) int { return e.answered })
}

// acknowledged waits until every call so far was done, or refused permanently.
func (o *outbox) acknowledged(ctx context.Context) error {
	return o.wait(ctx, "", func(e *entry) int { return e.done })
}

// wait waits until a count of every entry has reached the calls so far.
func (o *outbox) wait(ctx context.Context, key string, reached func(*entry) int) error {
	defer context.AfterFunc(ctx, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.moved.Broadcast()
	})()
	type target struct {
		e  *entry
		at int
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	var targets []target
	if e := o.entries[key]; e != nil {
		targets = append(targets, target{e, e.asked})
	} else if key == "" {
		for _, e := range o.entries {
			targets = append(targets, target{e, e.asked})
		}
	}
	o.waiting++
	defer func() { o.waiting-- }()
	for _, t := range targets {
		for reached(t.e) < t.at {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if o.closed {
				return client.ErrStopped
			}
			o.moved.Wait()
		}
	}
	return nil
}

// close drops what was not sent and tells failure of it.
func (o *outbox) close() {
	o.mu.Lock()
	o.closed = true
	var left []client.Op
	for _, e := range o.entries {
		left = append(left, e.pending.operations(e.key, mostOfAKey, time.Now())...)
	}
	o.moved.Broadcast()
	o.mu.Unlock()
	for _, op := range left {
		o.failure(op, errNotSent)
	}
}

var errNotSent = errors.New("workqueue: not sent before the end")
