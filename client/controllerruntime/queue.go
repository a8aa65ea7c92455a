package controllerruntime

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/clientgo"
	"github.com/deltaplane/deltaplane/client/internal/run"
	keys "github.com/deltaplane/deltaplane/client/workqueue"
)

// queueConfig says which queue it is; OnError must be set.
type queueConfig[T comparable] struct {
	keys.Config
	Codec   clientgo.Codec[T]         // nil: the built-in one of T
	Barrier func() client.Barrier     // what is added now is about nothing newer
	Seen    func(client.Barrier) bool // whether this process has seen a state as new as a barrier
}

// requests is a priority queue that a queue service keeps for all replicas.
type requests[T comparable] struct {
	keys  *keys.Queue
	admin *client.Queue
	cfg   queueConfig[T]
	codec clientgo.Codec[T]
	index run.Index
	open  context.Context // ends with the shutdown
	close context.CancelFunc
	stop  context.CancelFunc // ends what the queue has started

	mu     sync.Mutex // guards what follows
	hands  map[T]*hand
	begun  int            // keys that are on their way through Get
	aside  int            // keys that wait for their barrier
	ready  []client.Item  // of these, those that need not any more
	gets   []*get         // that wait for a key
	parted sync.WaitGroup // those aside
}

var _ priorityqueue.PriorityQueue[string] = (*requests[string])(nil)

// newQueue returns a queue that works until ctx ends, or has been shut down and holds nothing: what
// waits then is the other replicas', so that Get does not hand it out as client-go's queue does.
func newQueue[T comparable](ctx context.Context, conn grpc.ClientConnInterface, index run.Index, limiter workqueue.TypedRateLimiter[T], cfg queueConfig[T]) (*requests[T], error) {
	codec := cfg.Codec
	if codec == nil {
		var err error
		if codec, err = clientgo.CodecFor[T](); err != nil {
			return nil, err
		}
	}
	var err error
	if cfg.Config, err = clientgo.WithLimiter(cfg.Config, limiter); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	q, err := keys.New(ctx, conn, cfg.Config)
	if err != nil {
		stop()
		return nil, err
	}
	open, shut := context.WithCancel(ctx)
	return &requests[T]{keys: q, admin: client.NewQueue(conn, cfg.Queue, ""), cfg: cfg, codec: codec, index: index, open: open, close: shut, stop: stop, hands: map[T]*hand{}}, nil
}

// encode is the key of a request; false when it has none, which was reported then.
func (q *requests[T]) encode(op string, request T) (key string, ok bool) {
	key, err := clientgo.EncodeKey(q.codec, request)
	if err != nil {
		q.cfg.OnError(op, "", err)
	}
	return key, err == nil
}

// AddWithOpts implements priorityqueue.PriorityQueue. What concerns a request in hand, but for an
// add at once, is part of its settlement.
func (q *requests[T]) AddWithOpts(o priorityqueue.AddOpts, requests ...T) {
	priority := 0
	if o.Priority != nil {
		priority = *o.Priority
	}
	for _, request := range requests {
		if o.RateLimited || o.After > 0 {
			if h, ok := q.held(request); ok {
				kept, forgot := h.again(o.After, o.RateLimited, priority)
				if kept {
					continue
				}
				if forgot { // the add counts from nothing: one settlement cannot say both
					q.keys.Forget(h.item.Key)
				}
			}
		}
		key, ok := q.encode("add", request)
		if !ok {
			continue
		}
		item := client.AddItem{Key: key, Priority: levelOf(priority)}
		if q.cfg.Barrier != nil {
			item.Barrier = q.cfg.Barrier()
		}
		q.keys.AddItem(item, keys.AddOptions{After: o.After, RateLimited: o.RateLimited})
	}
}

// Add makes a request wait, unless it waits already. It never waits for the service.
func (q *requests[T]) Add(request T) { q.AddWithOpts(priorityqueue.AddOpts{}, request) }

// AddAfter makes a request wait after d; the earlier of two due times wins.
func (q *requests[T]) AddAfter(request T, d time.Duration) {
	q.AddWithOpts(priorityqueue.AddOpts{After: d}, request)
}

// AddRateLimited makes a request wait as the queue's rate limiter says.
func (q *requests[T]) AddRateLimited(request T) {
	q.AddWithOpts(priorityqueue.AddOpts{RateLimited: true}, request)
}

// Forget has the rate limiter forget a request.
func (q *requests[T]) Forget(request T) {
	h, ok := q.held(request)
	forgets, limited := false, false
	if ok {
		forgets, limited = h.forget()
	}
	if forgets {
		return
	}
	if limited { // the add stays, and its count goes: one settlement cannot say both
		q.keys.AddItem(client.AddItem{Key: h.item.Key, Priority: levelOf(h.priority)}, keys.AddOptions{RateLimited: true})
	}
	if key, ok := q.encode("forget", request); ok {
		q.keys.Forget(key)
	}
}

// NumRequeues is how often a request was added rate-limited since it was forgotten.
func (q *requests[T]) NumRequeues(request T) int {
	if key, ok := q.encode("num requeues", request); ok {
		return q.keys.NumRequeues(key)
	}
	return 0
}

// Get waits for a request and holds it until Done. When shutdown is true there is none.
func (q *requests[T]) Get() (request T, shutdown bool) {
	request, _, shutdown = q.GetWithPriority()
	return request, shutdown
}

// GetWithPriority is Get that says the request's priority.
func (q *requests[T]) GetWithPriority() (request T, priority int, shutdown bool) {
	for {
		item, ok := q.next()
		if !ok {
			return request, 0, true
		}
		request, err := clientgo.DecodeKey(q.codec, item.Key)
		var h *hand
		if err == nil {
			h, err = q.newHand(item)
		}
		q.mu.Lock()
		q.begun--
		_, twice := q.hands[request]
		if err == nil && !twice {
			q.hands[request] = h
		}
		q.mu.Unlock()
		if err == nil && twice { // its lease was lost here, and a run of it has not ended
			q.giveBack(item, asideAgain)
			q.maybeStop()
			continue
		}
		if err != nil {
			q.cfg.OnError("get", item.Key, err)
			q.keys.Settle(item.Key, client.Result{Outcome: client.OutcomeRateLimited})
			q.maybeStop()
			continue
		}
		return request, priorityOf(item.Priority), false
	}
}

// held is the hand of a request that this process holds.
func (q *requests[T]) held(request T) (*hand, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	h, ok := q.hands[request]
	return h, ok
}

// Done ends the holding of a request: all that was called for it meanwhile is one settlement.
func (q *requests[T]) Done(request T) {
	q.mu.Lock()
	h, ok := q.hands[request]
	delete(q.hands, request)
	q.mu.Unlock()
	if !ok {
		q.cfg.OnError("done", "", fmt.Errorf("%w: %v is not held", clientgo.ErrKey, request))
		return
	}
	result, more := h.result()
	if more != (keys.AddOptions{}) {
		q.keys.AddItem(client.AddItem{Key: h.item.Key, Priority: levelOf(h.priority)}, more)
	}
	q.keys.Settle(h.item.Key, result)
	q.maybeStop()
}

// maybeStop ends what the queue has started once it is shut down and holds nothing.
func (q *requests[T]) maybeStop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.open.Err() != nil && len(q.hands)+q.aside+q.begun == 0 {
		q.stop()
	}
}

// Flush waits until the service has acknowledged whatever was called for so far.
func (q *requests[T]) Flush(ctx context.Context) error { return q.keys.Flush(ctx) }

// Len is how many requests are ready and not held, by anybody.
func (q *requests[T]) Len() int { return q.keys.Len() }

// ShutDown has adds ignored, and Get tell of the shutdown.
func (q *requests[T]) ShutDown() {
	q.keys.ShutDown()
	q.shut()
}

// ShutDownWithDrain is ShutDown that waits until this process holds nothing any more.
func (q *requests[T]) ShutDownWithDrain() {
	q.keys.ShutDownWithDrain()
	q.shut()
}

// ShuttingDown reports whether the queue was shut down.
func (q *requests[T]) ShuttingDown() bool { return q.keys.ShuttingDown() }

// Wait returns when everything that the queue started has ended.
func (q *requests[T]) Wait() {
	q.keys.Wait()
	q.parted.Wait()
}

// levels are priorities as controllers have them, by those of the service from -4 on. A priority is
// the next lower one of these, so that an order of magnitude counts; the lowest has no end.
var levels = [...]int{-1000, -100, -10, -1, 0, 1, 10, 100}

// levelOf is the service's priority of a controller's.
func levelOf(priority int) int {
	level := 0
	for n, from := range levels {
		if priority >= from {
			level = n
		}
	}
	return level - 4
}

// priorityOf is the controller's priority of the service's.
func priorityOf(level int) int { return levels[min(max(level+4, 0), len(levels)-1)] }
