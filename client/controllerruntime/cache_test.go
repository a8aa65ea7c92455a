package controllerruntime

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	crclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/deltaplane/deltaplane/client"
	dptest "github.com/deltaplane/deltaplane/client/testing"
)

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

func stepOf(obj any) string {
	o := obj.(crclient.Object)
	return o.GetName() + "@" + o.GetAnnotations()["step"]
}

func (r *recorder) OnAdd(obj any, initial bool) { r.note("add %s %t", stepOf(obj), initial) }
func (r *recorder) OnUpdate(old, obj any)       { r.note("update %s %s", stepOf(old), stepOf(obj)) }
func (r *recorder) OnDelete(obj any)            { r.note("delete %s", stepOf(obj)) }

// eventually waits for what must come to be.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// handled adds a handler for a kind, and waits until it has had every object.
func handled(t *testing.T, c cache.Cache, obj crclient.Object) (*recorder, cache.Informer, toolscache.ResourceEventHandlerRegistration) {
	t.Helper()
	i, err := c.GetInformer(t.Context(), obj)
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{}
	reg, err := i.AddEventHandler(r)
	if err != nil {
		t.Fatal(err)
	}
	<-reg.HasSyncedChecker().Done()
	return r, i, reg
}

// receives waits until a handler has had so many notifications, and returns them.
func (r *recorder) receives(t *testing.T, count int) (all []string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d notifications", count), func() bool {
		all = append(all, r.take()...)
		return len(all) >= count
	})
	return all
}

func step(name, to string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{"step": to}},
	}
}

func TestHandlersGetOldAndNewObjects(t *testing.T) { onEachCache(t, handlersGetOldAndNewObjects) }

func handlersGetOldAndNewObjects(t *testing.T, started starter) {
	t.Helper()
	env := dptest.Start(t, dptest.Config{Resources: []string{"configmaps"}})
	mirror(t, env, step("a", "1"))
	c := started(t, env, cache.Options{})
	r, i, reg := handled(t, c, &corev1.ConfigMap{})
	received := func(want string) { // before the next change, which might else be folded with it
		t.Helper()
		if got := r.receives(t, 1); !slices.Equal(got, []string{want}) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	received("add a@1 true")
	env.Apply(step("a", "2"))
	received("update a@1 a@2")
	env.Delete("configmaps", "default/a")
	received("delete a@2")
	env.Apply(step("b", "1"))
	received("add b@1 false")
	if err := i.RemoveEventHandler(reg); err != nil {
		t.Error(err)
	}
	other, err := i.AddEventHandler(&recorder{})
	if err != nil {
		t.Fatal(err)
	}
	env.Apply(pod("default", "c", ""))
	<-other.HasSyncedChecker().Done()
	if got := r.take(); len(got) > 0 {
		t.Errorf("a removed handler received %q", got)
	}
}

func TestSelectionsHoldForReadsAndHandlers(t *testing.T) {
	onEachCache(t, selectionsHoldForReadsAndHandlers)
}

func selectionsHoldForReadsAndHandlers(t *testing.T, started starter) {
	t.Helper()
	env := dptest.Start(t, dptest.Config{Resources: []string{"pods"}})
	env.Apply(namespaces("one", "two", "three", "four")...)
	mirror(t, env, pod("one", "a", "n1"), pod("one", "b", "n1"), pod("two", "a", "n1"), pod("three", "a", "n1"), pod("four", "a", "n1"))
	a := labels.SelectorFromSet(labels.Set{"app": "a"})
	c := started(t, env, cache.Options{
		DefaultNamespaces: map[string]cache.Config{"two": {}},
		ByObject: map[crclient.Object]cache.ByObject{&corev1.Pod{}: {
			Label: a, Namespaces: map[string]cache.Config{"one": {}, "three": {LabelSelector: labels.SelectorFromSet(labels.Set{"app": "none"})}, "two": {FieldSelector: fields.OneTermEqualSelector("metadata.name", "x")}},
		}},
	})
	var list corev1.PodList
	if err := c.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 1 || list.Items[0].Namespace != "one" || list.Items[0].Name != "a" {
		t.Errorf("list: %d pods", len(list.Items))
	}
	var got corev1.Pod
	for _, gone := range []crclient.ObjectKey{{Namespace: "one", Name: "b"}, {Namespace: "two", Name: "a"}, {Namespace: "three", Name: "a"}} {
		if err := c.Get(t.Context(), gone, &got); !apierrors.IsNotFound(err) {
			t.Errorf("get %s: %v", gone, err)
		}
	}
	if err := c.Get(t.Context(), crclient.ObjectKey{Namespace: "four", Name: "a"}, &got); err == nil || !strings.Contains(err.Error(), "unknown namespace") {
		t.Errorf("get of a namespace that is not cached: %v", err)
	}
	r, _, _ := handled(t, c, &corev1.Pod{})
	if got := r.take(); !slices.Equal(got, []string{"add a@ true"}) {
		t.Errorf("the handler received %q", got)
	}
}

func TestAllNamespacesLeaveOutThoseWithSettings(t *testing.T) {
	onEachCache(t, allNamespacesLeaveOutThoseWithSettings)
}

func allNamespacesLeaveOutThoseWithSettings(t *testing.T, started starter) {
	t.Helper()
	env := dptest.Start(t, dptest.Config{Resources: []string{"pods"}})
	env.Apply(namespaces("one", "two")...)
	mirror(t, env, pod("one", "a", ""), pod("two", "a", ""))
	c := started(t, env, cache.Options{
		DefaultNamespaces: map[string]cache.Config{cache.AllNamespaces: {}, "one": {LabelSelector: labels.SelectorFromSet(labels.Set{"app": "none"})}},
	})
	var list corev1.PodList
	if err := c.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 1 || list.Items[0].Namespace != "two" {
		t.Errorf("list: %d pods", len(list.Items))
	}
}

func TestASelectorOfNothingSelectsNothing(t *testing.T) {
	env := dptest.Start(t, dptest.Config{Resources: []string{"pods"}})
	mirror(t, env, pod("default", "a", "n1"))
	c := started(t, env, cache.Options{DefaultLabelSelector: labels.Nothing()})
	var list corev1.PodList
	if err := c.List(t.Context(), &list); err != nil || len(list.Items) > 0 {
		t.Errorf("list: %d pods, %v", len(list.Items), err)
	}
	if err := c.Get(t.Context(), crclient.ObjectKey{Namespace: "default", Name: "a"}, &corev1.Pod{}); !apierrors.IsNotFound(err) {
		t.Errorf("get: %v", err)
	}
}

func TestMetadataAndUnstructuredObjectsSayTheirKind(t *testing.T) {
	onEachCache(t, metadataAndUnstructuredObjectsSayTheirKind)
}

func metadataAndUnstructuredObjectsSayTheirKind(t *testing.T, started starter) {
	t.Helper()
	env := dptest.Start(t, dptest.Config{Resources: []string{"pods"}})
	mirror(t, env, pod("default", "a", "n1"))
	c := started(t, env, cache.Options{})
	key := crclient.ObjectKey{Namespace: "default", Name: "a"}
	gvk := corev1.SchemeGroupVersion.WithKind("Pod")
	m := &metav1.PartialObjectMetadata{}
	m.SetGroupVersionKind(gvk)
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(gvk)
	for _, obj := range []crclient.Object{m, u} {
		if err := c.Get(t.Context(), key, obj); err != nil {
			t.Fatal(err)
		}
		if obj.GetObjectKind().GroupVersionKind() != gvk || obj.GetName() != "a" || obj.GetLabels()["app"] != "a" {
			t.Errorf("got %+v", obj)
		}
	}
	if node, _, _ := unstructured.NestedString(u.Object, "spec", "nodeName"); node != "n1" {
		t.Errorf("unstructured pod of node %q", node)
	}
	many := &metav1.PartialObjectMetadataList{}
	many.SetGroupVersionKind(gvk.GroupVersion().WithKind("PodList"))
	if err := c.List(t.Context(), many); err != nil {
		t.Fatal(err)
	}
	if len(many.Items) != 1 || many.Items[0].Kind != "Pod" {
		t.Errorf("list: %+v", many.Items)
	}
}

func TestIndexesAreDeclaredAtTheIndex(t *testing.T) {
	env := dptest.Start(t, dptest.Config{Resources: []string{"pods"}})
	owned := pod("default", "b", "n1")
	yes := true
	owned.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n", UID: "u", Controller: &yes}}
	mirror(t, env, pod("default", "a", "n1"), owned)
	c := started(t, env, cache.Options{})
	for field, f := range map[string]crclient.IndexerFunc{
		".spec.node": Path("spec.nodeName"), "app": Label("app"), "images": Path("spec.containers[].image"), "owner-uid": Owner(client.Owners{ControllerOnly: true}),
		"controller": CEL("object.metadata.?ownerReferences[0].?name.orValue('')"),
	} {
		if err := c.IndexField(t.Context(), &corev1.Pod{}, field, f); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []struct {
		by    crclient.MatchingFields
		names string
	}{
		{crclient.MatchingFields{".spec.node": "n1"}, "a b"},
		{crclient.MatchingFields{"app": "a"}, "a"},
		{crclient.MatchingFields{"images": "i"}, "a b"},
		{crclient.MatchingFields{"owner-uid": "u"}, "b"},
		{crclient.MatchingFields{"controller": "n"}, "b"},
		{crclient.MatchingFields{"controller": "n", ".spec.node": "n2"}, ""},
		{crclient.MatchingFields{"metadata.name": "b", ".spec.node": "n1"}, "b"},
	} {
		var list corev1.PodList
		if err := c.List(t.Context(), &list, crclient.InNamespace("default"), want.by); err != nil {
			t.Errorf("%v: %v", want.by, err)
		}
		var names []string
		for _, p := range list.Items {
			names = append(names, p.Name)
		}
		if got := strings.Join(names, " "); got != want.names {
			t.Errorf("%v: %q, want %q", want.by, got, want.names)
		}
	}
	var list corev1.PodList
	if err := c.List(t.Context(), &list, crclient.MatchingFields{"app": "a", "controller": "n"}); !errors.Is(err, ErrIndexes) {
		t.Errorf("list by two indexes: %v", err)
	}
	if err := c.List(t.Context(), &list, crclient.MatchingFields{"none": "a"}); err == nil || !strings.Contains(err.Error(), "field:none does not exist") {
		t.Errorf("list by a field without an index: %v", err)
	}
	goFunc := func(o crclient.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }
	if err := c.IndexField(t.Context(), &corev1.Pod{}, "spec.nodeName", goFunc); !errors.Is(err, ErrGoIndex) {
		t.Errorf("a Go function: %v", err)
	}
	if err := c.IndexField(t.Context(), &corev1.Pod{}, "app", Label("other")); err == nil || !strings.Contains(err.Error(), "label app already") {
		t.Errorf("another index of the same field: %v", err)
	}
	if err := c.IndexField(t.Context(), &corev1.Pod{}, "bad", Path("spec..x")); err == nil || !strings.Contains(err.Error(), `"bad"`) {
		t.Errorf("a path that is none: %v", err)
	}
}

func TestReadsBeforeTheStartAndOfWhatIsNotMirrored(t *testing.T) {
	env := dptest.Start(t, dptest.Config{Resources: []string{"pods"}})
	op, err := New(env.Index(), nil, Options{Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	c, err := op.NewCache(restConfig(env), cache.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var notStarted *cache.ErrCacheNotStarted
	if err := c.List(t.Context(), &corev1.PodList{}); !errors.As(err, &notStarted) {
		t.Errorf("before the start: %v", err)
	}
	running := started(t, env, cache.Options{})
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	err = running.List(short, &corev1.NodeList{})
	if !apierrors.IsTimeout(err) || !strings.Contains(err.Error(), "nodes.v1") {
		t.Errorf("a kind that the index does not have: %v", err)
	}
	strict := started(t, env, cache.Options{ReaderFailOnMissingInformer: true})
	var notCached *cache.ErrResourceNotCached
	if err := strict.List(t.Context(), &corev1.PodList{}); !errors.As(err, &notCached) {
		t.Errorf("a kind without an informer: %v", err)
	}
}

func TestARemovedInformerCallsNobody(t *testing.T) { onEachCache(t, aRemovedInformerCallsNobody) }

func aRemovedInformerCallsNobody(t *testing.T, started starter) {
	t.Helper()
	env := dptest.Start(t, dptest.Config{Resources: []string{"pods"}})
	c := started(t, env, cache.Options{})
	i, err := c.GetInformer(t.Context(), &corev1.Pod{})
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{}
	if _, err := i.AddEventHandler(r); err != nil {
		t.Fatal(err)
	}
	if err := c.RemoveInformer(t.Context(), &corev1.Pod{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the informer is stopped", i.IsStopped)
	r.take()
	env.Apply(pod("default", "a", ""))
	if err := env.Settled(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := r.take(); len(got) > 0 {
		t.Errorf("it received %q", got)
	}
	if _, err := i.AddEventHandler(r); err == nil {
		t.Error("a handler was added to it")
	}
	var _ toolscache.ResourceEventHandler = r
}
