package controllerruntime

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/clientgo"
	"github.com/deltaplane/deltaplane/internal/attempt"
)

// informer passes changes of a kind to handlers, and keeps nothing.
type informer struct {
	kind
	cache   *remote
	synced  chan struct{} // closed once the index can be read
	absent  chan struct{} // closed while unsynced once the index has long not had the collection
	stopped chan struct{}
	cancel  context.CancelFunc // of run; guarded by the cache's mutex

	mu         sync.Mutex // guards what follows
	collection string     // its full name, once synced
	fault      error      // why it is not synced
	removed    bool
	handlers   []*registration
	ctx        context.Context // of run; nil before
	parts      sync.WaitGroup  // handlers that this replica alone runs
	indexes    map[string]definition
}

var _ cache.Informer = (*informer)(nil)

func newInformer(c *remote, k kind) *informer {
	return &informer{
		kind: k, cache: c, synced: make(chan struct{}), absent: make(chan struct{}), stopped: make(chan struct{}), indexes: map[string]definition{},
	}
}

// run makes the informer ready and its handlers run until ctx ends.
func (i *informer) run(ctx context.Context) {
	defer close(i.stopped)
	if i.sync(ctx) {
		i.mu.Lock()
		i.ctx = ctx
		for _, r := range i.handlers {
			i.startLocked(r)
		}
		i.mu.Unlock()
		close(i.synced)
		i.offer()
	}
	<-ctx.Done()
	i.mu.Lock() // nothing is started any more
	i.removed = true
	i.mu.Unlock()
	i.parts.Wait()
}

// sync waits until the index can be read; false when ctx ended first.
func (i *informer) sync(ctx context.Context) bool {
	began, wait := time.Now(), attempt.Wait{First: 20 * time.Millisecond, Most: 2 * time.Second, Low: 0.5, High: 1}
	for {
		collection, err := i.find(ctx)
		if err == nil {
			i.mu.Lock()
			i.collection, i.fault = collection, nil
			i.mu.Unlock()
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		i.mu.Lock()
		i.fault = err
		i.mu.Unlock()
		if missing := errors.Is(err, client.ErrCollectionNotFound) || errors.Is(err, clientgo.ErrAmbiguous); missing && time.Since(began) > notFoundAfter && !isClosed(i.absent) {
			i.cache.op.report("sync", i.gvk.String(), err)
			close(i.absent)
		}
		if !wait.Sleep(ctx, 0) {
			return false
		}
	}
}

// find is the collection's full name, once the index can be read.
func (i *informer) find(ctx context.Context) (string, error) {
	collection, err := clientgo.Collection(ctx, i.cache.op.index, i.cache.op.o.Cluster, i.resource)
	if err != nil {
		return "", err
	}
	_, err = i.cache.op.index.WaitFor(ctx, client.Barrier{collection: {}}, 0)
	return collection, err
}

// await waits until the index can be read.
func (i *informer) await(ctx context.Context, obj runtime.Object) error {
	select {
	case <-i.synced:
		return nil
	default:
	}
	select {
	case <-i.synced:
		return nil
	case <-i.absent:
	case <-i.stopped:
	case <-ctx.Done():
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if isClosed(i.absent) && i.fault != nil {
		return fmt.Errorf("controllerruntime: %s: %w", i.gvk, i.fault)
	}
	return timeout(obj, i.fault)
}

// HasSynced implements cache.Informer: the index can be read.
func (i *informer) HasSynced() bool { return isClosed(i.synced) }

// HasSyncedChecker implements cache.Informer.
func (i *informer) HasSyncedChecker() toolscache.DoneChecker {
	return checker{"informer of " + i.gvk.String(), i.synced}
}

// IsStopped implements cache.Informer.
func (i *informer) IsStopped() bool { return isClosed(i.stopped) }

// AddEventHandler implements cache.Informer.
func (i *informer) AddEventHandler(h toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandlerWithOptions(h, toolscache.HandlerOptions{})
}

// AddEventHandlerWithResyncPeriod implements cache.Informer; zero means never.
func (i *informer) AddEventHandlerWithResyncPeriod(h toolscache.ResourceEventHandler, resync time.Duration) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandlerWithOptions(h, toolscache.HandlerOptions{ResyncPeriod: &resync})
}

// AddEventHandlerWithOptions implements cache.Informer.
func (i *informer) AddEventHandlerWithOptions(h toolscache.ResourceEventHandler, o toolscache.HandlerOptions) (toolscache.ResourceEventHandlerRegistration, error) {
	if h == nil {
		return nil, fmt.Errorf("controllerruntime: informer of %s: no handler", i.gvk)
	}
	r := newRegistration(i, h, o)
	i.mu.Lock()
	if i.removed {
		i.mu.Unlock()
		return nil, fmt.Errorf("handler %T was not added to shared informer because it has stopped already", h)
	}
	r.number = len(i.handlers)
	i.handlers = append(i.handlers, r)
	if i.ctx != nil {
		i.startLocked(r)
	}
	i.mu.Unlock()
	i.offer()
	return r, nil
}

// startLocked starts a handler that is not the leader's. The mutex is held.
func (i *informer) startLocked(r *registration) {
	if r.led() || i.removed {
		return
	}
	ctx, cancel := context.WithCancel(i.ctx)
	r.cancel = cancel
	i.parts.Go(func() {
		defer cancel()
		r.follow(ctx, nil, time.Now())
	})
}

// offer has the leader look at the handlers.
func (i *informer) offer() {
	if i.cache.lead != nil && i.HasSynced() {
		i.cache.lead.look(i)
	}
}

// RemoveEventHandler implements cache.Informer.
func (i *informer) RemoveEventHandler(handle toolscache.ResourceEventHandlerRegistration) error {
	r, ok := handle.(*registration)
	if !ok || r.informer != i {
		return fmt.Errorf("controllerruntime: informer of %s: a registration of type %T is not one of ours", i.gvk, handle)
	}
	i.mu.Lock()
	i.handlers = slices.DeleteFunc(i.handlers, func(o *registration) bool { return o == r })
	cancel := r.cancel
	i.mu.Unlock()
	r.gone.Store(true)
	if cancel != nil {
		cancel()
	}
	i.offer()
	return nil
}

// remove ends the informer.
func (i *informer) remove() {
	i.mu.Lock()
	i.removed = true
	for _, r := range i.handlers {
		r.gone.Store(true)
	}
	i.handlers = nil
	started := i.ctx != nil
	i.mu.Unlock()
	if !started {
		return
	}
	i.offer()
}

// AddIndexers implements cache.Informer: it has no Go index functions.
func (i *informer) AddIndexers(fns toolscache.Indexers) error {
	for name := range fns {
		return fmt.Errorf("%w: informer of %s, index %q", ErrGoIndex, i.gvk, name)
	}
	return nil
}

// checker is a DoneChecker of client-go.
type checker struct {
	name string
	done <-chan struct{}
}

func (c checker) Name() string          { return c.name }
func (c checker) Done() <-chan struct{} { return c.done }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func uidOf(o client.Object) types.UID { return types.UID(o.UID) }
