package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// task is one lease in hand. Its fields are guarded by Worker.mu, except ctx and
// item, which do not change.
type task struct {
	id       leaseID
	item     Item
	ctx      context.Context
	cancel   context.CancelCauseFunc
	received time.Time
	began    time.Time   // zero until its reconcile begins
	timer    *time.Timer // fires at ends
	ends     time.Time   // a margin before the lease does, by our own clock
	lost     bool        // the server said so: there is nothing to settle
}

// assign takes leases the server handed out.
func (w *Worker) assign(l *link, leases []*queuev1.Lease) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	// A lease lost on the server's side gave it a credit we did not count.
	l.credit = max(0, l.credit-len(leases))
	for _, lease := range leases {
		t := &task{id: leaseID{lease.GetKey(), lease.GetToken()}, item: fromLease(lease), received: now}
		if w.tasks[t.id] != nil {
			continue // told again after a reconnect
		}
		if w.draining {
			w.outbox = append(w.outbox, Result{Outcome: OutcomeRelease}.settlement(w.cfg.Queue, t.id.key, t.id.token))
			continue
		}
		t.ctx, t.cancel = context.WithCancelCause(w.hard)
		left := lease.GetRemaining().AsDuration() - w.margin()
		t.ends = now.Add(left)
		t.timer = time.AfterFunc(left, func() { w.expire(t) })
		t.item.lease, t.item.mu = t, &w.mu
		w.tasks[t.id] = t
		w.ready = append(w.ready, t)
	}
	w.dispatch()
	w.poke()
}

func (w *Worker) margin() time.Duration {
	if w.cfg.Margin > 0 {
		return w.cfg.Margin
	}
	return min(w.lease/5, 2*time.Second)
}

// dispatch begins reconciles while there are free slots. A key whose last
// reconcile, cancelled for a lost lease, has not returned yet has to wait.
func (w *Worker) dispatch() {
	for i := 0; i < len(w.ready) && len(w.busy) < w.cfg.Concurrency; {
		t := w.ready[i]
		if w.busy[t.id.key] != nil {
			i++
			continue
		}
		if i == 0 {
			w.ready[0], w.ready = nil, w.ready[1:]
		} else {
			w.ready = slices.Delete(w.ready, i, i+1)
		}
		w.busy[t.id.key] = t
		t.began = time.Now()
		w.handlers.Go(func() { w.reconcile(t) })
	}
}

// expire is called by the worker's own clock: nobody extended the lease.
func (w *Worker) expire(t *task) {
	t.cancel(ErrLeaseLost)
	w.mu.Lock()
	defer w.mu.Unlock()
	if i := slices.Index(w.ready, t); i >= 0 {
		w.ready = slices.Delete(w.ready, i, i+1)
		w.release(t, "lease ended before a slot was free")
		w.poke()
	}
}

// release gives back a lease whose reconcile has not begun.
func (w *Worker) release(t *task, why string) {
	t.timer.Stop()
	t.cancel(ErrStopping)
	delete(w.tasks, t.id)
	if !t.lost {
		w.outbox = append(w.outbox, Result{Outcome: OutcomeRelease, Reason: why}.settlement(w.cfg.Queue, t.id.key, t.id.token))
	}
	w.checkIdle()
}

// lose cancels leases that are not held any more.
func (w *Worker) lose(refs []*queuev1.LeaseRef) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, ref := range refs {
		t := w.tasks[leaseID{ref.GetKey(), ref.GetToken()}]
		if t == nil || t.lost {
			continue
		}
		t.lost = true
		t.timer.Stop()
		t.cancel(ErrLeaseLost)
		w.tellLost(t.id.key)
		if i := slices.Index(w.ready, t); i >= 0 {
			w.ready = slices.Delete(w.ready, i, i+1)
			delete(w.tasks, t.id)
		}
	}
	w.checkIdle()
	w.poke()
}

func (w *Worker) tellLost(key string) {
	if w.cfg.Hooks.Lost != nil {
		w.cfg.Hooks.Lost(key)
	}
}

// deadline moves the end of every lease in hand that was received before sent.
// Only later makes an end later.
func (w *Worker) deadline(sent time.Time, remaining time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.tasks {
		if t.lost || t.received.After(sent) || w.overdue(t, sent) || t.ctx.Err() != nil {
			continue
		}
		// Counting from when we asked is on the safe side of the server's clock.
		t.end(sent.Add(remaining - w.margin()))
	}
}

// orphanLease is what a lease is shortened to by the server when its stream closes.
const orphanLease = time.Second

// orphan is called when the stream broke: every lease in hand ends soon.
func (w *Worker) orphan() {
	w.mu.Lock()
	defer w.mu.Unlock()
	soon := time.Now().Add(orphanLease * 4 / 5)
	for _, t := range w.tasks {
		if !t.lost && t.ctx.Err() == nil && soon.Before(t.ends) {
			t.end(soon)
		}
	}
}

func (t *task) end(at time.Time) {
	t.ends = at
	t.timer.Reset(time.Until(at))
}

// overdue reports whether a reconcile ran out of its time and did not return:
// its lease is no longer extended.
func (w *Worker) overdue(t *task, now time.Time) bool {
	return !t.began.IsZero() && now.Sub(t.began) > w.cfg.Timeout
}

func (w *Worker) reconcile(t *task) {
	ctx, cancel := context.WithTimeoutCause(t.ctx, w.cfg.Timeout, ErrTimeout)
	defer cancel()
	if w.cfg.Hooks.Started != nil {
		w.cfg.Hooks.Started(t.item)
	}
	began := time.Now()
	res, err := w.traced(ctx, t.item)
	res = decide(res, err, context.Cause(ctx))
	took := time.Since(began)
	w.report(t, res, err)
	if w.cfg.Hooks.Finished != nil {
		w.cfg.Hooks.Finished(t.item, res.Outcome, err, took)
	}
	w.finish(t, res)
}

// startUp is how long after a worker's own start it is ordinary that a
// collection is not served yet.
const startUp = 30 * time.Second

func (w *Worker) report(t *task, res Result, err error) {
	if err == nil {
		return
	}
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
	w.cfg.Log.LogAttrs(t.ctx, level, "reconcile failed", attrs...)
}

func (w *Worker) finish(t *task, res Result) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t.timer.Stop()
	t.cancel(nil)
	delete(w.tasks, t.id)
	delete(w.busy, t.id.key)
	switch {
	case t.lost:
	case res.Outcome == OutcomeAbandon:
		w.abandon()
	default:
		w.outbox = append(w.outbox, res.settlement(w.cfg.Queue, t.id.key, t.id.token))
	}
	w.dispatch()
	w.checkIdle()
	w.poke()
}

// abandon makes sure that nobody extends a lease that is to run out: for as long
// as it may live, the leases to extend are named one by one.
func (w *Worker) abandon() {
	w.nameUntil = time.Now().Add(2 * w.lease)
}

// traced calls the reconciler inside a span that is linked to what caused the
// item: one run may answer to several causes, so none of them is the parent.
func (w *Worker) traced(ctx context.Context, item Item) (Result, error) {
	ctx, span := w.cfg.Tracer.Tracer(tracerName).Start(ctx, "reconcile",
		trace.WithSpanKind(trace.SpanKindConsumer), trace.WithLinks(links(item.Traces)...),
		trace.WithAttributes(attribute.String("deltaplane.queue", item.Queue), attribute.String("deltaplane.key", item.Key), attribute.Int64("deltaplane.attempt", item.Attempt)))
	defer span.End()
	res, err := w.call(ctx, item)
	if err != nil {
		span.RecordError(err)
		span.SetStatus(otelcodes.Error, "reconcile failed")
	}
	return res, err
}

func (w *Worker) call(ctx context.Context, item Item) (res Result, err error) {
	defer func() {
		if v := recover(); v != nil {
			res, err = Result{}, &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	if err := context.Cause(ctx); err != nil {
		return Result{}, fmt.Errorf("client: not begun: %w", err)
	}
	return w.rec.Reconcile(ctx, item)
}
