package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/core/delta"
)

// A controller in one page: every pod that appears or changes makes a key of the
// queue "dev/web", and keys are reconciled eight at a time, by as many replicas of
// this process as one likes. It runs beside `deltaplane up`.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx)
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	queues, err := client.Dial("127.0.0.1:7442", client.DialConfig{})
	if err != nil {
		return err
	}
	defer queues.Close()
	indexes, err := client.Dial("127.0.0.1:7441", client.DialConfig{})
	if err != nil {
		return err
	}
	defer indexes.Close()
	return control(ctx, queues, indexes, func(pod client.Object) { fmt.Println(pod.Key, pod.ResourceVersion) })
}

func control(ctx context.Context, queues, indexes grpc.ClientConnInterface, act func(pod client.Object)) error {
	const pods = "dev/pods.v1"
	index, queue := client.NewIndex(indexes), client.NewQueue(queues, "dev/web", "")
	if _, err := queue.Configure(ctx, client.QueueConfig{}); err != nil { // makes it, unless it is there
		return err
	}

	reconcile := func(ctx context.Context, item client.Item) (client.Result, error) {
		pod, read, err := index.Find(ctx, pods, item.Key, client.ReadOptions{AtLeast: item.AtLeast(pods)})
		if err != nil || pod == nil {
			return client.Result{}, err
		}
		if err := item.Alive(); err != nil { // right before a write
			return client.Result{}, err
		}
		act(*pod)
		return client.Result{ReadAt: client.Reading{pods: read}}, nil
	}
	worker, err := client.NewWorker(queues, client.ReconcilerFunc(reconcile), client.WorkerConfig{Queue: queue.Name(), Concurrency: 8})
	if err != nil {
		return err
	}

	// Whichever part ends, by a refusal or because ctx has ended, ends the other.
	ctx, stop := context.WithCancel(ctx)
	watched := make(chan error, 1)
	go func() {
		defer stop()
		watched <- follow(ctx, index, queue, pods)
	}()
	err = worker.Run(ctx)
	stop()
	return errors.Join(err, <-watched)
}

// follow makes keys of what happens in a collection. The initial state makes a key
// of every object, so that nothing is missed that happened before.
func follow(ctx context.Context, index *client.Index, queue *client.Queue, collection string) error {
	for event, err := range index.Watch(ctx, collection, client.WatchOptions{View: client.ViewMetadata}) {
		if err != nil {
			return err // the request was refused; anything else is tried again
		}
		if event.Object.Key == "" {
			continue // it is of no object
		}
		seen := client.Barrier{} // no replica of the index that is behind this event will do
		seen.Raise(collection, client.Revision{Epoch: event.Position.ObjectEpoch(), RV: event.Object.ResourceVersion})
		if _, err := queue.Add(ctx, client.AddItem{Key: event.Object.Key, Barrier: seen}); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

func ExampleIndex_Watch() {
	conn, err := client.Dial("127.0.0.1:7441", client.DialConfig{})
	if err != nil {
		log.Fatal(err)
	}
	for event, err := range client.NewIndex(conn).Watch(context.Background(), "pods", client.WatchOptions{Labels: "app=web"}) {
		if err != nil {
			log.Println(err) // the request was refused; anything else is tried again
			break
		}
		fmt.Println(event.Type, event.Object.Key)
	}
	conn.Close()
}

func ExampleIndex_List() {
	conn, err := client.Dial("127.0.0.1:7441", client.DialConfig{})
	if err != nil {
		log.Fatal(err)
	}
	// The web pods on two nodes of every cluster that do not run.
	objs, reading, err := client.NewIndex(conn).ListClusters(context.Background(), "pods.v1", client.ListOptions{
		Clusters: []string{"*"}, Index: "node", Values: []string{"node-1", "node-2"},
		Labels: "app=web", FieldSelector: "status.phase!=Running",
		ReadOptions: client.ReadOptions{View: client.ViewMetadata},
	})
	if err != nil {
		log.Println(err)
		return
	}
	for _, obj := range objs {
		fmt.Println(obj.Collection, obj.Key, obj.Quarantined)
	}
	fmt.Println(reading)
	conn.Close()
}

func ExampleTrigger() {
	// Pods wake the Jobs that own them, and every Job is looked at twice a day.
	cfg := client.TriggerConfig{Name: "job", Primary: jobs, Resync: 12 * time.Hour}
	cfg.Others = map[delta.Collection]client.Mapper{pods: client.OwnersOf("Job")}
	fmt.Println(cfg.Collections())
	// Output: [dev/jobs.v1.batch dev/pods.v1]
}
