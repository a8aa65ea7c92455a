package clientgo_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/clientgo"
	"github.com/deltaplane/deltaplane/client/informer"
	"github.com/deltaplane/deltaplane/core/delta"
)

func pod(namespace, name, node string) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"node": node}},
		Spec:       corev1.PodSpec{NodeName: node},
	}
}

func byNode(obj any) ([]string, error) { return []string{obj.(*corev1.Pod).Spec.NodeName}, nil }

// names are those of objects, sorted.
func names[T any](objects []T) []string {
	var all []string
	for _, o := range objects {
		all = append(all, any(o).(metav1.Object).GetName())
	}
	slices.Sort(all)
	return all
}

// recorder is a handler that writes down what it receives.
type recorder struct {
	mu  sync.Mutex
	all []string
}

func (r *recorder) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, fmt.Sprintf(format, args...))
}

func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.all
	r.all = nil
	return all
}

func version(obj any) string {
	o := obj.(metav1.Object)
	return o.GetName() + "@" + o.GetResourceVersion()
}

func (r *recorder) OnAdd(obj any, initial bool) { r.note("add %s %t", version(obj), initial) }
func (r *recorder) OnUpdate(old, obj any)       { r.note("update %s %s", version(old), version(obj)) }

func (r *recorder) OnDelete(obj any) {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		r.note("lost %s %s", gone.Key, version(gone.Obj))
		return
	}
	r.note("delete %s", version(obj))
}

// want waits until the handler has received exactly some notifications.
func (r *recorder) want(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	eventually(t, strings.Join(want, ", "), func() bool {
		got = append(got, r.take()...)
		return len(got) >= len(want)
	})
	if !slices.Equal(got, want) {
		t.Errorf("received %q, want %q", got, want)
	}
}

func TestAFactorysInformersAndListersFollowTheIndex(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	pods := p.collection(t, "dev", "pods").synced(t)
	pods.put(t, pod("a", "one", "n1"), pod("b", "two", "n2"))
	seen := func(obj any) (any, error) {
		obj.(*corev1.Pod).Annotations = map[string]string{"seen": "yes"}
		return obj, nil
	}
	factory := informers.NewSharedInformerFactoryWithOptions(nil, 0, informers.WithTransform(seen))
	i, err := clientgo.InformerFor(t.Context(), factory, p.index, &corev1.Pod{}, cache.Indexers{"node": byNode}, clientgo.InformerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if factory.Core().V1().Pods().Informer().GetIndexer() != i.GetIndexer() { // 0.37 wraps informers
		t.Error("the factory has another informer of pods")
	}
	if _, err := clientgo.InformerFor(t.Context(), factory, p.index, &corev1.Pod{}, nil, clientgo.InformerConfig{}); !errors.Is(err, clientgo.ErrInformerExists) {
		t.Errorf("a second informer of pods: %v", err)
	}
	lister := factory.Core().V1().Pods().Lister()
	all, err := lister.List(labels.Everything())
	some, err2 := lister.Pods("a").List(labels.Everything())
	if len(all)+len(some) != 0 || err != nil || err2 != nil {
		t.Errorf("before the sync there are %v, %v and %v, %v", all, err, some, err2)
	}
	if _, err := lister.Pods("a").Get("one"); !errors.Is(err, client.ErrNotSynced) {
		t.Errorf("before the sync Get fails with %v", err)
	}

	var r recorder
	reg, err := i.AddEventHandler(&r)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	defer cancel()
	if !cache.WaitFor(ctx, "", i.HasSyncedChecker(), reg.HasSyncedChecker()) || !reg.HasSynced() || !i.HasSynced() {
		t.Fatal("not synced")
	}
	got := r.take()
	if slices.Sort(got); !slices.Equal(got, []string{"add one@2 true", "add two@3 true"}) {
		t.Errorf("received %q", got)
	}
	one := pod("a", "one", "n2")
	pods.put(t, one)
	r.want(t, "update one@2 one@4")
	if err := i.AtLeast(ctx, "4"); err != nil || i.LastSyncResourceVersion() != "4" {
		t.Errorf("at %s, %v", i.LastSyncResourceVersion(), err)
	}
	all, err = lister.List(labels.SelectorFromSet(labels.Set{"node": "n2"}))
	if got := names(all); err != nil || !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("pods of the label: %q, %v", got, err)
	}
	some, err = lister.Pods("b").List(labels.Everything())
	if got := names(some); err != nil || !slices.Equal(got, []string{"two"}) {
		t.Errorf("pods of the namespace: %q, %v", got, err)
	}
	if _, filed := i.GetIndexer().GetIndexers()[cache.NamespaceIndex]; !filed {
		t.Error("there is no index by namespace, so that listers of a namespace read all objects")
	}
	filed, err := i.GetIndexer().ByIndex("node", "n2")
	if got := names(filed); err != nil || !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("pods of the node: %q, %v", got, err)
	}
	stored, err := lister.Pods("a").Get("one")
	if err != nil || stored.Kind != "" || stored.Spec.NodeName != "n2" || stored.Annotations["seen"] != "yes" {
		t.Errorf("the lister has %v, %v; want it as a clientset returns it", stored, err)
	}
	one.Finalizers = []string{"last"}
	pods.delete(t, one)
	r.want(t, "delete one@5")
	if _, err := lister.Pods("a").Get("one"); err == nil {
		t.Error("a deleted pod is there")
	}
	for _, err := range []error{i.GetStore().Add(one), i.GetStore().Update(one), i.GetStore().Delete(one), i.GetStore().Replace(nil, "")} {
		if !errors.Is(err, clientgo.ErrReadOnly) {
			t.Errorf("a write of the store: %v", err)
		}
	}
	if err := i.RemoveEventHandler(reg); err != nil {
		t.Error(err)
	}
}

func TestObjectsOfEveryKindOfExample(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	pods := p.collection(t, "dev", "pods").synced(t)
	pods.put(t, pod("a", "one", "n1"))
	meta := metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
	untyped := &unstructured.Unstructured{}
	untyped.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "Pod"})
	for name, example := range map[string]runtime.Object{"typed": &corev1.Pod{}, "metadata": &metav1.PartialObjectMetadata{TypeMeta: meta}, "unstructured": untyped} {
		i, err := clientgo.NewSharedIndexInformer(t.Context(), p.index, example, 0, nil, clientgo.InformerConfig{})
		if err != nil {
			t.Fatal(name, err)
		}
		run(t, i)
		obj, found, err := i.GetStore().GetByKey("a/one")
		if !found || err != nil {
			t.Fatal(name, found, err)
		}
		switch o := obj.(type) {
		case *corev1.Pod:
			if o.Spec.NodeName != "n1" || name != "typed" {
				t.Errorf("%s: %v", name, o)
			}
		case *metav1.PartialObjectMetadata:
			if o.TypeMeta != meta || o.Labels["node"] != "n1" || name != "metadata" {
				t.Errorf("%s: %v", name, o)
			}
		case *unstructured.Unstructured:
			node, _, err := unstructured.NestedString(o.Object, "spec", "nodeName")
			if node != "n1" || err != nil || o.GetKind() != "Pod" || name != "unstructured" {
				t.Errorf("%s: %v, %v", name, o, err)
			}
		default:
			t.Errorf("%s: %T", name, obj)
		}
	}
}

// oddity is a type that no scheme has.
type oddity struct{ corev1.Pod }

func (o *oddity) DeepCopyObject() runtime.Object { return &oddity{*o.Pod.DeepCopy()} }

func TestWhatCannotBeFollowedIsRefusedByName(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	p.collection(t, "dev", "pods").synced(t)
	p.collection(t, "dev", "nodes").synced(t)
	p.collection(t, "prod", "pods").synced(t)
	secrets := p.collection(t, "dev", "secrets")
	secrets.dropped = []string{delta.EverythingButMetadata}
	secrets.synced(t)
	gone := client.NewIndex(nowhere(t))
	for name, c := range map[string]struct {
		index   clientgo.Index
		example runtime.Object
		cfg     clientgo.InformerConfig
		is      error
		names   string
	}{
		"a type that the scheme does not have": {p.index, &oddity{}, clientgo.InformerConfig{}, clientgo.ErrUnknownType, "oddity"},
		"no example":                           {p.index, nil, clientgo.InformerConfig{}, clientgo.ErrUnknownType, "nil"},
		"a nil example":                        {p.index, (*unstructured.Unstructured)(nil), clientgo.InformerConfig{}, clientgo.ErrUnknownType, "Unstructured"},
		"an example without a kind":            {p.index, &unstructured.Unstructured{}, clientgo.InformerConfig{}, clientgo.ErrNoResource, "Unstructured"},
		"no such collection":                   {p.index, &corev1.Event{}, clientgo.InformerConfig{}, client.ErrCollectionNotFound, "events.v1"},
		"metadata alone":                       {p.index, &corev1.Secret{}, clientgo.InformerConfig{}, client.ErrDroppedFields, "dev/secrets.v1"},
		"no such cluster":                      {p.index, &corev1.Pod{}, clientgo.InformerConfig{Cluster: "test"}, client.ErrCollectionNotFound, `"test"`},
		"two clusters":                         {p.index, &corev1.Pod{}, clientgo.InformerConfig{}, clientgo.ErrAmbiguous, "dev, prod"},
	} {
		_, err := clientgo.NewSharedIndexInformer(t.Context(), c.index, c.example, 0, nil, c.cfg)
		if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.names) {
			t.Errorf("%s: %v, want one that names %s", name, err, c.names)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := clientgo.NewSharedIndexInformer(ctx, gone, &corev1.Pod{}, 0, nil, clientgo.InformerConfig{})
	if _, ok := errors.AsType[*client.Error](err); !ok || !strings.Contains(err.Error(), "pods.v1") {
		t.Errorf("an index that cannot be reached: %v", err)
	}
	name, err := clientgo.Collection(t.Context(), p.index, "", schema.GroupVersionResource{Version: "v1", Resource: "nodes"})
	if name != "dev/nodes.v1" || err != nil {
		t.Errorf("nodes are in %q, %v", name, err)
	}
}

func TestAnIndexFunctionThatIsNotDeterministicFailsItsReads(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	pods := p.collection(t, "dev", "pods").synced(t)
	pods.put(t, pod("a", "one", "n1"))
	var n int
	i, err := clientgo.NewSharedIndexInformer(t.Context(), p.index, &corev1.Pod{}, 0, cache.Indexers{
		"counts": func(any) ([]string, error) { n++; return []string{fmt.Sprint(n)}, nil },
		"turns":  func(any) ([]string, error) { n++; return []string{"a", "b", "a"}[n%2 : n%2+2], nil },
	}, clientgo.InformerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	run(t, i)
	_, err = i.GetIndexer().ByIndex("counts", "1")
	if fault, ok := errors.AsType[*informer.IndexError](err); !ok || fault.Key != "a/one" || !errors.Is(err, clientgo.ErrNotDeterministic) {
		t.Errorf("error %v", err)
	}
	if keys, err := i.GetIndexer().IndexKeys("turns", "b"); len(keys) != 1 || err != nil {
		t.Errorf("the same values in another order: %q, %v", keys, err)
	}
	if err := i.AddIndexers(cache.Indexers{"turns": byNode}); !errors.Is(err, informer.ErrIndexConflict) {
		t.Errorf("an index of a name that is taken: %v", err)
	}
	if names := i.GetIndexer().GetIndexers(); len(names) != 2 {
		t.Errorf("indexers are %v", names)
	}
}

func TestTransformAndWatchErrorHandlerAreSetBeforeTheStart(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	pods := p.collection(t, "dev", "pods").synced(t)
	pods.put(t, pod("a", "one", "n1"), pod("a", "bad", "n1"))
	var mu sync.Mutex
	var faults []error
	i, err := clientgo.NewSharedIndexInformer(t.Context(), p.index, &corev1.Pod{}, 0, nil, clientgo.InformerConfig{OnError: func(err error) {
		mu.Lock()
		defer mu.Unlock()
		faults = append(faults, err)
	}})
	if err != nil {
		t.Fatal(err)
	}
	transform := func(obj any) (any, error) {
		if obj.(*corev1.Pod).Name == "bad" {
			return nil, errors.New("a bad one")
		}
		return obj.(*corev1.Pod).Name, nil // an object of any type
	}
	if err := i.SetTransform(transform); err != nil {
		t.Fatal(err)
	}
	run(t, i)
	if obj, _, err := i.GetStore().GetByKey("a/one"); obj != "one" || err != nil {
		t.Errorf("stored is %v, %v", obj, err)
	}
	if _, _, err := i.GetStore().GetByKey("a/bad"); err == nil || !strings.Contains(err.Error(), "a bad one") {
		t.Errorf("an object that the transform fails on: %v", err)
	}
	if keys := i.GetStore().List(); len(keys) != 1 {
		t.Errorf("the list has %v", keys)
	}
	mu.Lock()
	if _, ok := errors.AsType[*informer.DecodeError](errors.Join(faults...)); !ok {
		t.Errorf("reported are %v", faults)
	}
	mu.Unlock()
	for _, err := range []error{i.SetTransform(transform), i.SetWatchErrorHandler(func(*cache.Reflector, error) {})} {
		if !errors.Is(err, informer.ErrStarted) {
			t.Errorf("set after the start: %v", err)
		}
	}
}

func TestTheWatchErrorHandlerReceivesWhyTheIndexIsAway(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	p.collection(t, "dev", "pods").synced(t)
	errs := make(chan error, 1)
	i, err := clientgo.NewSharedIndexInformer(t.Context(), away{p.index}, &corev1.Pod{}, 0, nil, clientgo.InformerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	err = i.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		cache.DefaultWatchErrorHandler(ctx, r, err) // must find a reflector to name
		select {
		case errs <- err:
		default:
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() { defer close(ended); i.Run(stop) }()
	if err := <-errs; !errors.Is(err, errAway) {
		t.Errorf("received %v", err)
	}
	close(stop)
	<-ended
	if !i.IsStopped() {
		t.Error("it is not stopped")
	}
	if _, err := i.AddEventHandler(&recorder{}); !errors.Is(err, informer.ErrStopped) {
		t.Errorf("a handler after the stop: %v", err)
	}
}

func TestAResyncOfZeroIsNone(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	pods := p.collection(t, "dev", "pods").synced(t)
	pods.put(t, pod("a", "one", "n1"))
	i, err := clientgo.NewSharedIndexInformer(t.Context(), p.index, &corev1.Pod{}, time.Second, nil, clientgo.InformerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	var often, never recorder
	_, err1 := i.AddEventHandler(&often)
	_, err2 := i.AddEventHandlerWithResyncPeriod(&never, 0)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	run(t, i)
	often.want(t, "add one@2 true", "update one@2 one@2", "update one@2 one@2")
	never.want(t, "add one@2 true")
}

func TestAnObjectThatLeavesTheScopeIsDeleted(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	pods := p.collection(t, "dev", "pods").synced(t)
	pods.put(t, pod("a", "one", "n1"), pod("b", "two", "n1"))
	i, err := clientgo.NewSharedIndexInformer(t.Context(), p.index, &corev1.Pod{}, 0, nil, clientgo.InformerConfig{
		Scope: informer.Scope{Namespaces: []string{"a"}, Labels: "node=n1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	var r recorder
	if _, err := i.AddEventHandler(&r); err != nil {
		t.Fatal(err)
	}
	run(t, i)
	r.want(t, "add one@2 true")
	pods.put(t, pod("a", "one", "n2"))
	r.want(t, "delete one@4")
}

func TestADeletionThatNobodySawHasAnUnknownFinalState(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	pods := p.collection(t, "dev", "pods").synced(t)
	pods.put(t, pod("a", "one", "n1"), pod("a", "two", "n1"))
	i, err := clientgo.NewSharedIndexInformer(t.Context(), p.index, &corev1.Pod{}, 0, nil, clientgo.InformerConfig{
		Scope: informer.Scope{FieldSelector: "metadata.name=one"},
	})
	if err != nil {
		t.Fatal(err)
	}
	var r recorder
	if _, err := i.AddEventHandler(&r); err != nil {
		t.Fatal(err)
	}
	run(t, i)
	r.want(t, "add one@2 true")
	pods.rv++
	pods.write(t, delta.Record{Kind: delta.KindDelta, Key: "a/one", RV: delta.RV(strconv.Itoa(pods.rv)), Type: delta.Deleted, DeleteReason: delta.Inferred})
	r.want(t, "lost a/one one@2")
}
