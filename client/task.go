package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/deltaplane/deltaplane/internal/wrote"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// task is one lease in hand. Its fields are guarded by Worker.mu, except item
// and, once its reconcile has begun, context and cancel.
type task struct {
	id       leaseID
	item     Item
	context  taskContext
	cancel   context.CancelCauseFunc // nil until its reconcile begins
	received time.Time
	began    time.Time // zero until its reconcile begins
	ends     time.Time // a margin before the lease does, by our own clock
	unsure   bool      // its end is known once it has been extended
	over     bool      // its reconcile was cancelled, or its end is behind it
	lost     bool      // the server said so: there is nothing to settle
}

// taskContext is a reconcile's context. It has a deadline for those who ask;
// the worker's clock ends it.
type taskContext struct {
	context.Context
	deadline time.Time
	notes    wrote.Notes
}

// Value implements [context.Context]: clients note in it what the reconcile writes.
func (c *taskContext) Value(key any) any {
	if key == (wrote.Key{}) {
		return &c.notes
	}
	return c.Context.Value(key)
}

// Deadline implements [context.Context].
func (c *taskContext) Deadline() (time.Time, bool) { return c.deadline, true }

// cancelled ends a task's reconcile. Mu must be held.
func (t *task) cancelled(cause error) {
	t.over = true
	if t.cancel != nil {
		t.cancel(cause)
	}
}

// assign takes leases the server handed out.
func (w *Worker) assign(l *link, a *queuev1.Assign) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if l.left {
		return // the next stream did not resume them
	}
	leases := a.GetLeases()
	// A lease lost on the server's side gave it a credit we did not count.
	l.credit = max(0, l.credit-len(leases))
	slab := make([]task, len(leases))
	margin := w.margin()
	for i, lease := range leases {
		t := &slab[i]
		t.id, t.received = leaseID{lease.GetKey(), lease.GetToken()}, now
		if w.tasks[t.id] != nil {
			continue // told again after a reconnect
		}
		if w.draining {
			w.send(t.id, &Result{Outcome: OutcomeRelease})
			continue
		}
		fromLease(&t.item, lease, w.cfg.Queue)
		if us := lease.GetEndsUs(); us != 0 && !l.anchor.sent.IsZero() {
			t.ends = l.anchor.at(us).Add(-margin)
		} else {
			t.ends = now.Add(remaining(lease) - margin)
			t.unsure, l.unsure = true, true
		}
		t.item.lease, t.item.mu = t, &w.mu
		w.tasks[t.id] = t
		w.ready = append(w.ready, t)
		w.watch(t.ends)
	}
	w.dispatch()
	w.notify()
}

func remaining(l *queuev1.Lease) time.Duration {
	if us := l.GetRemainingUs(); us != 0 {
		return time.Duration(us) * time.Microsecond
	}
	return l.GetRemaining().AsDuration()
}

func (w *Worker) margin() time.Duration {
	if w.cfg.Margin > 0 {
		return w.cfg.Margin
	}
	return min(w.lease/5, 2*time.Second)
}

// dispatch begins reconciles while there are free slots. Mu must be held.
func (w *Worker) dispatch() {
	if w.pulls {
		w.hand()
		return
	}
	for {
		t := w.begin()
		if t == nil {
			return
		}
		w.handlers.Go(func() {
			for t := t; t != nil; {
				t = w.finish(t, w.reconcile(t))
			}
		})
	}
}

// begin takes the next task whose reconcile can begin, or nil. A key whose last
// reconcile, cancelled for a lost lease, has not returned yet has to wait. Mu
// must be held.
func (w *Worker) begin() *task {
	if len(w.busy) >= w.cfg.Concurrency && !w.pulls {
		return nil
	}
	for i, t := range w.ready {
		if w.busy[t.id.key] != nil || t.unsure {
			continue
		}
		if i == 0 {
			w.ready[0], w.ready = nil, w.ready[1:]
		} else {
			w.ready = slices.Delete(w.ready, i, i+1)
		}
		w.busy[t.id.key] = t
		t.began = time.Now()
		t.context.deadline = t.began.Add(w.cfg.Timeout)
		t.context.Context, t.cancel = context.WithCancelCause(w.base)
		t.context.notes.Cluster = w.cluster
		w.watch(t.context.deadline)
		if w.stopping != nil {
			t.cancelled(w.stopping)
		}
		return t
	}
	return nil
}

// watch has the clock look at the tasks at the latest at a time. Mu must be held.
func (w *Worker) watch(at time.Time) {
	if !w.next.IsZero() && !at.Before(w.next) {
		return
	}
	w.next = at
	if w.clock == nil {
		w.clock = time.AfterFunc(time.Until(at), w.tick)
		return
	}
	w.clock.Reset(time.Until(at))
}

// tick ends what has to end by the worker's own clock: leases nobody extended,
// and reconciles out of time.
func (w *Worker) tick() {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	w.next = time.Time{}
	var next time.Time
	sooner := func(at time.Time) {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	if at := w.unclaim(now); !at.IsZero() {
		sooner(at)
	}
	if at := w.nextRetry(); at.After(now) {
		sooner(at)
	} else if !at.IsZero() {
		w.notify()
	}
	for _, t := range w.tasks {
		if t.over || t.lost {
			continue
		}
		if !t.ends.After(now) {
			w.expire(t)
			continue
		}
		sooner(t.ends)
		if t.began.IsZero() {
			continue
		}
		if !t.context.deadline.After(now) {
			t.cancelled(ErrTimeout)
			continue
		}
		sooner(t.context.deadline)
	}
	if !next.IsZero() {
		w.watch(next)
	}
}

func (w *Worker) stopClock() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.clock != nil {
		w.clock.Stop()
	}
}

// expire ends a lease that nobody extended. Mu must be held.
func (w *Worker) expire(t *task) {
	t.cancelled(ErrLeaseLost)
	if i := slices.Index(w.ready, t); i >= 0 {
		w.ready = slices.Delete(w.ready, i, i+1)
		w.release(t, "lease ended before a slot was free")
		w.notify()
	}
}

// release gives back a lease whose reconcile has not begun. Mu must be held.
func (w *Worker) release(t *task, why string) {
	t.over = true
	delete(w.tasks, t.id)
	if !t.lost {
		w.send(t.id, &Result{Outcome: OutcomeRelease, Reason: why})
	}
	w.checkIdle()
}

// send puts a settlement with those to be sent. Mu must be held.
func (w *Worker) send(id leaseID, r *Result) {
	n := len(w.free)
	if n == 0 {
		slab := make([]queuev1.Settlement, 32)
		for i := range slab {
			w.free = append(w.free, &slab[i])
		}
		n = len(w.free)
	}
	s := w.free[n-1]
	w.free = w.free[:n-1]
	r.settle(s, w.cfg.Queue, id.key, id.token)
	w.outbox = append(w.outbox, s)
}

// lose cancels leases that are not held any more.
func (w *Worker) lose(refs []*queuev1.LeaseRef) {
	if len(refs) == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, ref := range refs {
		t := w.tasks[leaseID{ref.GetKey(), ref.GetToken()}]
		if t == nil || t.lost {
			continue
		}
		t.lost = true
		t.cancelled(ErrLeaseLost)
		w.tellLost(t.id.key)
		if i := slices.Index(w.ready, t); i >= 0 {
			w.ready = slices.Delete(w.ready, i, i+1)
			delete(w.tasks, t.id)
		}
	}
	w.checkIdle()
	w.notify()
}

func (w *Worker) tellLost(key string) {
	if w.cfg.OnLost != nil {
		w.cfg.OnLost(key)
	}
}

// deadline moves the end of every lease in hand that was received before the
// extension was sent, but for those that the store has not answered for: they
// end when they did.
func (w *Worker) deadline(sent, ends time.Time, unreachable []*queuev1.LeaseRef) {
	w.mu.Lock()
	defer w.mu.Unlock()
	except := make(map[leaseID]bool, len(unreachable))
	for _, ref := range unreachable {
		except[leaseID{ref.GetKey(), ref.GetToken()}] = true
	}
	ends = ends.Add(-w.margin())
	for _, t := range w.tasks {
		if t.lost || t.over || t.received.After(sent) || w.overdue(t, sent) || except[t.id] {
			continue
		}
		t.ends, t.unsure = ends, false
	}
	w.watch(ends)
	w.dispatch()
}

// orphanLease is what a lease is shortened to by the server when its stream closes.
const orphanLease = time.Second

// orphan is called when the stream broke: every lease in hand ends soon.
func (w *Worker) orphan() {
	w.mu.Lock()
	defer w.mu.Unlock()
	soon := time.Now().Add(orphanLease * 4 / 5)
	for _, t := range w.tasks {
		if !t.lost && !t.over && soon.Before(t.ends) {
			t.ends = soon
		}
	}
	w.watch(soon)
}

// overdue reports whether a reconcile ran out of its time and did not return:
// its lease is no longer extended.
func (w *Worker) overdue(t *task, now time.Time) bool {
	return !t.began.IsZero() && now.Sub(t.began) > w.cfg.Timeout
}

func (w *Worker) reconcile(t *task) Result {
	run := w.trace(t)
	if w.cfg.OnStarted != nil {
		w.cfg.OnStarted(t.item)
	}
	res, err := w.call(run.ctx, t.item)
	var cause error
	if err != nil {
		cause = context.Cause(&t.context)
	}
	res = decide(res, err, cause)
	run.end(res, err)
	if err != nil {
		w.report(run.ctx, t, res, err)
	}
	if w.cfg.OnFinished != nil {
		w.cfg.OnFinished(t.item, res.Outcome, err, time.Since(t.began))
	}
	return res
}

func (w *Worker) report(ctx context.Context, t *task, res Result, err error) {
	level := slog.LevelWarn
	switch {
	case res.Outcome == OutcomeRelease:
		level = slog.LevelDebug
	case errors.Is(err, ErrCollectionNotFound) && time.Since(w.started) < startUp:
		level = slog.LevelInfo // the services may start in any order
	}
	attrs := []slog.Attr{
		slog.String("queue", w.cfg.Queue), slog.String("key", t.item.Key), slog.Uint64("token", t.item.Token),
		slog.String("outcome", res.Outcome.String()), slog.Any("error", err),
	}
	if p, ok := errors.AsType[*PanicError](err); ok {
		level = slog.LevelError
		attrs = append(attrs, slog.String("stack", string(p.Stack)))
	}
	w.cfg.Log.LogAttrs(ctx, level, "reconcile failed", attrs...)
}

// finish settles a task and returns the one its goroutine goes on with, or nil.
func (w *Worker) finish(t *task, res Result) *task {
	t.cancel(nil)
	w.mu.Lock()
	defer w.mu.Unlock()
	t.over = true
	delete(w.tasks, t.id)
	delete(w.busy, t.id.key)
	switch {
	case t.lost:
	case res.Outcome == OutcomeAbandon:
		w.abandon()
	default:
		w.send(t.id, &res)
		w.outbox[len(w.outbox)-1].Writes = writes(&t.context.notes)
	}
	var next *task
	if !w.pulls {
		next = w.begin()
	}
	w.dispatch()
	w.checkIdle()
	w.notify()
	return next
}

// writes are what a reconcile wrote.
func writes(n *wrote.Notes) (out []*queuev1.Write) {
	for _, w := range n.All() {
		collection := w.Cluster + "/" + w.Resource
		if !plain(collection, 512) || !plain(w.Key, 1024) || !plain(w.RV, 128) {
			continue // no API server has such names, and the settlement must not fail for it
		}
		out = append(out, &queuev1.Write{Verb: w.Verb, Collection: collection, Key: w.Key, ResourceVersion: w.RV})
	}
	return out
}

func plain(text string, most int) bool {
	return len(text) <= most && utf8.ValidString(text) && !strings.ContainsFunc(text, unicode.IsControl)
}

// abandon makes sure that nobody extends a lease that is to run out: for as long
// as it may live, the leases to extend are named one by one.
func (w *Worker) abandon() {
	w.nameUntil = time.Now().Add(2 * w.lease)
}

func (w *Worker) call(ctx context.Context, item Item) (res Result, err error) {
	defer func() {
		if v := recover(); v != nil {
			res, err = Result{}, &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	if ctx.Err() != nil {
		err := context.Cause(ctx)
		return Result{}, fmt.Errorf("client: not begun: %w", err)
	}
	return w.rec.Reconcile(ctx, item)
}
