package indexer

import (
	"container/list"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/internal/rpc"
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

// line hands out a bounded number of places: to the client that has fewest, and
// among those in the order they were asked for. A client that asks for very many
// thus delays itself; when the line is full it gives way to the others.
type line struct {
	places int

	mu      sync.Mutex
	taken   int
	held    map[string]int // places, by client; none are left out
	waiting list.List      // of *queuer
}

type queuer struct {
	client  string
	turn    chan struct{} // closed when the place is theirs, or refused
	refused bool          // set before
}

// enter waits for a place. The error is errTooManyWatchers when the line is full
// already. done gives the place back; it may be called again.
func (l *line) enter(ctx context.Context, client string, stopping <-chan struct{}, most time.Duration) (done func(), err error) {
	l.mu.Lock()
	if l.taken < l.places {
		l.taken++
		l.grant(client)
		l.mu.Unlock()
		return l.hold(client), nil
	}
	if n := l.waiting.Len(); n >= linePerPlace*l.places && !l.giveWay(client) {
		l.mu.Unlock()
		return nil, newFault(errTooManyWatchers, fmt.Sprintf("%d wait for their initial state", n))
	}
	w := &queuer{client: client, turn: make(chan struct{})}
	e := l.waiting.PushBack(w)
	l.mu.Unlock()
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-w.turn:
		if w.refused {
			return nil, newFault(errTooManyWatchers, "others wait for fewer initial states")
		}
		return l.hold(client), nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-stopping:
		err = newFault(errStopping, "resume the watch on another replica")
	case <-timer.C:
		err = newFault(errTooManyWatchers, fmt.Sprintf("waited %v for the initial state", most))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-w.turn: // just now
		if !w.refused {
			l.pass(client)
		}
	default:
		l.waiting.Remove(e)
	}
	return nil, err
}

// giveWay refuses the last in line of the client that waits most often, if that
// is more often than the client would. mu is held.
func (l *line) giveWay(client string) bool {
	waits := map[string]int{}
	for e := l.waiting.Front(); e != nil; e = e.Next() {
		waits[e.Value.(*queuer).client]++
	}
	most := client
	for c, n := range waits {
		if n > waits[most] {
			most = c
		}
	}
	if waits[most] <= waits[client]+1 {
		return false
	}
	for e := l.waiting.Back(); e != nil; e = e.Prev() {
		if w := e.Value.(*queuer); w.client == most {
			l.waiting.Remove(e)
			w.refused = true
			close(w.turn)
			return true
		}
	}
	return false
}

// grant counts a place. mu is held.
func (l *line) grant(client string) {
	if l.held == nil {
		l.held = map[string]int{}
	}
	l.held[client]++
}

func (l *line) hold(client string) func() {
	once := sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.pass(client)
	})
	timer := time.AfterFunc(placeFor, once)
	return func() { timer.Stop(); once() }
}

// pass takes a place from a client and gives it to the next, which is the same
// client only when nobody else has as few. mu is held.
func (l *line) pass(client string) {
	var next *list.Element
	for e := l.waiting.Front(); e != nil; e = e.Next() {
		if next == nil || l.held[e.Value.(*queuer).client] < l.held[next.Value.(*queuer).client] {
			next = e
		}
	}
	if l.held[client]--; l.held[client] == 0 {
		delete(l.held, client)
	}
	if next == nil {
		l.taken--
		return
	}
	w := l.waiting.Remove(next).(*queuer)
	l.grant(w.client)
	close(w.turn)
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
	return w.s.line.enter(ctx, rpc.Client(ctx), w.s.stopping, w.s.cfg.MaxWait)
}
