package client

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/internal/tracing"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// WorkerConfig says how a [Worker] works. Queue must be set.
type WorkerConfig struct {
	// Queue is the queue to work on.
	Queue string
	// Session names this worker to the service. Default: random.
	Session string
	// Name tells people who it is: "controllers-0/job".
	Name string
	// Concurrency is how many keys are reconciled at once. Default 1.
	Concurrency int
	// Prefetch is how many further keys are leased ahead, so that a slot never
	// waits for the network. Default 0.
	Prefetch int
	// Lease is the lease duration asked for, at most the queue's max_lease.
	// Default: the queue's lease duration. Leases are extended for as long as
	// their reconcile runs.
	Lease time.Duration
	// Margin is how long before the end of a lease its reconcile is cancelled,
	// when it could not be extended. Default a fifth of the lease, at most 2 s.
	Margin time.Duration
	// Timeout bounds one reconcile. Default 5 min.
	Timeout time.Duration
	// Grace is how long reconciles may go on once the worker stops, before they
	// are cancelled. Default 20 s.
	Grace time.Duration
	// Log receives failures, each when it begins and once a minute. Default: slog.Default().
	Log *slog.Logger
	// Tracer makes spans of the wait and of the reconcile in the item's trace, where that is
	// recorded. One that fails and is not recorded begins a trace of its own: 10 at once, and one
	// a second from then on. Default: none.
	Tracer trace.TracerProvider
	// OnStarted is called when a reconcile begins.
	OnStarted func(item Item)
	// OnFinished is called when it ended; err is what the reconciler returned.
	OnFinished func(item Item, outcome Outcome, err error, took time.Duration)
	// OnLost is called when a lease was lost, or its settlement came too late.
	OnLost func(key string)
	// OnConnected is called when the Work stream is open (true, with the store's
	// generation) or broke (false).
	OnConnected func(connected bool, generation string)
}

func (c WorkerConfig) withDefaults() WorkerConfig {
	c.Session = cmp.Or(c.Session, rand.Text())
	c.Name = cmp.Or(c.Name, c.Queue)
	c.Concurrency = cmp.Or(c.Concurrency, 1)
	c.Timeout = cmp.Or(c.Timeout, 5*time.Minute)
	c.Grace = cmp.Or(c.Grace, 20*time.Second)
	c.Log = logger(c.Log)
	return c
}

func (c WorkerConfig) validate() error {
	var faults []error
	fault := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf("client: worker: "+format, args...))
		}
	}
	fault(c.Queue != "", "queue is empty")
	fault(c.Concurrency > 0 && c.Prefetch >= 0 && c.Concurrency+c.Prefetch <= 10000, "concurrency %d with prefetch %d is not within 1 and 10000", c.Concurrency, c.Prefetch)
	fault(c.Lease == 0 || c.Lease >= time.Second && c.Lease <= time.Hour, "lease %v is not within 1s and 1h", c.Lease)
	fault(c.Margin >= 0 && c.Timeout > 0 && c.Grace > 0, "margin, timeout and grace must not be negative")
	fault(c.Lease == 0 || c.Margin < c.Lease/2, "margin %v takes half of the lease %v", c.Margin, c.Lease)
	return errors.Join(faults...)
}

// Worker leases keys of one queue and has them reconciled. It holds one Work
// stream, opened again when it breaks with the leases that are still held, and
// sends settlements again until they are answered.
type Worker struct {
	cfg   WorkerConfig
	c     queuev1.QueueServiceClient
	rec   Reconciler
	pulls bool // callers of Get take the keys; see Puller

	cluster string
	errors  tracing.Errors // those that begin a trace

	started  time.Time
	base     context.Context // reconcilers' contexts derive from it; it has no end of its own
	handlers sync.WaitGroup
	wake     chan struct{} // tells the sender that there is something to send
	quiet    chan struct{} // closed when draining and no reconcile is left
	idle     chan struct{} // closed when draining and no settlement is left either
	shut     chan struct{} // closed when the session was shut down
	shutOnce sync.Once

	mu        sync.Mutex // guards what follows
	link      *link      // the open stream, or nil
	lease     time.Duration
	tasks     map[leaseID]*task // leases in hand
	busy      map[string]*task  // by key: reconciles that run
	ready     []*task           // leases whose reconcile has not begun
	outbox    []*queuev1.Settlement
	unsettled []*queuev1.SettleBatch // sent and not answered
	late      []*lateBatch           // answered in part: the rest is under way
	retries   map[leaseID]*retry     // the store was not reached
	free      []*queuev1.Settlement  // answered, to be used again
	getters   []chan *task           // of a Puller: those that wait for a key
	flushed   []chan struct{}        // closed when every settlement is answered
	asleep    bool                   // the sender waits for wake
	lastID    uint64
	nameUntil time.Time // until then extensions name their leases
	draining  bool
	drained   chan struct{} // closed when draining
	stopping  error         // set when every reconcile is to end
	clock     *time.Timer   // ends what has to end
	next      time.Time     // when clock fires; zero when it does not
}

type leaseID struct {
	key   string
	token uint64
}

// NewWorker returns a worker on a connection to the queue service.
func NewWorker(conn grpc.ClientConnInterface, rec Reconciler, cfg WorkerConfig) (*Worker, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Worker{
		cfg: cfg, c: queuev1.NewQueueServiceClient(conn), rec: rec, cluster: clusterOf(cfg.Queue), errors: tracing.NewErrors(),
		wake: make(chan struct{}, 1), drained: make(chan struct{}), quiet: make(chan struct{}), idle: make(chan struct{}), shut: make(chan struct{}),
		tasks: map[leaseID]*task{}, retries: map[leaseID]*retry{}, busy: map[string]*task{}, lease: cmp.Or(cfg.Lease, 30*time.Second),
		lastID: firstID(),
	}, nil
}

// Session is the id by which the service knows this worker.
func (w *Worker) Session() string { return w.cfg.Session }

// Connected reports whether the Work stream is open.
func (w *Worker) Connected() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.link != nil
}

// settleTimeout is how long a stop waits for reconciles to return once they are
// cancelled, and then for the last settlements.
const settleTimeout = 3 * time.Second

// Run works until ctx ends, and may be called once. It stops in two steps: first
// no more keys are leased and what is in hand is finished; after the grace period
// the rest is cancelled and given back. It returns nil after such a stop,
// [ErrShutDown] when the session was shut down by somebody, and an error when
// the service refuses the worker's own settings, the server is no queue service,
// or a reconciler does not return. Everything else is tried again and logged for as
// long as it lasts: a service that is away or does not trust this process, and a queue
// that does not exist, which may be created later.
func (w *Worker) Run(ctx context.Context) error {
	w.started, w.base = time.Now(), context.WithoutCancel(ctx)
	defer w.stopClock()
	linked, unlink := context.WithCancel(context.WithoutCancel(ctx))
	defer unlink()
	ended := make(chan error, 1)
	go func() {
		ended <- w.stayLinked(linked)
		close(ended)
	}()

	var result error
	select {
	case result = <-ended:
		w.cancelAll(ErrLeaseLost)
	case <-w.shut:
		result = ErrShutDown
	case <-ctx.Done():
	}
	w.drain()
	if !within(w.quiet, w.cfg.Grace) {
		w.cancelAll(ErrStopping)
		within(w.quiet, settleTimeout)
	}
	if result == nil || errors.Is(result, ErrShutDown) { // else there is no stream to settle on
		within(w.idle, settleTimeout)
	}
	unlink()
	for range ended { // waits for the stream's goroutine; its error was taken, or is nil after unlink
	}
	return errors.Join(result, w.leftovers())
}

// within reports whether done is closed before d is over.
func within(done <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// leftovers waits for the last reconcilers, within reason.
func (w *Worker) leftovers() error {
	gone := make(chan struct{})
	go func() {
		w.handlers.Wait()
		close(gone)
	}()
	within(gone, time.Second)
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.unsure()); n > 0 {
		w.cfg.Log.Warn("settlements not sent: their leases will expire", slog.String("queue", w.cfg.Queue), slog.Int("count", n))
	}
	if len(w.busy) == 0 {
		return nil
	}
	keys := make([]string, 0, len(w.busy))
	for key := range w.busy {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	if w.pulls {
		w.cfg.Log.Warn("keys not settled: their leases will expire", slog.String("queue", w.cfg.Queue), slog.Int("count", len(keys)))
		return nil
	}
	return fmt.Errorf("client: reconcilers did not return after they were cancelled: %q", keys)
}

// drain is the first step of a stop.
func (w *Worker) drain() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.draining = true
	shut(w.drained)
	for _, t := range w.ready {
		w.release(t, "worker is stopping")
	}
	w.ready = nil
	w.checkIdle()
	w.notify()
}

// cancelAll ends every reconcile.
func (w *Worker) cancelAll(cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopping = cause
	for _, t := range w.tasks {
		t.cancelled(cause)
	}
	for _, t := range w.busy {
		t.cancelled(cause)
	}
}

// room is how many leases may be in hand. Mu must be held.
func (w *Worker) room() int {
	if w.pulls {
		return len(w.tasks) + len(w.getters)
	}
	return w.cfg.Concurrency + w.cfg.Prefetch
}

// checkIdle must be called with mu held whenever something was taken off.
func (w *Worker) checkIdle() {
	if len(w.flushed) > 0 && w.unanswered() == 0 {
		for _, c := range w.flushed {
			close(c)
		}
		w.flushed = nil
	}
	if !w.draining || len(w.tasks)+len(w.busy) > 0 {
		return
	}
	shut(w.quiet)
	if w.unanswered() == 0 {
		shut(w.idle)
	}
}

func shut(c chan struct{}) {
	if !closed(c) {
		close(c)
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// notify has the sender look for something to send, if it does not anyway. Mu
// must be held.
func (w *Worker) notify() {
	if !w.asleep {
		return
	}
	w.asleep = false
	select {
	case w.wake <- struct{}{}:
	default:
	}
}
