package view

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/core/meter"
	"github.com/deltaplane/deltaplane/internal/explain"
	consolev1 "github.com/deltaplane/deltaplane/proto/deltaplane/console/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// MaxRows is how many rows a view shows at most at a time.
const MaxRows = 500

// Traces is a store of traces. Its methods are safe for concurrent use, and quick.
type Traces interface {
	// List are the last traces that have a text in their name or an attribute, and those with an
	// error alone where failed is set, newest first, at most so many.
	List(text string, failed bool, most int) []*consolev1.TraceSummary
	// Get is a trace by its id; nil where the store does not have it.
	Get(id string) *consolev1.Trace
}

// Hub is what one caller sees. Its methods are safe for concurrent use.
type Hub struct {
	parts     explain.Parts
	index     *client.Index
	indexes   indexv1.IndexServiceClient
	queues    queuev1.QueueAdminServiceClient
	reflector reflectorv1.ReflectorServiceClient
	traces    Traces
	log       *slog.Logger

	life context.Context //nolint:containedctx // of what is followed, which outlives the calls that begin it
	stop context.CancelFunc
	wg   sync.WaitGroup

	keys room // for keys of collections

	reflections *memo[*reflectorv1.ListReflectionsResponse]
	collections *memo[*indexv1.ListCollectionsResponse]
	statuses    *memo[*queuev1.ListQueuesResponse]

	did activity // of queues

	mu     sync.Mutex
	shared map[string]*shared // guarded by mu
	closed bool               // guarded by mu
}

// NewHub is what a caller sees through parts, until Close. Traces may be nil.
func NewHub(ctx context.Context, parts explain.Parts, traces Traces, log *slog.Logger) *Hub {
	h := &Hub{
		parts: parts, index: client.NewIndex(parts.Index.Conn), indexes: indexv1.NewIndexServiceClient(parts.Index.Conn),
		queues: queuev1.NewQueueAdminServiceClient(parts.Queue.Conn), reflector: reflectorv1.NewReflectorServiceClient(parts.Reflector.Conn),
		traces: traces, log: log, shared: map[string]*shared{}, keys: room{most: mostKept}, did: activity{meters: meter.Set{}},
		reflections: newMemo[*reflectorv1.ListReflectionsResponse](), collections: newMemo[*indexv1.ListCollectionsResponse](), statuses: newMemo[*queuev1.ListQueuesResponse](),
	}
	h.life, h.stop = context.WithCancel(context.WithoutCancel(ctx))
	return h
}

// Close ends everything that is followed.
func (h *Hub) Close() {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.stop()
	h.wg.Wait()
}

// mostShared is how many things are followed for one caller.
const mostShared = 128

// ErrClosed says that nobody shows anything any more.
var ErrClosed = errors.New("the session is over")

// ErrTooManyViews refuses to follow one thing more for a caller.
var ErrTooManyViews = errors.New("as many things are followed for this caller as may be")

// source is something live.
type source interface {
	// run follows it until ctx ends.
	run(ctx context.Context)
	// soon has it look again without delay.
	soon()
}

// shared is a source with those who show it.
type shared struct {
	source source
	users  int
	cancel context.CancelFunc
}

// share returns the source of a name, which make makes where nobody has it yet, and what gives it
// back.
func (h *Hub) share(name string, make func() source) (s source, release func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, nil, ErrClosed
	}
	one := h.shared[name]
	if one == nil && len(h.shared) >= mostShared {
		return nil, nil, ErrTooManyViews
	}
	if one == nil {
		one = &shared{source: make()}
		var ctx context.Context
		ctx, one.cancel = context.WithCancel(h.life)
		h.shared[name] = one
		h.wg.Go(func() { one.source.run(ctx) })
	}
	one.users++
	return one.source, sync.OnceFunc(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if one.users--; one.users == 0 {
			one.cancel()
			delete(h.shared, name)
		}
	}), nil
}

// begin runs something until the hub is closed. It reports whether it does.
func (h *Hub) begin(run func()) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.wg.Go(run)
	}
	return !h.closed
}

// Soon has everything that is asked again and again asked now: something was done to it.
func (h *Hub) Soon() {
	h.statuses.forget()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.shared {
		s.source.soon()
	}
}

// Shared is how many things are followed, for tests and metrics.
func (h *Hub) Shared() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.shared)
}

// askWithin is how long a service may take to answer.
const askWithin = 5 * time.Second

// fresh is how long what one view has asked for is good enough for another.
const fresh = 900 * time.Millisecond

// memo is an answer that several views need.
type memo[T any] struct {
	turn  chan struct{} // has room for who asks
	stale atomic.Bool   // what was asked up to now is not good enough
	// What follows is for who has the turn.
	at    time.Time
	value T
	err   error
}

func newMemo[T any]() *memo[T] { return &memo[T]{turn: make(chan struct{}, 1)} }

func (m *memo[T]) get(ctx context.Context, ask func(context.Context) (T, error)) (T, error) {
	select {
	case m.turn <- struct{}{}:
		defer func() { <-m.turn }()
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
	if !m.stale.Swap(false) && !m.at.IsZero() && time.Since(m.at) < fresh {
		return m.value, m.err
	}
	m.at = time.Time{}
	value, err := ask(ctx)
	if ctx.Err() != nil { // it was not the service's fault
		return value, err
	}
	m.at, m.value, m.err = time.Now(), value, err
	return value, err
}

// forget has the next who gets the answer ask for it. It waits for nobody.
func (m *memo[T]) forget() { m.stale.Store(true) }

func (h *Hub) listReflections(ctx context.Context) (*reflectorv1.ListReflectionsResponse, error) {
	return h.reflections.get(ctx, func(ctx context.Context) (*reflectorv1.ListReflectionsResponse, error) {
		return h.reflector.ListReflections(ctx, &reflectorv1.ListReflectionsRequest{})
	})
}

func (h *Hub) listCollections(ctx context.Context) (*indexv1.ListCollectionsResponse, error) {
	return h.collections.get(ctx, func(ctx context.Context) (*indexv1.ListCollectionsResponse, error) {
		return h.indexes.ListCollections(ctx, &indexv1.ListCollectionsRequest{})
	})
}

func (h *Hub) listQueues(ctx context.Context) (*queuev1.ListQueuesResponse, error) {
	return h.statuses.get(ctx, func(ctx context.Context) (*queuev1.ListQueuesResponse, error) {
		answer, err := h.queues.ListQueues(ctx, &queuev1.ListQueuesRequest{Partial: true})
		h.did.count(answer, time.Now())
		return answer, err
	})
}
