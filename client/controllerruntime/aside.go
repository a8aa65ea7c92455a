package controllerruntime

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/deltaplane/deltaplane/client"
)

const (
	// mostAside is how many keys wait for their barrier at a time.
	mostAside = 64
	// atOnce is how long a call of Get waits for a key's barrier by itself.
	atOnce = 2 * time.Millisecond
	// asideStep and asideMost bound how long a key waits aside: in calls of asideStep, and in all.
	asideStep, asideMost = 3 * time.Second, 30 * time.Second
	// asideAgain is when a key comes again that has waited for too long, or found no room.
	asideAgain = time.Second
)

// get is a call of Get that waits for a key.
type get struct {
	ctx    context.Context
	cancel context.CancelFunc
}

// next leases a key whose barrier is reached, and counts it as begun. Keys whose barrier is not
// wait aside meanwhile, and hold up nobody. It returns false when the queue is shut down.
func (q *requests[T]) next() (client.Item, bool) {
	for {
		g, item, ok := q.begin()
		if ok {
			return item, true
		}
		if g == nil {
			return item, false
		}
		item, err := q.keys.GetItem(g.ctx)
		q.end(g, err == nil)
		switch {
		case err == nil && q.open.Err() != nil:
			q.giveBack(item, 0)
			q.took()
		case err == nil && q.reached(item.Barrier):
			return item, true
		case err == nil:
			q.park(item)
			q.took()
		case !errors.Is(err, context.Canceled): // else one that waited aside is ready, or it is over
			return client.Item{}, false
		}
	}
}

// took says that a key is begun no more.
func (q *requests[T]) took() {
	q.mu.Lock()
	q.begun--
	q.mu.Unlock()
	q.maybeStop()
}

// begin takes a key that has waited aside, or else makes a call that is woken for one; there is
// neither once the queue is shut down.
func (q *requests[T]) begin() (*get, client.Item, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.open.Err() != nil {
		return nil, client.Item{}, false
	}
	if len(q.ready) > 0 {
		item := q.ready[0]
		q.ready = q.ready[1:]
		q.begun++
		return nil, item, true
	}
	ctx, cancel := context.WithCancel(q.open)
	g := &get{ctx, cancel}
	q.gets = append(q.gets, g)
	return g, client.Item{}, false
}

// end is called when a call of Get waits no more. One that was woken, and has another key, wakes
// the next, or else gives back the key that it was woken for.
func (q *requests[T]) end(g *get, other bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if other {
		q.begun++
	}
	i := slices.Index(q.gets, g)
	if i >= 0 {
		q.gets = slices.Delete(q.gets, i, i+1)
	} else if other && !q.wake() && len(q.ready) > 0 {
		q.giveBack(q.ready[0], 0)
		q.ready = q.ready[1:]
	}
	g.cancel()
}

// wake has a call of Get take a key that waited aside, if both are there. The mutex is held.
func (q *requests[T]) wake() bool {
	if len(q.ready) == 0 || len(q.gets) == 0 {
		return false
	}
	q.gets[0].cancel()
	q.gets = q.gets[1:]
	return true
}

// reached reports whether reads will not have to wait for a barrier.
func (q *requests[T]) reached(b client.Barrier) bool {
	if len(b) == 0 || q.cfg.Seen != nil && q.cfg.Seen(b) {
		return true
	}
	ctx, cancel := context.WithTimeout(q.open, 100*time.Millisecond) // the index may be away
	defer cancel()
	_, err := q.index.WaitFor(ctx, b, atOnce)
	return err == nil
}

// park has a key wait aside.
func (q *requests[T]) park(item client.Item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.aside >= mostAside || q.open.Err() != nil {
		q.giveBack(item, asideAgain)
		return
	}
	q.aside++
	q.parted.Go(func() {
		defer q.maybeStop()
		reached := q.await(item)
		q.mu.Lock()
		defer q.mu.Unlock()
		q.aside--
		if !reached || q.open.Err() != nil {
			q.giveBack(item, asideAgain)
			return
		}
		if len(q.gets) == 0 { // every worker is busy: another replica's may be free
			q.giveBack(item, 0)
			return
		}
		q.ready = append(q.ready, item)
		q.wake()
	})
}

// await waits until a key's barrier is reached; false when that takes too long.
func (q *requests[T]) await(item client.Item) bool {
	lease := q.keys.Context(item.Key)
	ctx, cancel := context.WithTimeout(q.open, asideMost)
	defer cancel()
	defer context.AfterFunc(lease, cancel)()
	for ctx.Err() == nil {
		began := time.Now()
		_, err := q.index.WaitFor(ctx, item.Barrier, asideStep)
		if err == nil {
			return true
		}
		if !errors.Is(err, client.ErrRevisionNotReached) && ctx.Err() == nil {
			q.cfg.OnError("barrier", item.Key, err)
		}
		if time.Since(began) < asideAgain { // it is not the index that waited
			select {
			case <-ctx.Done():
			case <-time.After(asideAgain):
			}
		}
	}
	return false
}

// giveBack returns a key uncounted.
func (q *requests[T]) giveBack(item client.Item, after time.Duration) {
	q.keys.Settle(item.Key, client.Result{Outcome: client.OutcomeRelease, After: after, Reason: "its barrier is not reached"})
}

// shut gives back what waits aside.
func (q *requests[T]) shut() {
	q.close()
	q.mu.Lock()
	for _, item := range q.ready {
		q.giveBack(item, 0)
	}
	q.ready = nil
	q.mu.Unlock()
	q.maybeStop()
}
