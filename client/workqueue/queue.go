package workqueue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/client"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// Config says which queue it is. Queue must be set.
type Config struct {
	// Queue is the queue's name, by custom "<cluster>/<controller>".
	Queue string
	// Settings create the queue, and change it when it exists with others: its
	// rate limiter, for one. Nil leaves a queue that exists as it is.
	Settings *queuev1.QueueConfig
	// Session names this process to the service. Default: random.
	Session string
	// Name tells people who it is.
	Name string
	// Lease is how long a key may be held by a process that is cut off. Default:
	// the queue's, 30 s.
	Lease time.Duration
	// Grace is how long keys may be held after the context of New has ended.
	// Default 20 s.
	Grace time.Duration
	// OnError is told what cannot be done, as "add", "len", "done"; key may be
	// empty. It must be quick and safe for concurrent use, and may be nil.
	OnError func(op, key string, err error)
	// Log receives failures of the connection. Default: discarded.
	Log *slog.Logger
}

// Queue is a work queue of strings, kept by a queue service. It is safe for
// concurrent use.
type Queue struct {
	cfg    Config
	ctx    context.Context // bounds every call: the interface passes none
	cancel context.CancelFunc
	admin  *client.Queue
	adds   *client.Producer
	pulls  *client.Puller
	parts  sync.WaitGroup

	open    context.Context    // as ctx; Gets wait under it
	shut    context.CancelFunc // ends open
	ready   chan struct{}      // closed when the queue is there
	forced  chan struct{}      // closed by ShutDown, which ends a drain
	retries chan struct{}      // holds one token when something has failed

	mu     sync.Mutex // guards what follows
	held   map[string]*client.Held
	free   chan struct{}           // closed and made anew when a key was settled
	force  bool                    // forced is closed
	ended  bool                    // a Get has told that nothing is left
	failed map[operation]client.Op // to be tried again
}

type operation struct {
	kind client.OpKind
	key  string
}

// New returns a queue that works until ctx ends; then Get tells of a shutdown,
// and keys that are held may be Done for the grace period. It does not wait for
// the service to be reachable.
func New(ctx context.Context, conn grpc.ClientConnInterface, cfg Config) (*Queue, error) {
	adds, err := client.NewProducer(conn, client.ProducerConfig{Queue: cfg.Queue, Name: cfg.Name, Log: cfg.Log})
	if err != nil {
		return nil, err
	}
	pulls, err := client.NewPuller(conn, client.WorkerConfig{
		Queue: cfg.Queue, Session: cfg.Session, Name: cfg.Name, Lease: cfg.Lease, Grace: cfg.Grace, Log: cfg.Log,
	})
	if err != nil {
		return nil, err
	}
	q := &Queue{
		cfg: cfg, admin: client.NewQueue(conn, cfg.Queue, ""), adds: adds, pulls: pulls,
		held: map[string]*client.Held{}, free: make(chan struct{}), forced: make(chan struct{}), ready: make(chan struct{}),
		failed: map[operation]client.Op{}, retries: make(chan struct{}, 1),
	}
	q.ctx, q.cancel = context.WithCancel(ctx)
	q.open, q.shut = context.WithCancel(q.ctx)
	q.parts.Go(func() {
		q.configure()
		close(q.ready)
		q.parts.Go(func() { _ = adds.Run(q.ctx) })
		q.tell("run", "", pulls.Run(q.ctx))
	})
	q.parts.Go(q.again)
	return q, nil
}

// Wait returns when everything the queue has started has ended: after the
// context of New has, or after a shutdown when nothing is held any more.
func (q *Queue) Wait() { q.parts.Wait() }

func (q *Queue) tell(op, key string, err error) {
	if err != nil && q.cfg.OnError != nil {
		q.cfg.OnError(op, key, err)
	}
}

// keep calls do until it succeeds; false when the context ended first.
func (q *Queue) keep(op, key string, do func() error) bool {
	wait := 50 * time.Millisecond
	for {
		err := do()
		if err == nil {
			return true
		}
		if q.ctx.Err() != nil {
			return false
		}
		q.tell(op, key, err)
		if !useful(err) || !q.pause(max(wait, retryAfter(err))) {
			return false
		}
		wait = min(2*wait, 2*time.Second)
	}
}

func (q *Queue) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-q.ctx.Done():
		return false
	}
}

// useful reports whether trying again may help.
func useful(err error) bool {
	e, ok := errors.AsType[*client.Error](err)
	return !ok || e.Code != codes.InvalidArgument && e.Code != codes.Unimplemented
}

func retryAfter(err error) time.Duration {
	if e, ok := errors.AsType[*client.Error](err); ok {
		return e.RetryAfter
	}
	return 0
}

// configure makes the queue, unless it is there and nobody wants it otherwise.
func (q *Queue) configure() bool {
	return q.keep("configure", "", func() error {
		if q.cfg.Settings == nil {
			if _, err := q.admin.Len(q.ctx); !errors.Is(err, client.ErrQueueNotFound) {
				return err
			}
		}
		_, _, err := q.admin.Configure(q.ctx, q.cfg.Settings)
		return err
	})
}

// do sends an operation; one that fails is tried again by again.
func (q *Queue) do(name string, op client.Op) {
	err := q.adds.Send(q.ctx, op, func(_ client.OpResult, err error) { q.failure(name, op, err) })
	q.failure(name, op, err)
}

func (q *Queue) failure(name string, op client.Op, err error) {
	if err == nil {
		return
	}
	q.tell(name, op.Key, err)
	if !useful(err) || q.ctx.Err() != nil {
		return
	}
	q.mu.Lock()
	q.failed[operation{op.Kind, op.Key}] = op
	q.mu.Unlock()
	select {
	case q.retries <- struct{}{}:
	default:
	}
}

// again sends what failed once more, after a while.
func (q *Queue) again() {
	const every = 500 * time.Millisecond
	for {
		select {
		case <-q.retries:
		case <-q.ctx.Done():
			return
		}
		// The queue may have been lost with its store.
		if !q.pause(every) || !q.configure() {
			return
		}
		q.mu.Lock()
		failed := q.failed
		q.failed = map[operation]client.Op{}
		q.mu.Unlock()
		for _, op := range failed {
			q.do("add", op)
		}
	}
}

// Add makes a key wait, unless it waits already.
func (q *Queue) Add(key string) { q.add("add", client.Op{Key: key}) }

// AddAfter makes a key wait after d; the earlier of two due times wins.
func (q *Queue) AddAfter(key string, d time.Duration) {
	if d <= 0 {
		q.Add(key)
		return
	}
	q.add("add after", client.Op{Key: key, Kind: client.OpAddAfter, Delay: d})
}

// AddRateLimited makes a key wait as the queue's rate limiter says.
func (q *Queue) AddRateLimited(key string) {
	q.add("add rate limited", client.Op{Key: key, Kind: client.OpAddRateLimited})
}

func (q *Queue) add(name string, op client.Op) {
	if !q.ShuttingDown() {
		q.do(name, op)
	}
}

// Forget has the rate limiter forget a key; Done is still needed.
func (q *Queue) Forget(key string) { q.do("forget", client.Op{Key: key, Kind: client.OpForget}) }

// NumRequeues is how often a key was added rate-limited since it was forgotten;
// 0 when the service cannot be asked before the context of New ends.
func (q *Queue) NumRequeues(key string) int {
	var n int64
	q.keep("num requeues", key, func() (err error) {
		n, err = q.adds.NumRequeues(q.ctx, key)
		return err
	})
	return int(n)
}

// Len is how many keys are ready and not held, by anybody; 0 when the
// service cannot be asked before the context of New ends.
func (q *Queue) Len() int { return int(q.counts().GetReady()) }

// counts asks what the queue holds, behind every call of this process; nil when
// the context ended first.
func (q *Queue) counts() (counts *client.Counts) {
	<-q.ready
	q.keep("len", "", func() error {
		err := errors.Join(q.adds.Flush(q.ctx), q.pulls.Flush(q.ctx))
		if err == nil {
			counts, err = q.admin.Len(q.ctx)
		}
		return err
	})
	return counts
}

// Done ends the holding of a key: if it was added meanwhile it waits again
// . A key that this process does not hold is left alone.
func (q *Queue) Done(key string) {
	q.mu.Lock()
	h := q.held[key]
	delete(q.held, key)
	close(q.free)
	q.free = make(chan struct{})
	q.mu.Unlock()
	if h == nil {
		q.tell("done", key, fmt.Errorf("workqueue: %q is not held", key))
		return
	}
	q.tell("done", key, h.Settle(client.Result{Outcome: client.OutcomeDone}))
	q.maybeEnd()
}

// Context is that of a key that is held: it ends when the lease is about to be
// lost, and when the key is Done. For any other key it has ended already.
func (q *Queue) Context(key string) context.Context {
	q.mu.Lock()
	defer q.mu.Unlock()
	if h := q.held[key]; h != nil {
		return h.Context()
	}
	ended, cancel := context.WithCancel(q.ctx)
	cancel()
	return ended
}

// Item is what the service knows of a key that is held: its token, for one.
func (q *Queue) Item(key string) (client.Item, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	h := q.held[key]
	if h == nil {
		return client.Item{}, false
	}
	return h.Item(), true
}

const (
	// onItsWay is how long a Get of a queue that is shutting down waits for a key
	// before it asks the service whether there is one.
	onItsWay = 50 * time.Millisecond
	// elsewhere is how long it takes keys that are held, and not here, to be on
	// their way here; then they are another replica's.
	elsewhere = time.Second
)

// Get waits for a key and holds it until Done. When shutdown is true there is
// none and none will come.
func (q *Queue) Get() (key string, shutdown bool) {
	for {
		h, err := q.get()
		switch {
		case err == nil:
			key = h.Item().Key
			q.mu.Lock()
			q.held[key] = h
			q.mu.Unlock()
			return key, false
		case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded): // shutting down: look again
		default:
			q.mu.Lock()
			q.ended = true
			q.mu.Unlock()
			q.shut()
			q.maybeEnd()
			return "", true
		}
	}
}

func (q *Queue) get() (*client.Held, error) {
	switch {
	case !q.ShuttingDown():
		return q.pulls.Get(q.open)
	case q.ctx.Err() != nil:
		return nil, client.ErrStopped
	}
	for began := time.Now(); ; {
		ctx, cancel := context.WithTimeout(q.ctx, onItsWay)
		h, err := q.pulls.Get(ctx)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			return h, err
		}
		counts := q.counts()
		held, unclaimed := q.pulls.Held()
		strange := counts.GetProcessing() > int64(held) && time.Since(began) < elsewhere
		if counts.GetReady() == 0 && unclaimed == 0 && !strange {
			return nil, client.ErrStopped
		}
	}
}

// maybeEnd lets go of the streams once nothing can come any more.
func (q *Queue) maybeEnd() {
	q.mu.Lock()
	over := q.ended && len(q.held) == 0
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
