package controllerruntime

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	crclient "sigs.k8s.io/controller-runtime/pkg/client"

	dptest "github.com/deltaplane/deltaplane/client/testing"
)

func pod(namespace, name, node string) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": name}},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
}

// starter makes a cache on an environment, without a queue.
type starter func(t *testing.T, env *dptest.Env, o cache.Options) cache.Cache

// onEachCache runs a test on a remote and on a local cache.
func onEachCache(t *testing.T, f func(t *testing.T, started starter)) {
	t.Helper()
	t.Run("remote", func(t *testing.T) { f(t, started) })
	t.Run("local", func(t *testing.T) { f(t, startedLocal) })
}

func started(t *testing.T, env *dptest.Env, o cache.Options) cache.Cache {
	t.Helper()
	return startedWith(t, env, Options{}, o)
}

func startedLocal(t *testing.T, env *dptest.Env, o cache.Options) cache.Cache {
	t.Helper()
	return startedWith(t, env, Options{Local: true}, o)
}

func startedWith(t *testing.T, env *dptest.Env, with Options, o cache.Options) cache.Cache {
	t.Helper()
	with.Name = "test"
	op, err := New(env.Index(), nil, with)
	if err != nil {
		t.Fatal(err)
	}
	c, err := op.NewCache(restConfig(env), o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- c.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("cache: %v", err)
		}
	})
	if !c.WaitForCacheSync(t.Context()) {
		t.Fatal("the cache does not start")
	}
	return c
}

func TestGetAndListAreAnsweredByTheIndex(t *testing.T) {
	env := dptest.Start(t, dptest.Config{Resources: []string{"pods", "nodes"}})
	mirror(t, env, pod("default", "a", "n1"), pod("default", "b", "n2"), pod("kube-system", "c", "n1"))
	c := started(t, env, cache.Options{})
	if err := c.IndexField(t.Context(), &corev1.Pod{}, "spec.nodeName", nil); err != nil {
		t.Fatal(err)
	}
	var got corev1.Pod
	if err := c.Get(t.Context(), crclient.ObjectKey{Namespace: "default", Name: "a"}, &got); err != nil {
		t.Fatal(err)
	}
	if got.Spec.NodeName != "n1" || got.Kind != "Pod" || got.ResourceVersion == "" {
		t.Errorf("got %+v", got)
	}
	var list corev1.PodList
	if err := c.List(t.Context(), &list, crclient.MatchingFields{"spec.nodeName": "n1"}); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 2 || list.Items[0].Name != "a" || list.Items[1].Name != "c" {
		t.Errorf("list by field: %v", list.Items)
	}
	if err := c.List(t.Context(), &list, crclient.InNamespace("default"), crclient.MatchingLabels{"app": "b"}); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 1 || list.Items[0].Name != "b" {
		t.Errorf("list by label: %v", list.Items)
	}
}

func restConfig(env *dptest.Env) *rest.Config { return &rest.Config{Host: env.API()} }

func namespaces(names ...string) (all []any) {
	for _, name := range names {
		all = append(all, &corev1.Namespace{TypeMeta: metav1.TypeMeta{Kind: "Namespace", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	return all
}

// mirror writes objects and waits until the index has them.
func mirror(t *testing.T, env *dptest.Env, objects ...any) {
	t.Helper()
	env.Apply(objects...)
	if err := env.Settled(t.Context()); err != nil {
		t.Fatal(err)
	}
}
