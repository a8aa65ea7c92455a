package workqueue_test

import (
	"context"
	"log"

	upstream "k8s.io/client-go/util/workqueue"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/workqueue"
)

// A controller written on client-go takes its queue from here, and nothing else
// of it changes.
func Example() {
	conn, err := client.Dial("127.0.0.1:7442", client.DialConfig{})
	if err != nil {
		log.Fatal(err)
	}
	queue, err := workqueue.New(context.Background(), conn, workqueue.Config{
		Queue:   "dev/my-controller",
		OnError: func(op, key string, err error) { log.Printf("%s %s: %v", op, key, err) },
	})
	if err != nil {
		log.Fatal(err)
	}
	processNextItem(queue, func(string) error { return nil })
}

// processNextItem is the loop of client-go's own example.
func processNextItem(queue upstream.TypedRateLimitingInterface[string], sync func(string) error) bool {
	key, quit := queue.Get()
	if quit {
		return false
	}
	defer queue.Done(key)
	if err := sync(key); err != nil {
		queue.AddRateLimited(key)
		return true
	}
	queue.Forget(key)
	return true
}
