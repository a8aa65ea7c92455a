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
)

// Config says which queue it is. Queue must be set.
type Config struct {
	// Queue is the queue's name, by custom "<cluster>/<controller>".
	Queue string
	// Settings create the queue, and change it when it exists with others: its
	// rate limiter, for one. Nil leaves a queue that exists as it is.
	Settings *client.QueueConfig
	// Session names this process to the service. Default: random.
	Session string
	// Name tells people who it is.
	Name string
	// Lease is how long a key may be held by a process that is cut off, at most
	// the queue's max_lease. Default: the queue's, 30 s.
	Lease time.Duration
	// Grace is how long keys may be held after the context of New has ended.
	// Default 20 s.
	Grace time.Duration
	// OnError is called with what cannot be done, as "add", "len", "done", and "run" when the
	// service refuses this process and Get says that there is nothing any more; key may be
	// empty. It must be quick and safe for concurrent use. Without it these failures go to Log,
	// each kind once a minute.
	OnError func(op, key string, err error)
	// Log receives failures of the connection. Default: slog.Default().
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

	out *outbox // what was called for and is not answered

	mu    sync.Mutex // guards what follows
	held  map[string]*holding
	again map[string]bool // done while dirty during a shutdown, and not here again yet; true once settled
	free  chan struct{}   // closed and replaced when a key was settled
	force bool            // forced is closed
	ended bool            // a Get has said that nothing is left
	said  map[string]time.Time
}

// holding is a key that a caller has in hand.
type holding struct {
	*client.Held
	dirty bool // this process added it since
}

// New returns a queue that works until ctx ends; then Get tells of a shutdown,
// and keys that are held may be Done for the grace period. It does not wait for
// the service to be reachable.
func New(ctx context.Context, conn grpc.ClientConnInterface, cfg Config) (*Queue, error) {
	if cfg.Log == nil {
		cfg.Log = slog.Default() //nolint:forbidigo // a controller that says nothing about its failures must be wanted
	}
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
		held: map[string]*holding{}, again: map[string]bool{}, said: map[string]time.Time{}, free: make(chan struct{}),
		forced: make(chan struct{}), ready: make(chan struct{}), retries: make(chan struct{}, 1),
	}
	q.out = newOutbox(window, q.send, q.failure)
	q.ctx, q.cancel = context.WithCancel(ctx)
	q.open, q.shut = context.WithCancel(q.ctx)
	q.parts.Go(func() {
		q.configure()
		close(q.ready)
		// What is called for while the last keys are finished is sent as well.
		sending, stop := context.WithCancel(context.WithoutCancel(ctx))
		q.parts.Go(func() { _ = adds.Run(sending) })
		q.tell("run", "", pulls.Run(q.ctx))
		<-q.ctx.Done()
		last, cancel := context.WithTimeout(sending, lastSends)
		defer cancel()
		_ = q.out.flush(last, "")
		q.out.close()
		stop()
	})
	q.parts.Go(q.out.run)
	q.parts.Go(q.retry)
	return q, nil
}

// Wait returns when everything the queue has started has ended: after the
// context of New has, or after a shutdown when nothing is held any more. A key that became
// dirty while it was in hand during the shutdown is held until a Get takes it and its Done
// follows; if nobody calls Get, Wait lasts until the context of New ends.
func (q *Queue) Wait() { q.parts.Wait() }

func (q *Queue) tell(op, key string, err error) {
	switch {
	case err == nil:
	case q.cfg.OnError != nil:
		q.cfg.OnError(op, key, err)
	default:
		q.warn(op, key, err)
	}
}

// warn logs the first failure of its kind, and then one a minute.
func (q *Queue) warn(op, key string, err error) {
	q.mu.Lock()
	quiet := time.Since(q.said[op]) < time.Minute
	if !quiet {
		q.said[op] = time.Now()
	}
	q.mu.Unlock()
	if !quiet {
		q.cfg.Log.Error("work queue failed", slog.String("queue", q.cfg.Queue), slog.String("op", op), slog.String("key", key), slog.Any("error", err))
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
		var settings client.QueueConfig
		if q.cfg.Settings != nil {
			settings = *q.cfg.Settings
		} else if _, err := q.admin.Len(q.ctx); !errors.Is(err, client.ErrQueueNotFound) {
			return err
		}
		_, err := q.admin.Configure(q.ctx, settings)
		return err
	})
}

const (
	// window is how many operations are sent and not answered. A producer sends at most
	// 8 batches of 1,000 at a time.
	window = 16_000
	// lastSends is how long what was called for may take to be sent after the end.
	lastSends = 3 * time.Second
)

// send is the outbox's: the producer never waits for so few.
func (q *Queue) send(op client.Op, done func(error)) {
	if err := q.adds.Send(context.WithoutCancel(q.ctx), op, func(_ client.OpResult, err error) { done(err) }); err != nil {
		done(err)
	}
}

var opNames = map[client.OpKind]string{
	0: "add", client.OpAdd: "add", client.OpAddAfter: "add after",
	client.OpAddRateLimited: "add rate limited", client.OpForget: "forget",
}

// failure is the outbox's.
func (q *Queue) failure(op client.Op, err error) (again bool) {
	q.tell(opNames[op.Kind], op.Key, err)
	if !useful(err) || errors.Is(err, client.ErrStopped) || errors.Is(err, errNotSent) {
		return false
	}
	select {
	case q.retries <- struct{}{}:
	default:
	}
	return true
}

// retry has what failed sent once more, after a while.
func (q *Queue) retry() {
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
		q.out.again()
	}
}

// Add makes a key wait, unless it waits already. It never waits for the service, nor do
// AddAfter, AddRateLimited and Forget: what they ask for is folded by key until it is sent.
func (q *Queue) Add(key string) { q.AddItem(client.AddItem{Key: key}, AddOptions{}) }

// AddOptions say when an added key is to run; the zero value is at once.
type AddOptions struct {
	// After is the least delay; see [Queue.AddAfter].
	After time.Duration
	// RateLimited has the key wait as the queue's rate limiter says too, and counts it there.
	RateLimited bool
}

// AddItem adds a key with a priority, a barrier and a trace. Of adds that are folded before they
// are sent, the highest priority, the highest revisions and the last trace count.
func (q *Queue) AddItem(item client.AddItem, o AddOptions) {
	op := client.Op{Key: item.Key, Priority: item.Priority, Barrier: item.Barrier, Trace: item.Trace}
	if o.RateLimited {
		limited := op
		limited.Kind = client.OpAddRateLimited
		q.addLater(limited)
	}
	switch {
	case o.After > 0:
		op.Kind, op.Delay = client.OpAddAfter, o.After
		q.addLater(op)
	case !o.RateLimited:
		q.addNow(op)
	}
}

func (q *Queue) addNow(op client.Op) {
	q.mu.Lock()
	shut := q.ShuttingDown()
	if h := q.held[op.Key]; h != nil && !shut {
		h.dirty = true
	}
	q.mu.Unlock()
	if !shut {
		q.put(op)
	}
}

// AddAfter makes a key wait after d; the earlier of two due times wins. The time counts from
// the call, also while the service cannot be reached.
func (q *Queue) AddAfter(key string, d time.Duration) {
	q.AddItem(client.AddItem{Key: key}, AddOptions{After: d})
}

// AddRateLimited makes a key wait as the queue's rate limiter says.
func (q *Queue) AddRateLimited(key string) {
	q.AddItem(client.AddItem{Key: key}, AddOptions{RateLimited: true})
}

// addLater ignores keys after a shutdown, as upstream does, except those in hand: their next run
// is due when this process is gone, and nobody else knows of it.
func (q *Queue) addLater(op client.Op) {
	q.mu.Lock()
	ignored := q.ShuttingDown() && q.held[op.Key] == nil
	q.mu.Unlock()
	if !ignored {
		q.put(op)
	}
}

// Forget has the rate limiter forget a key; Done is still needed.
func (q *Queue) Forget(key string) { q.put(client.Op{Key: key, Kind: client.OpForget}) }

// Flush waits until the service has done, or refused permanently, whatever was called for so far;
// while it cannot be reached that is not the case. Errors: that of ctx, and [client.ErrStopped].
func (q *Queue) Flush(ctx context.Context) error { return q.out.acknowledged(ctx) }

func (q *Queue) put(op client.Op) {
	if !q.out.put(op) {
		q.tell(opNames[op.Kind], op.Key, client.ErrStopped)
	}
}

// NumRequeues is how often a key was added rate-limited since it was forgotten;
// 0 when the service cannot be asked before the context of New ends.
func (q *Queue) NumRequeues(key string) int {
	var n int64
	q.keep("num requeues", key, func() (err error) {
		if err = q.out.flush(q.ctx, key); err != nil {
			return err
		}
		n, err = q.adds.NumRequeues(q.ctx, key)
		return err
	})
	return int(n)
}

// Len is how many keys are ready and not held, by anybody; 0 when the service
// cannot be asked before the context of New ends.
func (q *Queue) Len() int { return int(q.counts().Ready) }

// counts asks what the queue holds, behind every call of this process; zero when
// the context ended first.
func (q *Queue) counts() (counts client.Counts) {
	<-q.ready
	q.keep("len", "", func() error {
		err := errors.Join(q.out.flush(q.ctx, ""), q.pulls.Flush(q.ctx))
		if err == nil {
			counts, err = q.admin.Len(q.ctx)
		}
		return err
	})
	return counts
}

// Done ends the holding of a key: if it was added meanwhile it waits again. A
// key that this process does not hold is left alone.
func (q *Queue) Done(key string) { q.Settle(key, client.Result{Outcome: client.OutcomeDone}) }

// Settle is Done that says more of how it ended.
func (q *Queue) Settle(key string, r client.Result) {
	q.mu.Lock()
	h := q.held[key]
	delete(q.held, key)
	again := h != nil && h.dirty && q.ShuttingDown()
	if again {
		q.again[key] = false
	}
	close(q.free)
	q.free = make(chan struct{})
	q.mu.Unlock()
	if h == nil {
		q.tell("done", key, fmt.Errorf("workqueue: %q is not held", key))
		return
	}
	q.tell("done", key, h.Settle(r))
	if again {
		q.mu.Lock()
		if _, waits := q.again[key]; waits {
			q.again[key] = true
		}
		q.mu.Unlock()
	}
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
