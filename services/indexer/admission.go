package indexer

import (
	"container/list"
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	// smallState is up to how many objects a state is sent without a place: it is
	// over before a place would be worth its while.
	smallState = 1000
	// placeFor is how long a place may be kept by one whose reader is slow. What is
	// left of its state is then sent without one.
	placeFor = 5 * time.Second
	// linePerPlace bounds the line.
	linePerPlace = 128
)

// line hands out a bounded number of places, in the order they were asked for.
type line struct {
	places int

	mu      sync.Mutex
	taken   int
	waiting list.List // of chan struct{}, closed when the place is theirs
}

// enter waits for a place. The error is errTooManyWatchers when the line is full
// already. done gives the place back; it may be called again.
func (l *line) enter(ctx context.Context, stopping <-chan struct{}, most time.Duration) (done func(), err error) {
	l.mu.Lock()
	if l.taken < l.places {
		l.taken++
		l.mu.Unlock()
		return l.hold(), nil
	}
	if n := l.waiting.Len(); n >= linePerPlace*l.places {
		l.mu.Unlock()
		return nil, newFault(errTooManyWatchers, fmt.Sprintf("%d wait for their initial state", n))
	}
	turn := make(chan struct{})
	e := l.waiting.PushBack(turn)
	l.mu.Unlock()
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-turn:
		return l.hold(), nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-stopping:
		err = newFault(errStopping, "resume the watch on another replica")
	case <-timer.C:
		err = newFault(errTooManyWatchers, fmt.Sprintf("waited %v for the initial state", most))
	}
	l.mu.Lock()
	select {
	case <-turn: // just now
		l.pass()
	default:
		l.waiting.Remove(e)
	}
	l.mu.Unlock()
	return nil, err
}

func (l *line) hold() func() {
	once := sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.pass()
	})
	timer := time.AfterFunc(placeFor, once)
	return func() { timer.Stop(); once() }
}

// pass gives a place to the next in line. mu is held.
func (l *line) pass() {
	if e := l.waiting.Front(); e != nil {
		close(l.waiting.Remove(e).(chan struct{}))
		return
	}
	l.taken--
}

// len is how many states are being sent and how many wait for that.
func (l *line) len() (taken, waiting int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.taken, l.waiting.Len()
}

// admit waits until the watch may begin with its state.
func (w *watcher) admit(ctx context.Context) (done func(), err error) {
	src, err := w.filter.source(w.hub().current())
	if err != nil {
		return nil, w.c.indexError(err)
	}
	if src.total <= smallState {
		return func() {}, nil
	}
	_, n := w.s.line.len()
	w.waited = w.waited || n > 0
	return w.s.line.enter(ctx, w.s.stopping, w.s.cfg.MaxWait)
}
