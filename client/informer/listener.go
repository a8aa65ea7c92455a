package informer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"
)

// ErrInCallback is the answer to a wait for a callback from within it.
var ErrInCallback = errors.New("informer: waited for a handler from within its callback")

// PanicError is a handler that panicked over a notification, which it does not
// receive again.
type PanicError struct {
	// Handler is the name of its registration, and Key that of the notification.
	Handler, Key string
	Value        any
	Stack        []byte
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("informer: handler %s panicked over %q: %v", e.Handler, e.Key, e.Value)
}

// Lag is how far a handler is behind.
type Lag struct {
	// Pending notifications were not told yet.
	Pending int
	// Behind is how long the oldest of them, or the one being handled, has waited.
	Behind time.Duration
	// Coalesced counts notifications that were folded into others because the
	// buffer was full, Panics those the handler panicked over, and Handled all it
	// has returned from.
	Coalesced, Panics, Handled uint64
}

// Registration is a handler of an informer. It is a cache.DoneChecker of client-go.
type Registration struct {
	name   string
	synced chan struct{}
	ended  chan struct{}

	mu        sync.Mutex // guards what follows, and the listener's buffer
	requested time.Duration
	period    time.Duration
	due       time.Time
	upstream  bool // the informer is synced and its initial adds are in the buffer
	initial   int  // initial adds that were not finished
	pending   int
	oldest    time.Time // of what is pending or in hand; zero when nothing is
	lag       Lag       // its counters
	goroutine string    // that calls the handler
}

// Name is that of the informer and the handler.
func (r *Registration) Name() string { return r.name }

// Done is closed once the informer is synced and the handler has finished every
// initial add, be it by a panic. It stays open for a handler that was removed before.
func (r *Registration) Done() <-chan struct{} { return r.synced }

// HasSynced reports whether Done is closed.
func (r *Registration) HasSynced() bool { return isClosed(r.synced) }

// ResyncPeriod is how often the handler receives everything again; 0 for never.
func (r *Registration) ResyncPeriod() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.period
}

// Lag tells how far the handler is behind.
func (r *Registration) Lag() Lag {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.lag
	l.Pending = r.pending
	if !r.oldest.IsZero() {
		l.Behind = time.Since(r.oldest)
	}
	return l
}

// Wait returns when the handler was removed, or its informer has stopped, and its
// last callback has returned. Within a callback of the handler that cannot be
// waited for, and the answer is [ErrInCallback] (in client-go it is a deadlock).
func (r *Registration) Wait(ctx context.Context) error {
	r.mu.Lock()
	inside := r.goroutine != "" && r.goroutine == goroutine()
	r.mu.Unlock()
	if inside {
		return ErrInCallback
	}
	select {
	case <-r.ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Stopped is closed when the handler was removed, or its informer has stopped, and its last
// callback has returned.
func (r *Registration) Stopped() <-chan struct{} { return r.ended }

// check closes synced when it is due. The mutex is held.
func (r *Registration) check() {
	if r.upstream && r.initial == 0 && !isClosed(r.synced) {
		close(r.synced)
	}
}

// goroutine is the number of the calling goroutine. There is no other way to tell
// a call from within a callback; it serves nothing else.
func goroutine() string {
	buf := make([]byte, 32)
	number, _, _ := strings.Cut(strings.TrimPrefix(string(buf[:runtime.Stack(buf, false)]), "goroutine "), " ")
	return number
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// panicPause is how long a handler that panicked is left alone.
const panicPause = time.Second

// listener is a handler with what waits for it.
//
//	push ──> buffer ──run──> handler
type listener[T any] struct {
	Registration
	handler Handler[T]
	report  func(error)
	log     *slog.Logger
	crash   bool

	wake chan struct{} // holds a token when something changed
	quit chan struct{} // closed to stop without telling the rest

	// Guarded by mu.
	buf      buffer[T]
	started  bool
	draining bool // takes nothing more, and ends once the buffer is empty
	full     bool // was logged
}

func newListener[T any](name string, h Handler[T], room int) *listener[T] {
	l := &listener[T]{handler: h, wake: make(chan struct{}, 1), quit: make(chan struct{}), buf: buffer[T]{room: room}}
	l.name, l.synced, l.ended = name, make(chan struct{}), make(chan struct{})
	return l
}

// push never waits.
func (l *listener[T]) push(notes ...note[T]) {
	if pending, overflows := l.pushAll(notes); overflows {
		l.log.Warn("handler is slow, its notifications are coalesced", slog.String("handler", l.name), slog.Int("pending", pending))
	}
}

func (l *listener[T]) pushAll(notes []note[T]) (pending int, overflows bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.draining {
		return 0, false
	}
	for _, n := range notes {
		if n.initial {
			l.initial++
		}
		folds, finished := l.buf.push(n)
		l.lag.Coalesced += uint64(folds)
		l.initial -= finished
		if folds > 0 && !l.full {
			l.full, overflows = true, true
		}
	}
	l.count(time.Time{})
	l.check()
	l.notify()
	return l.buf.len, overflows
}

// count brings what Lag shows up to date. inHand is when what the handler has at
// the moment was put into the buffer. The mutex is held.
func (l *listener[T]) count(inHand time.Time) {
	l.pending = l.buf.len
	switch {
	case !inHand.IsZero():
		l.oldest = inHand
	case l.oldest.IsZero() && l.buf.first != nil:
		l.oldest = l.buf.first.at
	}
}

func (l *listener[T]) notify() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// upstreamSynced tells that every initial add has been pushed.
func (l *listener[T]) upstreamSynced() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.upstream = true
	l.check()
}

// start calls the handler from now on, unless it was removed.
func (l *listener[T]) start(parts *sync.WaitGroup) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.started && !isClosed(l.ended) {
		l.started = true
		parts.Go(l.run)
	}
}

// end stops the listener, at once or when everything was delivered.
func (l *listener[T]) end(drain bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.draining = true
	if !drain {
		if !isClosed(l.quit) {
			close(l.quit)
		}
		l.buf.clear()
		l.pending, l.oldest = 0, time.Time{}
	}
	if !l.started && !isClosed(l.ended) { // nobody will call it any more
		close(l.ended)
	}
	l.notify()
}

func (l *listener[T]) run() {
	defer close(l.ended)
	l.mu.Lock()
	l.goroutine = goroutine()
	l.mu.Unlock()
	for {
		n, ok := l.next()
		if !ok {
			return
		}
		panicked := l.tell(n)
		l.finish(n, panicked)
		if panicked && !l.pause() {
			return
		}
	}
}

// next waits for a notification; false when there will be none.
func (l *listener[T]) next() (n note[T], ok bool) {
	for {
		n, ok, over, recovered := l.take()
		if recovered {
			l.log.Info("handler keeps up again", slog.String("handler", l.name))
		}
		if ok || over {
			return n, ok
		}
		select {
		case <-l.wake:
		case <-l.quit:
		}
	}
}

func (l *listener[T]) take() (n note[T], ok, over, recovered bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n, ok = l.buf.pop(); ok {
		l.count(n.at)
	}
	if l.full && l.buf.latest == nil {
		l.full, recovered = false, true
	}
	return n, ok, !ok && l.draining, recovered
}

// tell calls the handler.
func (l *listener[T]) tell(n note[T]) (panicked bool) {
	if !l.crash {
		defer func() {
			if v := recover(); v != nil {
				panicked = true
				err := &PanicError{Handler: l.name, Key: n.key, Value: v, Stack: debug.Stack()}
				l.log.Error("handler panicked", slog.String("handler", l.name), slog.String("key", n.key), slog.Any("panic", v), slog.String("stack", string(err.Stack)))
				l.report(err)
			}
		}()
	}
	switch n.kind {
	case added:
		l.handler.OnAdd(n.obj, n.initial)
	case updated:
		l.handler.OnUpdate(n.old, n.obj)
	case deleted:
		d := Deletion[T]{Key: n.key, UID: n.uid, ResourceVersion: n.rv, Object: n.old, Reason: n.reason, Stale: n.reason != Filtered}
		if d.known = &n.old; n.folded {
			d.known = &n.obj
		}
		if n.final != nil {
			d.Object, d.Stale = *n.final, false
		}
		l.handler.OnDelete(d)
	}
	return false
}

func (l *listener[T]) finish(n note[T], panicked bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lag.Handled++
	if panicked {
		l.lag.Panics++
	}
	if n.initial {
		l.initial--
	}
	l.oldest = time.Time{}
	l.count(time.Time{})
	l.check()
}

// pause waits after a panic; false when the listener ended.
func (l *listener[T]) pause() bool {
	timer := time.NewTimer(panicPause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.quit:
		return false
	}
}
