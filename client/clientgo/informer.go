package clientgo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/informer"
)

// InformerConfig says what an informer follows; the zero value is every object of the example's
// resource in the only cluster that has it.
type InformerConfig struct {
	// Cluster is that of the collection.
	Cluster string
	// Resource is that of the collection. Default: the plural of the example's kind.
	Resource schema.GroupVersionResource
	// Scope selects objects: what a factory's namespace and list options would, which an informer
	// cannot see.
	informer.Scope
	// Fields are paths to keep, "metadata.name"; objects have nothing else then.
	Fields []string
	// Scheme has the type of the example. Default: client-go's scheme.
	Scheme *runtime.Scheme
	// CrashOnPanic lets a handler's panic end the process, as client-go does. Otherwise it is
	// reported, and the handler receives the next notification after a second.
	CrashOnPanic bool
	// OnError and Log receive what goes wrong, see informer.Config.
	OnError func(error)
	Log     *slog.Logger
}

// Informer is a cache.SharedIndexInformer that follows the index. Its objects are shared and must
// not be changed. It is safe for concurrent use.
type Informer struct {
	shared  *informer.Shared[any]
	indexer *indexer
	watcher *cache.Reflector // what watch error handlers are given
	log     *slog.Logger

	mu        sync.Mutex      // guards what follows
	running   context.Context // that of the run; nil before
	transform cache.TransformFunc
	onWatch   cache.WatchErrorHandlerWithContext
}

var _ cache.SharedIndexInformer = (*Informer)(nil)

// NewSharedIndexInformer returns an informer of the objects of an example's type, which is a type
// of the scheme, *unstructured.Unstructured or *metav1.PartialObjectMetadata; the last two
// need kind and apiVersion, or a Resource. Resync is that of handlers that do not say otherwise;
// zero means never.
//
// It asks the index for its collections, so that most mistakes are errors here: [ErrUnknownType],
// [ErrNoResource], [client.ErrCollectionNotFound], [ErrAmbiguous], [client.ErrDroppedFields] where
// the index has no more than metadata, and those of an index that cannot be reached.
func NewSharedIndexInformer(ctx context.Context, index Index, example runtime.Object, resync time.Duration, indexers cache.Indexers, cfg InformerConfig) (*Informer, error) {
	build, err := prepare(ctx, index, example, indexers, cfg)
	if err != nil {
		return nil, err
	}
	return build(resync)
}

// prepare asks the index what build needs to know.
func prepare(ctx context.Context, index Index, example runtime.Object, indexers cache.Indexers, cfg InformerConfig) (build func(resync time.Duration) (*Informer, error), err error) {
	collection, decode, view, err := cfg.resolve(ctx, index, example)
	if err != nil {
		return nil, err
	}
	return func(resync time.Duration) (*Informer, error) {
		log := cmp.Or(cfg.Log, slog.Default()) //nolint:forbidigo // as the informer does
		i := &Informer{log: log}
		var err error
		i.shared, err = informer.New(index, informer.Config[any]{
			Collection: collection, Scope: cfg.Scope, View: view, Fields: cfg.Fields, Resync: resync, CrashOnPanic: cfg.CrashOnPanic, Log: log,
			Decode: func(o client.Object) (any, error) { return i.decode(decode, o) },
			OnError: func(err error) {
				i.watchFailed(err)
				if cfg.OnError != nil {
					cfg.OnError(err)
				}
			},
		})
		if err != nil {
			return nil, err
		}
		i.indexer = &indexer{store: i.shared.Store(), log: log, funcs: cache.Indexers{}}
		if err := i.indexer.AddIndexers(indexers); err != nil {
			return nil, err
		}
		i.watcher = cache.NewReflectorWithOptions(&cache.ListWatch{}, example, i.indexer, cache.ReflectorOptions{Name: i.shared.Name()})
		return i, nil
	}, nil
}

// resolve checks what is asked for.
func (c InformerConfig) resolve(ctx context.Context, index Index, example runtime.Object) (collection string, decode decodeFunc, view client.View, err error) {
	if index == nil {
		return "", nil, 0, errors.New("clientgo: no index is given")
	}
	types := cmp.Or(c.Scheme, scheme.Scheme)
	if decode, err = decoder(example, types); err != nil {
		return "", nil, 0, err
	}
	resource := c.Resource
	if resource == (schema.GroupVersionResource{}) {
		if resource, err = resourceOf(example, types); err != nil {
			return "", nil, 0, err
		}
	}
	status, err := discover(ctx, index, c.Cluster, resource)
	if err != nil {
		return "", nil, 0, err
	}
	_, metadata := example.(*metav1.PartialObjectMetadata)
	switch {
	case metadata && len(c.Fields) == 0:
		view = client.ViewMetadata
	case !metadata && status.Dropped != nil && status.Dropped.MetadataOnly:
		return "", nil, 0, fmt.Errorf("clientgo: %w: %s has metadata alone; use *metav1.PartialObjectMetadata", client.ErrDroppedFields, status.Collection)
	}
	return status.Collection, decode, view, nil
}

func (i *Informer) decode(decode decodeFunc, o client.Object) (any, error) {
	obj, err := decode(o)
	if err != nil {
		return nil, err
	}
	i.mu.Lock()
	transform := i.transform
	i.mu.Unlock()
	if transform == nil {
		return obj, nil
	}
	return transform(obj)
}

// watchFailed calls the handler of watch errors.
func (i *Informer) watchFailed(err error) {
	i.mu.Lock()
	ctx, onWatch := i.running, i.onWatch
	i.mu.Unlock()
	if lost, ok := errors.AsType[*informer.DisconnectedError](err); ok && onWatch != nil {
		onWatch(ctx, i.watcher, lost)
	}
}

// beforeStart changes what must not change later.
func (i *Informer) beforeStart(change func()) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.running != nil {
		return fmt.Errorf("%s: %w: informer has already started", i.shared.Name(), informer.ErrStarted)
	}
	change()
	return nil
}

// SetTransform has every object pass a function before it is stored, also as it was deleted. An
// object that the function fails on is kept apart, see informer.DecodeError. It must be set before
// the start.
func (i *Informer) SetTransform(f cache.TransformFunc) error {
	return i.beforeStart(func() { i.transform = f })
}

// SetWatchErrorHandler sets a function that is called with each failure of the watch, an
// *informer.DisconnectedError. Its reflector is one that does not run. It must be set before the
// start.
func (i *Informer) SetWatchErrorHandler(f cache.WatchErrorHandler) error {
	return i.SetWatchErrorHandlerWithContext(func(_ context.Context, r *cache.Reflector, err error) { f(r, err) })
}

// SetWatchErrorHandlerWithContext is SetWatchErrorHandler; the context is that of the run.
func (i *Informer) SetWatchErrorHandlerWithContext(f cache.WatchErrorHandlerWithContext) error {
	return i.beforeStart(func() { i.onWatch = f })
}

// Run is RunWithContext until a channel is closed.
func (i *Informer) Run(stop <-chan struct{}) { i.RunWithContext(wait.ContextForChannel(stop)) }

// RunWithContext follows the collection until ctx ends, and returns when every callback has. A
// second call logs and returns.
func (i *Informer) RunWithContext(ctx context.Context) {
	i.mu.Lock()
	if i.running == nil {
		i.running = ctx
	}
	i.mu.Unlock()
	if err := i.shared.Run(ctx); err != nil {
		i.log.Warn("informer was started before", slog.String("informer", i.shared.Name()), slog.Any("error", err))
	}
}

// HasSynced reports whether the store has had one complete state.
func (i *Informer) HasSynced() bool { return i.shared.HasSynced() }

// HasSyncedChecker is done when HasSynced is true.
func (i *Informer) HasSyncedChecker() cache.DoneChecker { return i.shared }

// IsStopped reports whether Run has returned.
func (i *Informer) IsStopped() bool {
	select {
	case <-i.shared.Stopped():
		return true
	default:
		return false
	}
}

// LastSyncResourceVersion is the resource version that the store has reached.
func (i *Informer) LastSyncResourceVersion() string { return i.indexer.LastStoreSyncResourceVersion() }

// AtLeast returns once the store has reached the resource version that a write was answered with,
// so that reads that follow see the write. Errors are those of informer.Store.AtLeast.
func (i *Informer) AtLeast(ctx context.Context, resourceVersion string) error {
	return i.shared.Store().AtLeast(ctx, client.Revision{RV: resourceVersion})
}

// Status tells how the informer is doing.
func (i *Informer) Status() informer.Status { return i.shared.Status() }

// GetStore returns the store, which can only be read.
func (i *Informer) GetStore() cache.Store { return i.indexer }

// GetIndexer returns the store, which can only be read. Lists of it, and listers made on it, are
// empty before the first sync, while GetByKey and reads by index fail with [client.ErrNotSynced].
func (i *Informer) GetIndexer() cache.Indexer { return i.indexer }

// AddIndexers adds indexes, at any time. An index function that fails, or does not return the same
// values for the same object ([ErrNotDeterministic]), makes reads of its index fail.
func (i *Informer) AddIndexers(indexers cache.Indexers) error { return i.indexer.AddIndexers(indexers) }

// GetController returns a controller that does nothing, as that of client-go's shared informer.
func (i *Informer) GetController() cache.Controller { return controller{i} }

// controller is only there to be asked.
type controller struct{ *Informer }

func (controller) Run(<-chan struct{})            {}
func (controller) RunWithContext(context.Context) {}
