package controllerruntime

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	dptest "github.com/deltaplane/deltaplane/client/testing"
)

// basket is a queue that takes everything, until it is shut.
type basket struct{ shut atomic.Bool }

func (s *basket) Flush(context.Context) error { return nil }
func (s *basket) ShuttingDown() bool          { return s.shut.Load() }

// replica is one replica of an operator, without controllers.
type replica struct {
	cache cache.Cache
	queue basket
	stop  func()
	*recorder
}

func newReplica(t *testing.T, env *dptest.Env, o Options, handlers ...toolscache.ResourceEventHandler) *replica {
	t.Helper()
	o.Name, o.Identity = "op", t.Name()
	op, err := New(env.Index(), env.Queue(), o)
	if err != nil {
		t.Fatal(err)
	}
	r := &replica{recorder: &recorder{}}
	if err := op.keep("controller", &r.queue); err != nil {
		t.Fatal(err)
	}
	if r.cache, err = op.NewCache(restConfig(env), cache.Options{}); err != nil {
		t.Fatal(err)
	}
	i, err := r.cache.GetInformer(t.Context(), &corev1.ConfigMap{})
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range append(handlers, toolscache.ResourceEventHandler(r.recorder)) {
		if _, err := i.AddEventHandler(h); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- r.cache.Start(ctx) }()
	r.stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("cache: %v", err)
		}
	}
	if !r.cache.WaitForCacheSync(t.Context()) {
		t.Fatal("the cache does not start")
	}
	return r
}

func TestOneReplicaCallsHandlersAndAnotherGoesOnAtItsPosition(t *testing.T) {
	env := dptest.Start(t, dptest.Config{Resources: []string{"configmaps"}})
	env.Apply(step("a", "1"))
	first := newReplica(t, env, Options{})
	if got := first.receives(t, 1); !slices.Equal(got, []string{"add a@1 true"}) {
		t.Errorf("the first replica received %q", got)
	}
	everywhere := &recorder{}
	second := newReplica(t, env, Options{}, Everywhere(everywhere))
	defer second.stop()
	if got := everywhere.receives(t, 1); !slices.Equal(got, []string{"add a@1 true"}) {
		t.Errorf("the handler of every replica received %q", got)
	}
	env.Apply(step("a", "2"))
	if got := first.receives(t, 1); !slices.Equal(got, []string{"update a@1 a@2"}) {
		t.Errorf("the first replica received %q", got)
	}
	first.stop()
	env.Apply(step("a", "3"))
	if got := second.receives(t, 1); !slices.Equal(got, []string{"update a@2 a@3"}) {
		t.Errorf("the second replica received %q", got)
	}
}

func TestAFirstLeaderOfARevisionHandsOutEveryObject(t *testing.T) {
	env := dptest.Start(t, dptest.Config{Resources: []string{"configmaps"}})
	env.Apply(step("a", "1"))
	first := newReplica(t, env, Options{Revision: "1"})
	first.receives(t, 1)
	first.stop()
	same := newReplica(t, env, Options{Revision: "1"})
	env.Apply(step("b", "1"))
	if got := same.receives(t, 1); !slices.Equal(got, []string{"add b@1 false"}) {
		t.Errorf("the same revision received %q", got)
	}
	same.stop()
	other := newReplica(t, env, Options{Revision: "2"})
	if got := other.receives(t, 2); !slices.Equal(got, []string{"add a@1 true", "add b@1 true"}) {
		t.Errorf("another revision received %q", got)
	}
	other.stop()
	more := &recorder{}
	another := newReplica(t, env, Options{Revision: "2"}, more)
	defer another.stop()
	if got := another.receives(t, 2); !slices.Equal(got, []string{"add a@1 true", "add b@1 true"}) {
		t.Errorf("beside a handler more, one received %q", got)
	}
	more.receives(t, 2)
}

func TestWhatALeaderHandsToQueuesThatAreShutIsHandedOutAgain(t *testing.T) {
	env := dptest.Start(t, dptest.Config{Resources: []string{"configmaps"}})
	env.Apply(step("a", "1"))
	first := newReplica(t, env, Options{})
	first.receives(t, 1)
	first.queue.shut.Store(true) // the manager stops controllers before caches
	env.Apply(step("a", "2"))
	first.receives(t, 1)
	second := newReplica(t, env, Options{})
	defer second.stop()
	if got := second.receives(t, 1); !slices.Equal(got, []string{"update a@1 a@2"}) {
		t.Errorf("the second replica received %q", got)
	}
	first.stop()
}
