// Package informers is where client-go's tests of tools/cache are compiled, on the informers of
// clientgo; see package upstream. What is here takes the place of the constructors that those tests
// call.
package informers

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/clientgo"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// source is an index that has what client-go's fake source has.
type source struct{ lists cache.ListerWatcher }

func (source) Collections(context.Context) ([]client.CollectionStatus, error) {
	return []client.CollectionStatus{{Collection: "dev/pods.v1", Cluster: "dev", Version: "v1", Resource: "pods", Synced: true}}, nil
}

// Watch is one long watch: when the source ends its own, history is lost and the state follows.
func (s source) Watch(ctx context.Context, _ string, o client.WatchOptions) iter.Seq2[client.Event, error] {
	return func(yield func(client.Event, error) bool) {
		for gap := o.Resume != (client.Position{}); ctx.Err() == nil; gap = true {
			if err := s.stream(ctx, gap, func(e client.Event) bool { return yield(e, nil) }); err != nil {
				yield(client.Event{}, err)
				return
			}
		}
	}
}

func (s source) stream(ctx context.Context, gap bool, yield func(client.Event) bool) error {
	list, err := s.lists.List(metav1.ListOptions{})
	if err != nil {
		return err
	}
	if gap && !yield(client.Event{Type: client.EventGap, Reason: "the watch was reset"}) {
		return nil
	}
	objects, err := meta.ExtractList(list)
	if err != nil {
		return err
	}
	for _, o := range objects {
		e, err := event(client.EventAdded, o)
		if err != nil {
			return err
		}
		e.Position, e.Revision = client.Position{}, client.Revision{}
		if !yield(e) {
			return nil
		}
	}
	l, err := meta.ListAccessor(list)
	if err != nil || !yield(at(client.Event{Type: client.EventInitialEnd}, l.GetResourceVersion())) {
		return err
	}
	w, err := s.lists.Watch(metav1.ListOptions{ResourceVersion: l.GetResourceVersion()})
	if err != nil {
		return err
	}
	defer w.Stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changes := queued(ctx, w.ResultChan())
	types := map[watch.EventType]client.EventType{watch.Added: client.EventAdded, watch.Modified: client.EventUpdated, watch.Deleted: client.EventDeleted}
	for {
		select {
		case <-ctx.Done():
			return nil
		case changed, open := <-changes:
			if !open {
				return nil
			}
			e, err := event(types[changed.Type], changed.Object)
			if err != nil || !yield(e) {
				return errors.Join(err, ctx.Err())
			}
		}
	}
}

// queued has a source never wait for an informer, as the queue between client-go's reflector and
// its handlers does.
func queued(ctx context.Context, from <-chan watch.Event) <-chan watch.Event {
	to := make(chan watch.Event)
	go func() {
		defer close(to)
		var queue []watch.Event
		for from != nil || len(queue) > 0 {
			var first watch.Event
			var out chan<- watch.Event
			if len(queue) > 0 {
				first, out = queue[0], to
			}
			select {
			case <-ctx.Done():
				return
			case out <- first:
				queue = queue[1:]
			case e, open := <-from:
				if open {
					queue = append(queue, e)
				} else {
					from = nil
				}
			}
		}
	}()
	return to
}

// event is what an index says of a change: the object as JSON.
func event(kind client.EventType, o runtime.Object) (client.Event, error) {
	m, err := meta.Accessor(o)
	if err != nil {
		return client.Event{}, err
	}
	key, err := cache.MetaNamespaceKeyFunc(o)
	if err != nil {
		return client.Event{}, err
	}
	payload, err := json.Marshal(o)
	if err != nil {
		return client.Event{}, err
	}
	e := client.Event{Type: kind, Object: client.Object{Key: key, UID: string(m.GetUID()), ResourceVersion: m.GetResourceVersion(), Payload: payload}}
	if kind == client.EventDeleted {
		e.DeleteReason = client.DeleteObserved
	}
	return at(e, m.GetResourceVersion()), nil
}

func at(e client.Event, rv string) client.Event {
	n, _ := strconv.ParseUint(rv, 10, 64)
	e.Position, e.Revision = client.Position{Epoch: 1, Sequence: n + 1, Term: 1}, client.Revision{Epoch: 1, RV: rv}
	return e
}

// remote is an informer with what the tests look at.
type remote struct {
	*clientgo.Informer
	started atomic.Bool
}

func (r *remote) Run(stop <-chan struct{}) {
	r.started.Store(true)
	r.Informer.Run(stop)
}

func (r *remote) RunWithContext(ctx context.Context) {
	r.started.Store(true)
	r.Informer.RunWithContext(ctx)
}

type period struct{ resyncPeriod time.Duration }

func (r *remote) listener(h cache.ResourceEventHandlerRegistration) period {
	return period{h.(interface{ ResyncPeriod() time.Duration }).ResyncPeriod()}
}

// remoteInformer is cache.NewSharedInformer.
func remoteInformer(t testing.TB, lists cache.ListerWatcher, example runtime.Object, resync time.Duration) *remote {
	t.Helper()
	i, err := clientgo.NewSharedIndexInformer(t.Context(), source{lists}, example, resync, nil, clientgo.InformerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return &remote{Informer: i}
}

// remoteStore is cache.NewInformer.
func remoteStore(t testing.TB, lists cache.ListerWatcher, example runtime.Object, resync time.Duration, h cache.ResourceEventHandler) (cache.Store, *remote) {
	t.Helper()
	return remoteTransforming(t, lists, example, resync, h, nil)
}

// remoteTransforming is cache.NewTransformingInformer.
func remoteTransforming(t testing.TB, lists cache.ListerWatcher, example runtime.Object, resync time.Duration, h cache.ResourceEventHandler, f cache.TransformFunc) (cache.Store, *remote) {
	t.Helper()
	i := remoteInformer(t, lists, example, resync)
	_, err := i.AddEventHandler(h)
	if err = errors.Join(err, i.SetTransform(f)); err != nil {
		t.Fatal(err)
	}
	return i.GetStore(), i
}

// What the tests know of an informer's inside.

func eventHandlerCount(i cache.SharedInformer) int { return i.(*remote).Status().Handlers }
func isStarted(i cache.SharedInformer) bool        { return i.(*remote).started.Load() }

func isRegistered(i cache.SharedInformer, h cache.ResourceEventHandlerRegistration) bool {
	if eventHandlerCount(i) == 0 {
		return false
	}
	select {
	case <-h.(interface{ ShutdownChan() <-chan struct{} }).ShutdownChan():
		return false
	case <-time.After(200 * time.Millisecond): // as long as its last callback has to return
		return true
	}
}

// sharedProcessorRunHook is called nowhere: there is no such moment.
var sharedProcessorRunHook atomic.Pointer[func()]

// clock takes the place of client-go's fake clock: it waits.
type clock struct{}

func (clock) Step(d time.Duration) { <-time.After(d) }

// shelf is a source to which a store's writes go.
type shelf struct {
	events  chan client.Event
	objects sync.Map // by resource version
	rv      int
}

func (s *shelf) Collections(ctx context.Context) ([]client.CollectionStatus, error) {
	return source{}.Collections(ctx)
}

func (s *shelf) Watch(ctx context.Context, _ string, _ client.WatchOptions) iter.Seq2[client.Event, error] {
	return func(yield func(client.Event, error) bool) {
		if !yield(at(client.Event{Type: client.EventInitialEnd}, "0"), nil) {
			return
		}
		for {
			select {
			case <-ctx.Done():
				return
			case e := <-s.events:
				if !yield(e, nil) {
					return
				}
			}
		}
	}
}

// writable is the store of an informer whose source has what is written. It is not safe for
// concurrent use.
type writable struct {
	cache.Indexer
	*shelf
	t         testing.TB
	key       cache.KeyFunc
	informer  *clientgo.Informer
	transform cache.TransformFunc
}

// writableIndexer is cache.NewIndexer, and without indexers cache.NewStore.
func writableIndexer(t testing.TB, key cache.KeyFunc, indexers cache.Indexers) *writable {
	t.Helper()
	s := &shelf{events: make(chan client.Event)}
	i, err := clientgo.NewSharedIndexInformer(t.Context(), s, &corev1.Pod{}, 0, indexers, clientgo.InformerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	w := &writable{i.GetIndexer(), s, t, key, i, func(obj any) (any, error) { return obj, nil }}
	err = i.SetTransform(func(obj any) (any, error) {
		written, _ := s.objects.Load(obj.(*corev1.Pod).ResourceVersion)
		return w.transform(written)
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() { defer close(done); i.RunWithContext(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	<-i.HasSyncedChecker().Done()
	return w
}

func writableStore(t testing.TB, key cache.KeyFunc) *writable {
	t.Helper()
	return writableIndexer(t, key, nil)
}

func writableTransforming(t testing.TB, key cache.KeyFunc, f cache.TransformFunc) *writable {
	t.Helper()
	w := writableStore(t, key)
	w.transform = f
	return w
}

// write has the source tell of a change, and waits until the store has it.
func (w *writable) write(kind client.EventType, obj any) error {
	key, err := w.key(obj)
	if err != nil {
		return err
	}
	return w.writeKey(kind, key, obj)
}

func (w *writable) writeKey(kind client.EventType, key string, obj any) error {
	w.rv++
	rv := strconv.Itoa(w.rv)
	w.objects.Store(rv, obj)
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: key, ResourceVersion: rv}}
	e, err := event(kind, o)
	if err != nil {
		return err
	}
	w.events <- e
	return w.informer.AtLeast(w.t.Context(), rv)
}

func (w *writable) Add(obj any) error    { return w.write(client.EventAdded, obj) }
func (w *writable) Update(obj any) error { return w.write(client.EventUpdated, obj) }
func (w *writable) Delete(obj any) error { return w.write(client.EventDeleted, obj) }

func (w *writable) Get(obj any) (any, bool, error) {
	key, err := w.key(obj)
	if err != nil {
		return nil, false, err
	}
	return w.GetByKey(key)
}

func (w *writable) Replace(objects []any, _ string) error {
	for _, key := range w.ListKeys() {
		if err := w.writeKey(client.EventDeleted, key, nil); err != nil {
			return fmt.Errorf("delete %s: %w", key, err)
		}
	}
	for _, o := range objects {
		if err := w.Add(o); err != nil {
			return err
		}
	}
	return nil
}
