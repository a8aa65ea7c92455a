package testing

import (
	"fmt"
	"strings"
	"sync"

	"github.com/deltaplane/deltaplane/client/internal/feed"
	"github.com/deltaplane/deltaplane/core/delta"
)

// activity is what the code under test is doing, as its connections show it.
type activity struct {
	index, queue use

	mu       sync.Mutex // guards the rest
	underWay int        // calls, and what is done to the code under test
	moves    int        // keys added, leased and settled, and writes: what another look is compared by
	watches  map[*watchStream]struct{}
	workers  map[string]int // open streams by queue
	// feeds are the positions that feeds of controllers have saved, by queue and collection.
	feeds map[string]map[string]delta.RV
}

// use is of one of the connections: whether somebody asked for it, and then used it.
type use struct{ expected, begun bool }

func newActivity() *activity {
	return &activity{watches: map[*watchStream]struct{}{}, workers: map[string]int{}, feeds: map[string]map[string]delta.RV{}}
}

func (a *activity) expect(u *use) {
	a.mu.Lock()
	defer a.mu.Unlock()
	u.expected = true
}

func (a *activity) begin(u *use) {
	a.mu.Lock()
	defer a.mu.Unlock()
	u.begun = true
}

// call notes that something is under way, until done is called.
func (a *activity) call() (done func()) {
	a.add(1)
	return func() { a.add(-1) }
}

func (a *activity) add(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.underWay += n
}

func (a *activity) moved() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.moves++
}

func (a *activity) watch(s *watchStream, open bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if open {
		a.watches[s] = struct{}{}
	} else {
		delete(a.watches, s)
	}
}

// received notes how far a watch has received what happens.
func (a *activity) received(s *watchStream, at delta.Revision) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if at.Compare(s.at) > 0 {
		s.at = at
	}
}

func (a *activity) work(queues []string, n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, queue := range queues {
		a.workers[queue] += n
	}
}

// isFeed reports whether a queue is one by which the replicas of a controller agree on who follows
// the changes. Its only key is leased for as long as that lasts.
func isFeed(queue string) bool { return strings.HasSuffix(queue, feed.Suffix) }

// saved notes the position that the feed of a controller saves: behind it every change was
// made keys of, which are in the queue.
func (a *activity) saved(queue string, state []byte) {
	left, err := feed.Decode(state)
	if err != nil {
		return
	}
	at := map[string]delta.RV{}
	for name, place := range left.At {
		collection := feed.Collection(name)
		if rv, seen := at[collection]; !seen || delta.Compare(place.RV, rv) < 0 {
			at[collection] = place.RV
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.feeds[queue] = at
}

// look is what there is to compare and to wait for. Uppers are the newest versions of the
// collections, by all names that a watch may have for them.
func (a *activity) look(uppers map[string]delta.Revision) (moves int, busy string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, u := range map[string]use{"index": a.index, "queue": a.queue} {
		if u.expected && !u.begun {
			return a.moves, fmt.Sprintf("the connection to the %s was asked for and is not used yet", name)
		}
	}
	for s := range a.watches {
		if upper, ok := uppers[s.collection]; ok && s.at.Compare(upper) < 0 {
			return a.moves, fmt.Sprintf("a watch of %s is at %s, the collection at %s", s.collection, s.at, upper)
		}
	}
	for queue, at := range a.feeds {
		for collection, rv := range at {
			if upper := uppers[collection]; a.workers[queue] > 0 && delta.Compare(rv, upper.RV) < 0 {
				return a.moves, fmt.Sprintf("%s has made keys of %s up to %s, the collection is at %s", queue, collection, rv, upper.RV)
			}
		}
	}
	if a.underWay > 0 {
		return a.moves, fmt.Sprintf("%d calls are under way", a.underWay)
	}
	return a.moves, ""
}

// leads reports whether a controller's feed may lead, and whether it has saved a position.
func (a *activity) leads(queue string) (open, saved bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.workers[queue] > 0, len(a.feeds[queue]) > 0
}
