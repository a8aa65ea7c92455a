package workqueue

import (
	"context"
	"errors"
	"time"

	"github.com/deltaplane/deltaplane/client"
)

const (
	// onItsWay is how long a Get of a queue that is shutting down waits for a key
	// before it asks the service whether there is one.
	onItsWay = 50 * time.Millisecond
	// elsewhere is how long it takes keys that are held, and not here, to be on
	// their way here; then they are another replica's.
	elsewhere = time.Second
)

// Get waits for a key and holds it until Done. When shutdown is true there is none, and none
// will come but a key that this process has in hand and has added since: as upstream, the Get
// after its Done hands it out once more.
func (q *Queue) Get() (key string, shutdown bool) {
	item, err := q.GetItem(context.WithoutCancel(q.ctx))
	return item.Key, err != nil
}

// GetItem is Get with all that came with the key, and ends with ctx too. The error is that of ctx,
// or [client.ErrStopped] when there is no key and none will come.
func (q *Queue) GetItem(ctx context.Context) (client.Item, error) {
	for {
		h, err := q.get(ctx)
		switch {
		case err == nil:
			item := h.Item()
			q.mu.Lock()
			q.held[item.Key] = &holding{Held: h}
			delete(q.again, item.Key)
			q.mu.Unlock()
			return item, nil
		case ctx.Err() != nil:
			return client.Item{}, ctx.Err()
		case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded): // shutting down: look again
		default:
			q.mu.Lock()
			q.ended = true
			q.mu.Unlock()
			q.shut()
			q.maybeEnd()
			return client.Item{}, client.ErrStopped
		}
	}
}

func (q *Queue) get(ctx context.Context) (*client.Held, error) {
	switch {
	case !q.ShuttingDown():
		open := q.open
		if ctx.Done() != nil {
			var cancel context.CancelFunc
			open, cancel = context.WithCancel(ctx)
			defer cancel()
			defer context.AfterFunc(q.open, cancel)()
		}
		return q.pulls.Get(open)
	case q.ctx.Err() != nil:
		return nil, client.ErrStopped
	}
	for began := time.Now(); ; {
		short, cancel := context.WithTimeout(q.ctx, onItsWay)
		h, err := q.pulls.Get(short)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			return h, err
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		dirty := q.dirty()
		counts := q.counts()
		held, unclaimed := q.pulls.Held()
		strange := counts.Processing > int64(held) && time.Since(began) < elsewhere
		if counts.Ready == 0 && unclaimed == 0 && !strange {
			q.mu.Lock()
			for _, key := range dirty {
				delete(q.again, key) // it is another replica's by now
			}
			q.mu.Unlock()
			return nil, client.ErrStopped
		}
	}
}

// dirty are the keys that the service is to hand out again and has not handed out yet.
func (q *Queue) dirty() (keys []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for key, settled := range q.again {
		if settled {
			keys = append(keys, key)
		}
	}
	return keys
}

// maybeEnd lets go of the streams once nothing can come any more.
func (q *Queue) maybeEnd() {
	q.mu.Lock()
	over := q.ended && len(q.held) == 0 && len(q.again) == 0
	q.mu.Unlock()
	if over {
		q.cancel()
	}
}

// ShutDown has Adds ignored from now on, and Get hand out what is ready and then
// tell of the shutdown. It does not wait, and ends a drain that does.
func (q *Queue) ShutDown() {
	q.mu.Lock()
	if !q.force {
		q.force = true
		close(q.forced)
	}
	q.mu.Unlock()
	q.shut()
}

// ShutDownWithDrain is ShutDown that waits until this process holds no key any
// more, ShutDown is called, or the context of New ends.
func (q *Queue) ShutDownWithDrain() {
	q.shut()
	for {
		q.mu.Lock()
		held, free := len(q.held), q.free
		q.mu.Unlock()
		if held == 0 {
			return
		}
		select {
		case <-free:
		case <-q.forced:
			return
		case <-q.ctx.Done():
			return
		}
	}
}

// ShuttingDown reports whether the queue was shut down.
func (q *Queue) ShuttingDown() bool { return q.open.Err() != nil }
