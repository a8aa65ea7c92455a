package client_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/core/delta"
)

// A controller in one page: keys of the queue "dev/web" are reconciled eight at
// a time, by as many replicas of this process as one likes.
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
	index := client.NewIndex(indexes)

	reconcile := func(ctx context.Context, item client.Item) (client.Result, error) {
		const pods = "dev/pods.v1"
		pod, found, read, err := index.Find(ctx, pods, item.Key, client.ReadOptions{AtLeast: item.AtLeast(pods)})
		if err != nil || !found {
			return client.Result{}, err
		}
		if err := item.Alive(); err != nil { // right before a write
			return client.Result{}, err
		}
		fmt.Println(pod.Key, pod.ResourceVersion)
		return client.Result{ReadAt: client.Barrier{pods: read}}, nil
	}
	w, err := client.NewWorker(queues, client.ReconcilerFunc(reconcile), client.WorkerConfig{Queue: "dev/web", Concurrency: 8})
	if err != nil {
		return err
	}
	return w.Run(ctx)
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
	objs, revisions, err := client.NewIndex(conn).ListClusters(context.Background(), "pods.v1", client.ListOptions{
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
	fmt.Println(revisions)
	conn.Close()
}

func ExampleTrigger() {
	// Pods wake the Jobs that own them, and every Job is looked at twice a day.
	cfg := client.TriggerConfig{Name: "job", Primary: jobs, Resync: 12 * time.Hour}
	cfg.Others = map[delta.Collection]client.Mapper{pods: client.OwnersOf("Job")}
	fmt.Println(cfg.Collections())
	// Output: [dev/jobs.v1.batch dev/pods.v1]
}
