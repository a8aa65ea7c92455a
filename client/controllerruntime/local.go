package controllerruntime

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	crclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/attempt"
)

// complete sets what controller-runtime's cache makes of a rest.Config where options leave it out.
func complete(cfg *rest.Config, o cache.Options) (cache.Options, error) {
	var err error
	if o.Scheme == nil {
		o.Scheme = scheme.Scheme
	}
	if o.HTTPClient == nil {
		if o.HTTPClient, err = rest.HTTPClientFor(cfg); err != nil {
			return o, fmt.Errorf("could not create HTTP client from config: %w", err)
		}
	}
	if o.Mapper == nil {
		if o.Mapper, err = apiutil.NewDynamicRESTMapper(cfg, o.HTTPClient); err != nil {
			return o, fmt.Errorf("could not create RESTMapper from config: %w", err)
		}
	}
	return o, nil
}

// newLocal makes controller-runtime's own cache, whose lists and watches the index answers.
func newLocal(op *Operator, cfg *rest.Config, o cache.Options) (cache.Cache, error) {
	next := o.HTTPClient.Transport
	if next == nil {
		next = http.DefaultTransport
	}
	t := &transport{op: op, mapper: o.Mapper, next: next, at: map[string]client.Position{}}
	if base, _, err := rest.DefaultServerUrlFor(cfg); err == nil {
		t.prefix = strings.TrimSuffix(base.Path, "/")
	}
	o.HTTPClient = &http.Client{Transport: t, Timeout: o.HTTPClient.Timeout}
	return cache.New(cfg, o)
}

// mixed is a cache of which some kinds are local.
type mixed struct {
	*remote
	local cache.Cache
	all   bool
	kinds map[schema.GroupVersionKind]bool
}

// newCache is NewCache.
func newCache(op *Operator, cfg *rest.Config, o cache.Options) (cache.Cache, error) {
	o, err := complete(cfg, o)
	if err != nil {
		return nil, err
	}
	if !op.o.Local && len(op.o.LocalFor) == 0 {
		return newRemote(op, o)
	}
	if op.o.Local && op.conn == nil {
		return newLocal(op, cfg, o)
	}
	local, err := newLocal(op, cfg, o)
	if err != nil {
		return nil, err
	}
	o.NewInformer = nil // of those that are local
	r, err := newRemote(op, o)
	if err != nil {
		return nil, err
	}
	m := &mixed{remote: r, local: local, all: op.o.Local, kinds: map[schema.GroupVersionKind]bool{}}
	for _, obj := range op.o.LocalFor {
		gvk, err := apiutil.GVKForObject(obj, r.scheme)
		if err != nil {
			return nil, fmt.Errorf("controllerruntime: Options.LocalFor: %w", err)
		}
		m.kinds[gvk] = true
	}
	return m, nil
}

func (m *mixed) isLocal(gvk schema.GroupVersionKind) bool { return m.all || m.kinds[gvk] }

// localOf is the kind of an object or list that is local.
func (m *mixed) localOf(obj runtime.Object) (kindKey, bool) {
	key, err := m.keyOf(obj)
	return key, err == nil && m.isLocal(key.gvk)
}

// Start starts both.
func (m *mixed) Start(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		defer cancel()
		done <- m.local.Start(ctx)
	}()
	err := m.remote.Start(ctx)
	cancel()
	if failed := <-done; err == nil {
		err = failed
	}
	return err
}

// WaitForCacheSync waits for both.
func (m *mixed) WaitForCacheSync(ctx context.Context) bool {
	return m.remote.WaitForCacheSync(ctx) && m.local.WaitForCacheSync(ctx)
}

// Get implements client.Reader.
func (m *mixed) Get(ctx context.Context, key crclient.ObjectKey, out crclient.Object, opts ...crclient.GetOption) error {
	kind, ok := m.localOf(out)
	if !ok {
		return m.remote.Get(ctx, key, out, opts...)
	}
	switch err := m.current(ctx, kind, out); {
	case errors.Is(err, ErrNamespaces):
		return m.remote.Get(ctx, key, out, opts...)
	case err != nil:
		return err
	}
	return m.local.Get(ctx, key, out, opts...)
}

// List implements client.Reader.
func (m *mixed) List(ctx context.Context, out crclient.ObjectList, opts ...crclient.ListOption) error {
	kind, ok := m.localOf(out)
	if !ok {
		return m.remote.List(ctx, out, opts...)
	}
	k, err := m.kind(kind)
	if err == nil {
		err = m.current(ctx, kind, k.blank())
	}
	var o crclient.ListOptions
	o.ApplyOptions(opts)
	switch {
	case errors.Is(err, ErrNamespaces) && o.FieldSelector == nil:
		return m.remote.List(ctx, out, opts...)
	case err != nil:
		return err
	}
	return m.local.List(ctx, out, opts...)
}

// ErrNamespaces says that a reconcile lists by a field, from a local store of several namespaces,
// what must be as new as something that it has to see.
var ErrNamespaces = errors.New("controllerruntime: a local store of several namespaces cannot tell how new it is; an index by Path, Label, Owner or CEL can")

// localTimeout is how long a read waits for a local store, as long as for the index.
const localTimeout = 3 * time.Second

// current waits until a local store has reached what a read must see.
func (m *mixed) current(ctx context.Context, kind kindKey, obj crclient.Object) error {
	h := handOf(ctx)
	if h == nil {
		return nil
	}
	k, err := m.kind(kind)
	if err != nil {
		return err
	}
	collection, err := m.op.collection(ctx, k.resource)
	if err != nil || collection == "" {
		return err
	}
	if err := h.Unseen(ctx, collection); err != nil {
		return err
	}
	want := h.AtLeast(collection)
	if want.RV == "" {
		return nil
	}
	i, err := m.local.GetInformer(ctx, obj)
	if err != nil {
		return err
	}
	informer, ok := i.(interface{ GetStore() toolscache.Store })
	if !ok {
		return fmt.Errorf("%w: %s", ErrNamespaces, kind.gvk.Kind)
	}
	limit, cancel := context.WithTimeout(ctx, localTimeout)
	defer cancel()
	wait := attempt.Wait{First: time.Millisecond, Most: 50 * time.Millisecond, Low: 0.5, High: 1}
	for {
		// The informer's own version is that of its reflector, which is ahead of the store.
		have := client.Revision{Epoch: want.Epoch, RV: informer.GetStore().LastStoreSyncResourceVersion()}
		if have.Compare(want) >= 0 {
			return nil
		}
		if !wait.Sleep(limit, 0) {
			return fmt.Errorf("controllerruntime: the local store of %s is at %q, not at %s: %w", kind.gvk.Kind, have.RV, want.RV, client.ErrRevisionNotReached)
		}
	}
}

// IndexField implements client.FieldIndexer.
func (m *mixed) IndexField(ctx context.Context, obj crclient.Object, field string, extract crclient.IndexerFunc) error {
	if _, ok := m.localOf(obj); ok {
		return m.local.IndexField(ctx, obj, field, extract)
	}
	return m.remote.IndexField(ctx, obj, field, extract)
}

// RemoveInformer implements cache.Cache.
func (m *mixed) RemoveInformer(ctx context.Context, obj crclient.Object) error {
	if _, ok := m.localOf(obj); ok {
		if err := m.local.RemoveInformer(ctx, obj); err != nil {
			return err
		}
	}
	return m.remote.RemoveInformer(ctx, obj)
}
