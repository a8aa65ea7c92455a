package clientgo

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"k8s.io/client-go/util/workqueue"

	"github.com/deltaplane/deltaplane/client"
	keys "github.com/deltaplane/deltaplane/client/workqueue"
)

// QueueConfig says which queue it is. Queue must be set; see the fields of the queue of keys.
type QueueConfig[T comparable] struct {
	keys.Config
	// Codec makes keys of items. Default: that of T, where one is built in.
	Codec Codec[T]
}

// Queue is a workqueue.TypedRateLimitingInterface[T] that a queue service keeps for any number of
// replicas. What differs from client-go's is what the documentation of
// github.com/deltaplane/deltaplane/client/workqueue says. It is safe for concurrent use.
type Queue[T comparable] struct {
	keys  *keys.Queue
	cfg   QueueConfig[T]
	codec Codec[T]
}

// NewQueue returns a queue that works until ctx ends. It does not wait for the service.
//
// The limiter is taken over into the queue's settings. Nil leaves the limiter of a queue that
// exists as it is, and is workqueue.DefaultTypedControllerRateLimiter of one that does not. The
// exponential and the fast-slow limiter hide their settings; they are read by what they answer for
// the zero item, which they then forget, and must not be in use. With a limiter the queue gets all
// of Settings, whose zero values mean defaults. Errors: [ErrNoCodec] and [ErrRateLimiter].
//
// An item that cannot be encoded goes to Config.OnError, and so does a key that cannot be decoded,
// which is then added rate-limited again: another version may decode it. Both wrap [ErrKey].
func NewQueue[T comparable](ctx context.Context, conn grpc.ClientConnInterface, limiter workqueue.TypedRateLimiter[T], cfg QueueConfig[T]) (*Queue[T], error) {
	codec := cfg.Codec
	if codec == nil {
		var err error
		if codec, err = CodecFor[T](); err != nil {
			return nil, err
		}
	}
	var err error
	if cfg.Config, err = WithLimiter(cfg.Config, limiter); err != nil {
		return nil, err
	}
	if conn == nil {
		return nil, errors.New("clientgo: no connection is given")
	}
	q, err := keys.New(ctx, conn, cfg.Config)
	if err != nil {
		return nil, err
	}
	return &Queue[T]{keys: q, cfg: cfg, codec: codec}, nil
}

// encode is the key of an item; false when it has none, which was reported then.
func (q *Queue[T]) encode(op string, item T) (key string, ok bool) {
	key, err := EncodeKey(q.codec, item)
	if err != nil {
		q.report(op, "", err)
	}
	return key, err == nil
}

func (q *Queue[T]) report(op, key string, err error) {
	if q.cfg.OnError != nil {
		q.cfg.OnError(op, key, err)
		return
	}
	log := cmp.Or(q.cfg.Log, slog.Default()) //nolint:forbidigo // as the queue of keys does
	log.Error("work queue cannot use a key", slog.String("queue", q.cfg.Queue), slog.String("op", op), slog.String("key", key), slog.Any("error", err))
}

// Add makes an item wait, unless it waits already. It never waits for the service.
func (q *Queue[T]) Add(item T) {
	if key, ok := q.encode("add", item); ok {
		q.keys.Add(key)
	}
}

// AddAfter makes an item wait after d; the earlier of two due times wins.
func (q *Queue[T]) AddAfter(item T, d time.Duration) {
	if key, ok := q.encode("add after", item); ok {
		q.keys.AddAfter(key, d)
	}
}

// AddRateLimited makes an item wait as the queue's rate limiter says.
func (q *Queue[T]) AddRateLimited(item T) {
	if key, ok := q.encode("add rate limited", item); ok {
		q.keys.AddRateLimited(key)
	}
}

// Forget has the rate limiter forget an item; Done is still needed.
func (q *Queue[T]) Forget(item T) {
	if key, ok := q.encode("forget", item); ok {
		q.keys.Forget(key)
	}
}

// NumRequeues is how often an item was added rate-limited since it was forgotten.
func (q *Queue[T]) NumRequeues(item T) int {
	if key, ok := q.encode("num requeues", item); ok {
		return q.keys.NumRequeues(key)
	}
	return 0
}

// Get waits for an item and holds it until Done. When shutdown is true there is none.
func (q *Queue[T]) Get() (item T, shutdown bool) {
	for {
		key, shutdown := q.keys.Get()
		if shutdown {
			var none T
			return none, true
		}
		item, err := DecodeKey(q.codec, key)
		if err == nil {
			return item, false
		}
		q.report("get", key, err)
		q.keys.AddRateLimited(key)
		q.keys.Done(key)
	}
}

// Done ends the holding of an item: if it was added meanwhile it waits again.
func (q *Queue[T]) Done(item T) {
	if key, ok := q.encode("done", item); ok {
		q.keys.Done(key)
	}
}

// Len is how many items are ready and not held, by anybody.
func (q *Queue[T]) Len() int { return q.keys.Len() }

// ShutDown has Adds ignored, and Get hand out what is ready and then tell of the shutdown.
func (q *Queue[T]) ShutDown() { q.keys.ShutDown() }

// ShutDownWithDrain is ShutDown that waits until this process holds nothing any more.
func (q *Queue[T]) ShutDownWithDrain() { q.keys.ShutDownWithDrain() }

// ShuttingDown reports whether the queue was shut down.
func (q *Queue[T]) ShuttingDown() bool { return q.keys.ShuttingDown() }

// Wait returns when everything that the queue started has ended: after the context of NewQueue has,
// or after a shutdown when nothing is held any more.
func (q *Queue[T]) Wait() { q.keys.Wait() }

// Context is that of an item that is held: it ends when the lease is about to be lost, and when the
// item is Done. For any other item it has ended already.
func (q *Queue[T]) Context(item T) context.Context {
	key, _ := q.encode("context", item)
	return q.keys.Context(key)
}

// Item is what the service knows of an item that is held: its token, for one.
func (q *Queue[T]) Item(item T) (client.Item, bool) {
	key, ok := q.encode("item", item)
	if !ok {
		return client.Item{}, false
	}
	return q.keys.Item(key)
}
