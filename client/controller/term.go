package controller

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/internal/feed"
)

// The reasons of a round over every key.
const (
	sweepFirst      = "nothing is known of an earlier round"
	sweepGeneration = "the queue's store lost data, or may have"
	sweepResync     = "resync"
	sweepEpoch      = "the collection began a new epoch"
	sweepMapper     = "a mapper panicked"
)

const (
	// maxPending is how many keys may wait to be added before watches wait.
	maxPending = 20_000
	// lastWrites is how long a leader that stops may take to add and save.
	lastWrites = 3 * time.Second
)

// term is a part of a replica's leadership, in one generation of the queue's store.
//
//	follow (each collection) ──> load: keys, and the positions behind them ──> flush ──> save
type term struct {
	c          *Controller
	item       client.Item
	generation string

	state feed.State // what was reached: its keys are acknowledged
	dirty bool       // it is to be saved

	mu   sync.Mutex // guards the rest
	load load
	room chan struct{} // closed when the load is taken
	wake chan struct{}
}

// begins says why every key has to be added although a leader left something.
func begins(left feed.State, generation string, resync time.Duration) string {
	switch {
	case left.Generation == "":
		return sweepFirst
	case left.Generation != generation:
		return sweepGeneration
	case resync > 0 && time.Since(time.Unix(left.Swept, 0)) > resync:
		return sweepResync
	default:
		return ""
	}
}

// newTerm goes on from what was left, or for a reason from nothing.
func newTerm(c *Controller, item client.Item, generation string, left feed.State, reason string) *term {
	t := &term{c: c, item: item, generation: generation, load: newLoad(), room: make(chan struct{}), wake: make(chan struct{}, 1)}
	t.state = feed.State{Generation: generation, Swept: left.Swept, Due: left.Due, At: map[string]feed.Place{}}
	if reason != "" {
		t.state.Swept, t.state.Due, t.dirty = time.Now().Unix(), false, true
		c.emit(Event{Kind: EventSweep, Reason: reason})
		return t
	}
	for _, w := range c.watches {
		if at, ok := left.At[w.id]; ok {
			t.state.At[w.id] = at
			c.saw(w.collection, client.Revision{Epoch: at.Epoch, RV: at.RV})
		}
	}
	return t
}

// run leads until ctx, the lease's, or Run's context ends, or every key has to be added
// again, for the reason it returns.
func (t *term) run(ctx context.Context) (again string, err error) {
	follow, stop := context.WithCancel(ctx)
	defer stop()
	var watches sync.WaitGroup
	for _, w := range t.c.watches {
		from := position(t.state.At[w.id].Position)
		watches.Go(func() { t.follow(follow, w, from) })
	}
	again, err = t.work(ctx)
	stop()
	watches.Wait()
	defer func() { t.load.causes.end(false) }() // of what is left to the next leader
	if again != "" || err != nil || ctx.Err() != nil {
		return again, err
	}
	last, cancel := context.WithTimeout(ctx, lastWrites)
	defer cancel()
	if again, err = t.flush(last); again != "" || err != nil {
		return again, err
	}
	return "", t.save(last)
}

// work adds and saves until there is a reason not to.
func (t *term) work(ctx context.Context) (again string, err error) {
	resync, save, mapper := newTimer(t.resyncIn()), newTimer(-1), newTimer(-1)
	defer resync.Stop()
	defer save.Stop()
	defer mapper.Stop()
	armed := t.state.Due
	if armed {
		mapper.Reset(0)
	}
	wait := newWait()
	for {
		select {
		case <-ctx.Done():
			return "", nil
		case <-t.c.stopping:
			return "", nil
		case g := <-t.c.generation:
			if t.moved(ctx, g) {
				return sweepGeneration, nil
			}
			continue
		case <-resync.C:
			return sweepResync, nil
		case <-mapper.C:
			armed = false
			t.sweepForMapper()
			continue
		case <-save.C:
		case <-t.wake:
			if again, err := t.flush(ctx); again != "" || err != nil {
				return again, err
			}
			if t.state.Due && !armed {
				armed = true
				mapper.Reset(t.c.mapperDelay())
			}
		}
		switch err := t.save(ctx); {
		case err == nil:
			wait.Reset()
		case errors.Is(err, client.ErrLeaseLost), ctx.Err() != nil:
			return "", err
		default:
			t.c.emit(Event{Kind: EventQueueFailed, Reason: "the position cannot be saved", Err: err})
			save.Reset(wait.Next())
		}
	}
}

// moved reports whether the queue's store has another generation than that of the term, which
// somebody saw, maybe before the term began.
func (t *term) moved(ctx context.Context, seen string) bool {
	if seen == t.generation {
		return false
	}
	now, err := t.c.queue.Generation(ctx)
	return err != nil || now != t.generation
}

func newTimer(d time.Duration) *time.Timer {
	t := time.NewTimer(max(d, 0))
	if d < 0 {
		t.Stop()
	}
	return t
}

func (t *term) resyncIn() time.Duration {
	if t.c.o.Resync <= 0 {
		return -1
	}
	return max(0, time.Until(time.Unix(t.state.Swept, 0).Add(t.c.o.Resync)))
}

// save leaves what was reached to the next leader.
func (t *term) save(ctx context.Context) error {
	if !t.dirty {
		return nil
	}
	b, err := t.state.Encode()
	if err == nil {
		err = t.c.feed.SaveState(ctx, feed.Key, t.item.Token, b)
	}
	t.dirty = err != nil
	return err
}
