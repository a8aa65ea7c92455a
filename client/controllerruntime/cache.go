package controllerruntime

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	crclient "sigs.k8s.io/controller-runtime/pkg/client"
)

// remote is a cache that keeps nothing: the index answers.
type remote struct {
	op       *Operator
	scheme   *runtime.Scheme
	mapper   meta.RESTMapper
	settings settings
	strict   bool // reads of kinds without an informer fail
	lead     *lead
	kinds    sync.Map // of kind by kindKey

	mu        sync.Mutex // guards what follows
	informers map[kindKey]*informer
	ctx       context.Context // of Start; nil before
	started   chan struct{}
	parts     sync.WaitGroup
}

var _ cache.Cache = (*remote)(nil)

// newRemote makes a cache of complete options; nothing is asked of the index before Start.
func newRemote(op *Operator, o cache.Options) (*remote, error) {
	if o.NewInformer != nil {
		return nil, errors.New("controllerruntime: cache.Options.NewInformer needs a local cache, see Options.Local")
	}
	s, err := newSettings(o)
	if err != nil {
		return nil, err
	}
	c := &remote{
		op: op, scheme: o.Scheme, mapper: o.Mapper, settings: s, strict: o.ReaderFailOnMissingInformer,
		informers: map[kindKey]*informer{}, started: make(chan struct{}),
	}
	if op.conn != nil {
		c.lead = newLead(op)
	}
	return c, nil
}

// Start follows what informers have handlers for until ctx ends, and returns when every handler
// has.
func (c *remote) Start(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.mu.Lock()
	if c.ctx != nil {
		c.mu.Unlock()
		return errors.New("informer already started")
	}
	c.ctx = ctx
	for _, i := range c.informers {
		c.run(i)
	}
	close(c.started)
	c.mu.Unlock()
	var led chan error
	if c.lead != nil {
		c.op.mu.Lock()
		c.op.lead = c.lead
		c.op.mu.Unlock()
		led = make(chan error, 1)
		go func() { led <- c.lead.run(ctx) }()
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-c.op.fault:
	case err = <-led: // before ctx has ended only with an error
		led = nil
	}
	cancel()
	if led != nil {
		err = errors.Join(err, <-led)
	}
	c.mu.Lock()   // nothing is started any more: see run
	c.mu.Unlock() //nolint:staticcheck // it waits for those that are at it
	c.parts.Wait()
	return err
}

// run starts an informer. The mutex is held.
func (c *remote) run(i *informer) {
	if c.ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithCancel(c.ctx)
	i.cancel = cancel
	c.parts.Go(func() {
		defer cancel()
		i.run(ctx)
	})
}

// informer returns that of a kind, which it makes unless it must be there.
func (c *remote) informer(key kindKey, must bool) (*informer, error) {
	c.mu.Lock()
	i, ok := c.informers[key]
	c.mu.Unlock()
	if ok {
		return i, nil
	}
	if must {
		return nil, &cache.ErrResourceNotCached{GVK: key.gvk}
	}
	k, err := c.kind(key)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if i, ok := c.informers[key]; ok {
		return i, nil
	}
	i = newInformer(c, k)
	c.informers[key] = i
	if c.ctx != nil {
		c.run(i)
	}
	return i, nil
}

// ready returns the informer of a kind once it can be read. It fails before Start.
func (c *remote) ready(ctx context.Context, obj runtime.Object) (*informer, error) {
	key, err := c.keyOf(obj)
	if err != nil {
		return nil, err
	}
	i, err := c.informer(key, c.strict)
	if err != nil {
		return nil, err
	}
	if !c.isStarted() {
		return nil, &cache.ErrCacheNotStarted{}
	}
	return i, i.await(ctx, obj)
}

func (c *remote) isStarted() bool { return isClosed(c.started) }

// GetInformer implements cache.Cache.
func (c *remote) GetInformer(ctx context.Context, obj crclient.Object, opts ...cache.InformerGetOption) (cache.Informer, error) {
	key, err := c.keyOf(obj)
	if err != nil {
		return nil, err
	}
	return c.getInformer(ctx, key, obj, opts)
}

// GetInformerForKind implements cache.Cache.
func (c *remote) GetInformerForKind(ctx context.Context, gvk schema.GroupVersionKind, opts ...cache.InformerGetOption) (cache.Informer, error) {
	obj, err := c.scheme.New(gvk)
	if err != nil {
		return nil, err
	}
	return c.getInformer(ctx, kindKey{gvk, structured}, obj, opts)
}

func (c *remote) getInformer(ctx context.Context, key kindKey, obj runtime.Object, opts []cache.InformerGetOption) (cache.Informer, error) {
	var o cache.InformerGetOptions
	for _, opt := range opts {
		opt(&o)
	}
	i, err := c.informer(key, false)
	if err != nil {
		return nil, err
	}
	if (o.BlockUntilSynced == nil || *o.BlockUntilSynced) && c.isStarted() {
		if err := i.await(ctx, obj); err != nil {
			return nil, err
		}
	}
	return i, nil
}

// RemoveInformer implements cache.Cache.
func (c *remote) RemoveInformer(_ context.Context, obj crclient.Object) error {
	key, err := c.keyOf(obj)
	if err != nil {
		return err
	}
	c.mu.Lock()
	i, ok := c.informers[key]
	delete(c.informers, key)
	cancel := context.CancelFunc(nil)
	if ok {
		cancel = i.cancel
	}
	c.mu.Unlock()
	if !ok {
		return nil
	}
	i.remove()
	if cancel != nil {
		cancel()
	}
	return nil
}

// WaitForCacheSync implements cache.Cache.
func (c *remote) WaitForCacheSync(ctx context.Context) bool {
	select {
	case <-c.started:
	case <-ctx.Done():
		return false
	}
	c.mu.Lock()
	all := make([]*informer, 0, len(c.informers))
	for _, i := range c.informers {
		all = append(all, i)
	}
	c.mu.Unlock()
	for _, i := range all {
		select {
		case <-i.synced:
		case <-i.stopped:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// NeedLeaderElection has the manager start the cache on every replica.
func (c *remote) NeedLeaderElection() bool { return false }

// timeout is what controller-runtime's cache says of a kind that it cannot sync in time.
func timeout(obj runtime.Object, cause error) error {
	text := fmt.Sprintf("failed waiting for %T Informer to sync", obj)
	if cause != nil {
		text += ": " + cause.Error()
	}
	return apierrors.NewTimeoutError(text, 0)
}

// notFoundAfter is how long a kind may be one that the index does not have, before reads say so:
// services may start in any order.
const notFoundAfter = 10 * time.Second
