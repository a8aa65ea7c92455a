package watch

import (
	"container/list"
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
)

const (
	// smallState is up to how many objects a state is soon over: it waits for those
	// of its size only.
	smallState = 1000
	// smallPerProc is how many small states are sent at a time for each processor.
	// More would not be sent sooner, and other calls would wait behind them.
	smallPerProc = 4
	// A place may be kept for so long by one whose reader is slow. What is left of
	// its state is then sent without one.
	largeFor, smallFor = 5 * time.Second, 100 * time.Millisecond
	// linePerPlace bounds the line of large states.
	linePerPlace = 128
)

// line hands out a bounded number of places: to the client that has fewest, and
// among those in the order they were asked for. A client that asks for very many
// thus delays itself; when the line is full it gives way to the others.
type line struct {
	places  int
	most    int           // may wait
	keepFor time.Duration // a place

	mu      sync.Mutex
	taken   int
	held    map[string]int // places, by client; none are left out
	waits   map[string]int // in line, by client; none are left out
	waiting list.List      // of *queuer
}

// lines are the two lines of the initial states. In one, many that are soon over
// would wait for few that take long.
type lines struct{ large, small line }

func newLines(cfg *Config) lines {
	places := smallPerProc * runtime.GOMAXPROCS(0)
	return lines{
		large: line{places: cfg.MaxInitialStates, most: linePerPlace * cfg.MaxInitialStates, keepFor: largeFor},
		// A herd of them is gone before those refused would have come again.
		small: line{places: places, most: cfg.MaxWatchers, keepFor: smallFor},
	}
}

// of is the line of a state by its number of objects.
func (l *lines) of(objects int) *line {
	if objects <= smallState {
		return &l.small
	}
	return &l.large
}

// len is how many states are being sent and how many wait for that.
func (l *lines) len() (taken, waiting int) {
	t1, w1 := l.large.len()
	t2, w2 := l.small.len()
	return t1 + t2, w1 + w2
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
	if n := l.waiting.Len(); n >= l.most && !l.giveWay(client) {
		l.mu.Unlock()
		return nil, fault.New(fault.ErrTooManyWatchers, fmt.Sprintf("%d wait for their initial state", n))
	}
	w := &queuer{client: client, turn: make(chan struct{})}
	e := l.push(w)
	l.mu.Unlock()
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-w.turn:
		if w.refused {
			return nil, fault.New(fault.ErrTooManyWatchers, "others wait for fewer initial states")
		}
		return l.hold(client), nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-stopping:
		err = fault.New(fault.ErrStopping, "resume the watch on another replica")
	case <-timer.C:
		err = fault.New(fault.ErrTooManyWatchers, fmt.Sprintf("waited %v for the initial state", most))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-w.turn: // just now
		if !w.refused {
			l.pass(client)
		}
	default:
		l.remove(e)
	}
	return nil, err
}

// push puts one last in line. mu is held.
func (l *line) push(w *queuer) *list.Element {
	if l.waits == nil {
		l.waits = map[string]int{}
	}
	l.waits[w.client]++
	return l.waiting.PushBack(w)
}

// remove takes one out of the line. mu is held.
func (l *line) remove(e *list.Element) *queuer {
	w := l.waiting.Remove(e).(*queuer)
	if l.waits[w.client]--; l.waits[w.client] == 0 {
		delete(l.waits, w.client)
	}
	return w
}

// giveWay refuses the last in line of the client that waits most often, if that
// is more often than the client would. mu is held.
func (l *line) giveWay(client string) bool {
	most := client
	for c, n := range l.waits {
		if n > l.waits[most] {
			most = c
		}
	}
	if l.waits[most] <= l.waits[client]+1 {
		return false
	}
	for e := l.waiting.Back(); e != nil; e = e.Prev() {
		if w := e.Value.(*queuer); w.client == most {
			l.remove(e)
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
	timer := time.AfterFunc(l.keepFor, once)
	return func() { timer.Stop(); once() }
}

// pass takes a place from a client and gives it to the next, which is the same
// client only when nobody else has as few. mu is held.
func (l *line) pass(client string) {
	next := l.waiting.Front()
	for e := next; e != nil && len(l.waits) > 1; e = e.Next() { // those of one client have come in order
		n := l.held[e.Value.(*queuer).client]
		if n < l.held[next.Value.(*queuer).client] {
			next = e
		}
		if n == 0 {
			break
		}
	}
	if l.held[client]--; l.held[client] == 0 {
		delete(l.held, client)
	}
	if next == nil {
		l.taken--
		return
	}
	w := l.remove(next)
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
	src, err := w.filter.Source(w.hub.current())
	if err != nil {
		return nil, w.c.Indexes.IndexError(err)
	}
	l := w.s.lines.of(src.Total)
	taken, _ := l.len()
	w.waited = w.waited || taken >= l.places
	return l.enter(ctx, rpc.Client(ctx), w.s.waits.Stopping, w.s.waits.MaxWait)
}
