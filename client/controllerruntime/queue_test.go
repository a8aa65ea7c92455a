package controllerruntime

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/clientgo"
	keys "github.com/deltaplane/deltaplane/client/workqueue"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
)

// gate is an index that is behind until a test raises it.
type gate struct {
	mu     sync.Mutex
	at     client.Barrier
	moved  chan struct{}
	fail   error
	asked  int
	parked chan struct{} // receives for each call that waits
}

func newGate() *gate {
	return &gate{at: client.Barrier{}, moved: make(chan struct{}), parked: make(chan struct{}, 1000)}
}

func (g *gate) raise(collection string, rv string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.at.Raise(collection, client.Revision{Epoch: 1, RV: rv})
	close(g.moved)
	g.moved = make(chan struct{})
}

func (g *gate) WaitFor(ctx context.Context, b client.Barrier, timeout time.Duration) (client.Barrier, error) {
	deadline := time.After(timeout)
	for {
		g.mu.Lock()
		g.asked++
		behind, now := false, client.Barrier{}
		for collection, at := range b {
			behind = behind || g.at[collection].Compare(at) < 0
			now[collection] = g.at[collection]
		}
		moved, fail := g.moved, g.fail
		g.mu.Unlock()
		switch {
		case fail != nil:
			return nil, fail
		case !behind:
			return now, nil
		}
		if timeout > atOnce {
			g.parked <- struct{}{}
		}
		select {
		case <-moved:
		case <-deadline:
			return nil, client.ErrRevisionNotReached
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (g *gate) Find(context.Context, string, string, client.ReadOptions) (*client.Object, client.Bounds, error) {
	return nil, client.Bounds{}, nil
}

// barrier is at a resource version of pods.
func barrier(rv string) client.Barrier {
	return client.Barrier{"dev/pods.v1": {Epoch: 1, RV: rv}}
}

type queueTest struct {
	conn *grpc.ClientConn
	gate *gate
	now  client.Barrier
	errs chan error
}

// onEachEngine runs a test on every kind of queue service.
func onEachEngine(t *testing.T, f func(t *testing.T, q *queueTest)) {
	t.Helper()
	for name, cfg := range map[string]queue.Config{"memory": {}, "redis": {RedisURL: "x"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if cfg.RedisURL != "" {
				cfg.RedisURL = embeddedtest.Redis(t).URL()
			}
			conn, err := client.Dial(queuetest.Address(t, cfg, "warn"), client.DialConfig{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
			f(t, &queueTest{conn: conn, gate: newGate(), errs: make(chan error, 100)})
		})
	}
}

func open[T comparable](t *testing.T, qt *queueTest, codec clientgo.Codec[T]) *requests[T] {
	t.Helper()
	return openNamed(t, qt, "dev/op/test", codec)
}

func openNamed[T comparable](t *testing.T, qt *queueTest, name string, codec clientgo.Codec[T]) *requests[T] {
	t.Helper()
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[T](20*time.Millisecond, time.Second)
	q, err := newQueue(context.WithoutCancel(t.Context()), qt.conn, qt.gate, limiter, queueConfig[T]{
		Config: keys.Config{Queue: name, OnError: func(op, key string, err error) { qt.errs <- fmt.Errorf("%s %s: %w", op, key, err) }},
		Codec:  codec, Barrier: func() client.Barrier { return qt.now },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		q.ShutDown()
		for _, request := range q.inHand() {
			q.Done(request)
		}
		q.Wait()
	})
	return q
}

func (q *requests[T]) inHand() []T {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Collect(maps.Keys(q.hands))
}

// spec is what is done to a queue, and what must come of it.
type spec func(t *testing.T, q *requests[string])

func adds(o priorityqueue.AddOpts, items ...string) spec {
	return func(_ *testing.T, q *requests[string]) { q.AddWithOpts(o, items...) }
}

func takes(item string, priority int) spec {
	return func(t *testing.T, q *requests[string]) {
		t.Helper()
		got, p, shutdown := q.GetWithPriority()
		if got != item || p != priority || shutdown {
			t.Errorf("got %q with %d, shutdown %t; want %q with %d", got, p, shutdown, item, priority)
		}
	}
}

func dones(item string) spec { return func(_ *testing.T, q *requests[string]) { q.Done(item) } }

func lengths(n int) spec {
	return func(t *testing.T, q *requests[string]) {
		t.Helper()
		if got := q.Len(); got != n {
			t.Errorf("%d are ready, want %d", got, n)
		}
	}
}

// The specs of controller-runtime's priority queue, by their names. Priorities are of different
// levels here; metrics are the service's.
func TestSpecsOfThePriorityQueue(t *testing.T) {
	p := func(n int) priorityqueue.AddOpts { return priorityqueue.AddOpts{Priority: &n} }
	none := priorityqueue.AddOpts{}
	after := func(d time.Duration) priorityqueue.AddOpts { return priorityqueue.AddOpts{After: d} }
	specs := map[string][]spec{
		"returns an item":                                 {adds(none, "foo"), takes("foo", 0), lengths(0)},
		"returns items in order":                          {adds(none, "foo"), adds(none, "bar"), takes("foo", 0), takes("bar", 0)},
		"doesn't return an item that is currently locked": {adds(none, "foo"), takes("foo", 0), adds(none, "foo"), adds(none, "bar"), takes("bar", 0)},
		"returns an item as soon as its unlocked": {
			adds(none, "foo"), takes("foo", 0), adds(none, "foo"), adds(none, "bar"), takes("bar", 0), lengths(0), dones("foo"), takes("foo", 0),
		},
		"de-duplicates items":                                {adds(none, "foo"), adds(none, "foo"), lengths(1)},
		"enqueues a locked item":                             {adds(none, "foo"), lengths(1), takes("foo", 0), adds(none, "foo"), lengths(0), dones("foo"), takes("foo", 0)},
		"retains the highest priority":                       {adds(p(1), "foo"), adds(p(10), "foo"), takes("foo", 10), lengths(0)},
		"will not decrease the priority":                     {adds(p(10), "foo"), adds(p(1), "foo"), takes("foo", 10), lengths(0)},
		"gets pushed to the front if the priority increases": {adds(none, "foo"), adds(none, "bar"), adds(none, "baz"), adds(p(1), "baz"), lengths(3), takes("baz", 1), lengths(2)},
		"retains the lowest after duration":                  {adds(none, "foo"), adds(after(time.Hour), "foo"), takes("foo", 0), lengths(0)},
		"doesn't include non-ready items in Len()": {
			adds(after(time.Minute), "foo"), adds(none, "baz"), adds(after(time.Minute), "bar"), adds(none, "bal"), lengths(2),
		},
		"an item that gets initially added with after and then without":    {adds(after(time.Hour), "foo"), lengths(0), adds(none, "foo"), lengths(1), takes("foo", 0), lengths(0)},
		"an item with after is re-added with higher priority and no after": {adds(after(time.Hour), "foo"), lengths(0), adds(p(1), "foo"), lengths(1), takes("foo", 1), lengths(0)},
		"follows FIFO order in the new priority queue when item priority changes": {
			adds(p(1), "a", "b"), lengths(2), adds(none, "c"), lengths(3), adds(p(1), "c"), lengths(3), takes("a", 1), takes("b", 1), takes("c", 1),
		},
		"low priorities come back as they are": {adds(p(handler.LowPriority), "foo"), adds(none, "bar"), lengths(2), takes("bar", 0), takes("foo", handler.LowPriority)},
	}
	onEachEngine(t, func(t *testing.T, qt *queueTest) {
		for name, steps := range specs {
			t.Run(name, func(t *testing.T) {
				q := openNamed[string](t, qt, "dev/"+strings.NewReplacer("/", "-", "'", "", "(", "", ")", "").Replace(t.Name()), nil)
				for _, s := range steps {
					s(t, q)
				}
			})
		}
	})
}

func TestGetDoesNotHandOutWhatWaitsAfterAShutdown(t *testing.T) {
	onEachEngine(t, func(t *testing.T, qt *queueTest) {
		q := open[string](t, qt, nil)
		q.Add("baz")
		if q.Len() != 1 {
			t.Error("baz does not wait")
		}
		blocked := make(chan bool, 1)
		other := openNamed[string](t, qt, "dev/other", nil)
		go func() {
			_, shutdown := other.Get()
			blocked <- shutdown
		}()
		other.ShutDown()
		if !<-blocked {
			t.Error("a call of Get was not told of the shutdown")
		}
		q.ShutDown()
		q.AddWithOpts(priorityqueue.AddOpts{After: time.Second}, "foo")
		for range 2 {
			if item, priority, shutdown := q.GetWithPriority(); item != "" || priority != 0 || !shutdown {
				t.Errorf("got %q with %d, shutdown %t", item, priority, shutdown)
			}
		}
		next := open[string](t, qt, nil)
		if item, _ := next.Get(); item != "baz" {
			t.Errorf("another replica gets %q", item)
		}
	})
}

func TestReturnsManyItems(t *testing.T) {
	onEachEngine(t, func(t *testing.T, qt *queueTest) {
		q := open[string](t, qt, nil)
		const n = 1000
		for i := range n {
			o := priorityqueue.AddOpts{After: time.Duration(i%10) * time.Millisecond}
			if i%3 == 0 {
				o = priorityqueue.AddOpts{Priority: &i}
			}
			q.AddWithOpts(o, fmt.Sprintf("foo%d", i))
		}
		var workers sync.WaitGroup
		for range 100 {
			workers.Go(func() {
				for range n / 100 {
					item, _ := q.Get()
					q.Forget(item)
					q.Done(item)
				}
			})
		}
		workers.Wait()
		if got := q.Len(); got != 0 {
			t.Errorf("%d are left", got)
		}
	})
}

func TestAKeyWhoseBarrierIsNotReachedHoldsUpNobody(t *testing.T) {
	onEachEngine(t, func(t *testing.T, qt *queueTest) {
		q := open[string](t, qt, nil)
		qt.gate.raise("dev/pods.v1", "5")
		qt.now = barrier("7")
		q.Add("behind")
		if q.Len() != 1 {
			t.Error("the key does not wait")
		}
		got := make(chan string, 2)
		go func() {
			for range 2 {
				item, _ := q.Get()
				got <- item
			}
		}()
		<-qt.gate.parked
		qt.now = barrier("5")
		q.Add("other")
		if item := <-got; item != "other" {
			t.Errorf("got %q", item)
		}
		qt.gate.raise("dev/pods.v1", "7")
		if item := <-got; item != "behind" {
			t.Errorf("got %q", item)
		}
		if h, ok := q.held("behind"); !ok || h.AtLeast("dev/pods.v1").RV != "7" {
			t.Errorf("in hand: %t", ok)
		}
	})
}

func TestAKeyThatIsReadyWhileEveryWorkerIsBusyIsAnotherReplicas(t *testing.T) {
	onEachEngine(t, func(t *testing.T, qt *queueTest) {
		q, next := open[string](t, qt, nil), open[string](t, qt, nil)
		qt.now = barrier("7")
		q.Add("behind")
		got := make(chan string)
		go func() {
			item, _ := q.Get()
			got <- item
		}()
		<-qt.gate.parked
		qt.now = nil
		q.Add("long")
		if item := <-got; item != "long" {
			t.Errorf("got %q", item)
		}
		qt.gate.raise("dev/pods.v1", "7")
		if item, _ := next.Get(); item != "behind" {
			t.Errorf("another replica gets %q", item)
		}
	})
}

func TestAKeyThatWaitsAsideIsAnotherReplicasAfterAShutdown(t *testing.T) {
	onEachEngine(t, func(t *testing.T, qt *queueTest) {
		q := open[string](t, qt, nil)
		qt.now = barrier("7")
		q.Add("behind")
		ended := make(chan struct{})
		go func() { defer close(ended); q.Get() }()
		<-qt.gate.parked
		q.ShutDown()
		<-ended
		q.Wait()
		qt.gate.raise("dev/pods.v1", "7")
		next := open[string](t, qt, nil)
		if item, _ := next.Get(); item != "behind" {
			t.Errorf("another replica gets %q", item)
		}
	})
}

func TestWhatIsCalledForARequestInHandIsOneSettlement(t *testing.T) {
	onEachEngine(t, func(t *testing.T, qt *queueTest) {
		q := open[reconcile.Request](t, qt, nil)
		r := reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "ns", Name: "a"}}
		ten := 10
		take := func() (*hand, int) {
			t.Helper()
			got, priority, _ := q.GetWithPriority()
			if got != r {
				t.Fatalf("got %v", got)
			}
			h, _ := q.held(r)
			return h, priority
		}
		q.Add(r)
		h, _ := take()
		qt.gate.raise("dev/nodes.v1", "1") // so that it has an epoch
		h.Saw("dev/pods.v1", client.Bounds{Revision: client.Revision{Epoch: 1, RV: "3"}, Upper: client.Revision{Epoch: 1, RV: "4"}})
		if err := h.Wrote(t.Context(), "dev/nodes.v1", "9"); err != nil {
			t.Fatal(err)
		}
		q.AddWithOpts(priorityqueue.AddOpts{RateLimited: true, Priority: &ten}, r) // an error
		q.Done(r)
		qt.gate.raise("dev/pods.v1", "4")
		qt.gate.raise("dev/nodes.v1", "9")
		h, priority := take()
		if priority != 10 || h.item.NumRequeues != 1 || h.AtLeast("dev/pods.v1").RV != "4" || h.AtLeast("dev/nodes.v1") != (client.Revision{Epoch: 1, RV: "9"}) {
			t.Errorf("after an error: priority %d, %+v", priority, h.item)
		}
		q.Forget(r)
		q.AddWithOpts(priorityqueue.AddOpts{After: time.Millisecond, Priority: &ten}, r) // RequeueAfter
		q.Done(r)
		if h, priority = take(); priority != 10 || h.item.NumRequeues != 0 {
			t.Errorf("after RequeueAfter: priority %d, %+v", priority, h.item)
		}
		q.Add(r) // an event
		q.Forget(r)
		q.Done(r)
		take()
		q.Forget(r)
		q.Done(r)
		if q.Len() != 0 {
			t.Error("it waits again")
		}
		q.Done(r)
		if err := <-qt.errs; !errors.Is(err, clientgo.ErrKey) {
			t.Errorf("Done of what is not held: %v", err)
		}
	})
}

// clusterRequest is a request that carries the name of a cluster.
type clusterRequest struct {
	Cluster string
	reconcile.Request
}

type clusterCodec struct{}

func (clusterCodec) Encode(r clusterRequest) (string, error) {
	return r.Cluster + "/" + r.Namespace + "/" + r.Name, nil
}

func (clusterCodec) Decode(key string) (r clusterRequest, err error) {
	parts := strings.SplitN(key, "/", 3)
	if len(parts) != 3 {
		return r, errors.New("not three parts")
	}
	r.Cluster, r.Namespace, r.Name = parts[0], parts[1], parts[2]
	return r, nil
}

func TestARequestThatCarriesACluster(t *testing.T) {
	onEachEngine(t, func(t *testing.T, qt *queueTest) {
		if _, err := newQueue[clusterRequest](t.Context(), qt.conn, qt.gate, nil, queueConfig[clusterRequest]{Config: keys.Config{Queue: "dev/x"}}); !errors.Is(err, clientgo.ErrNoCodec) {
			t.Errorf("without a codec: %v", err)
		}
		q := open[clusterRequest](t, qt, clusterCodec{})
		name := reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "ns", Name: "a"}}
		one, two := clusterRequest{"one", name}, clusterRequest{"two", name}
		q.Add(one)
		q.Add(two)
		q.Add(one)
		for _, want := range []clusterRequest{one, two} {
			if got, _ := q.Get(); got != want {
				t.Errorf("got %v, want %v", got, want)
			}
		}
	})
}
