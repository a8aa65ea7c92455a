package informer_test

import (
	"context"
	"fmt"
	"iter"
	"log"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/informer"
)

// A controller written on client-go takes its informers from here. In earnest the
// source is a client.NewIndex on a connection to an indexer.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	factory := informer.NewFactory(shelf{}, informer.FactoryConfig{
		Resync:  10 * time.Hour,
		OnError: func(err error) { log.Print(err) },
	})
	pods, err := informer.For(factory, informer.Config[*corev1.Pod]{
		Collection: "dev/pods.v1",
		Decode:     informer.JSON[corev1.Pod],
		Indexers: map[string]informer.IndexFunc[*corev1.Pod]{
			"node": func(pod *corev1.Pod) ([]string, error) { return []string{pod.Spec.NodeName}, nil },
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	reg, err := pods.AddHandler(informer.HandlerFuncs[*corev1.Pod]{
		AddFunc: func(pod *corev1.Pod, initial bool) { fmt.Println("add", pod.Name, initial) }, // queue.Add
		DeleteFunc: func(d informer.Deletion[*corev1.Pod]) {
			fmt.Println("delete", d.Key, d.Reason)
		},
	}, informer.HandlerOptions{Name: "example"})
	if err != nil {
		log.Fatal(err)
	}
	factory.Start(ctx)
	if err := informer.WaitFor(ctx, reg); err != nil { // the store is full and the handler has seen it
		log.Fatal(err)
	}
	onNode, err := pods.Store().ByIndex("node", "node-1")
	fmt.Println(len(onNode), "on node-1", err)

	// A write to the API server answered resource version 8: a read that must see it waits.
	err = pods.Store().AtLeast(ctx, client.Revision{RV: "8"})
	if err != nil {
		log.Fatal(err)
	}
	_, found, err := pods.Store().Get("default/web-0")

	pods.RemoveHandler(reg, informer.Drain)
	_ = reg.Wait(ctx)
	fmt.Println("web-0 found:", found, err)
	cancel()
	factory.Wait()
	// Output:
	// add web-0 true
	// add web-1 true
	// 2 on node-1 <nil>
	// delete default/web-0 observed
	// web-0 found: false <nil>
}

// shelf is an index with two pods, of which one is deleted: a test of a controller
// has one like it.
type shelf struct{}

func (shelf) Watch(ctx context.Context, _ string, _ client.WatchOptions) iter.Seq2[client.Event, error] {
	pod := func(name string) client.Object {
		return client.Object{
			Key: "default/" + name, UID: name, ResourceVersion: "7",
			Payload: fmt.Appendf(nil, `{"metadata":{"name":%q,"namespace":"default"},"spec":{"nodeName":"node-1"}}`, name),
		}
	}
	return func(yield func(client.Event, error) bool) {
		for _, e := range []client.Event{
			{Type: client.EventAdded, Object: pod("web-0")},
			{Type: client.EventAdded, Object: pod("web-1")},
			{Type: client.EventInitialEnd, Position: client.Position{Epoch: 1, Sequence: 7}, Revision: client.Revision{Epoch: 1, RV: "7"}},
		} {
			if !yield(e, nil) {
				return
			}
		}
		// The example looks at both before one goes.
		select {
		case <-ctx.Done():
			return
		case <-time.After(100 * time.Millisecond):
		}
		yield(client.Event{
			Type: client.EventDeleted, Object: client.Object{Key: "default/web-0", ResourceVersion: "8"}, DeleteReason: client.DeleteObserved,
			Position: client.Position{Epoch: 1, Sequence: 8}, Revision: client.Revision{Epoch: 1, RV: "8"},
		}, nil)
		<-ctx.Done()
	}
}
