package clientgo_test

import (
	"context"
	"log"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/clientgo"
	keys "github.com/deltaplane/deltaplane/client/workqueue"
)

// A controller on client-go takes its pods from the index and its queue from the queue service. All
// of its replicas work.
func Example() {
	ctx, clientset := context.Background(), kubernetes.Interface(nil) // a controller has them
	conn, err := client.Dial("127.0.0.1:7441", client.DialConfig{})
	if err != nil {
		log.Fatal(err)
	}
	queueConn, err := client.Dial("127.0.0.1:7442", client.DialConfig{})
	if err != nil {
		log.Fatal(err)
	}

	factory := informers.NewSharedInformerFactory(clientset, 0)
	pods, err := clientgo.InformerFor(ctx, factory, client.NewIndex(conn), &corev1.Pod{}, nil, clientgo.InformerConfig{})
	if err != nil {
		log.Fatal(err)
	}
	limiter := workqueue.DefaultTypedItemBasedRateLimiter[types.NamespacedName]()
	queue, err := clientgo.NewQueue(ctx, queueConn, limiter, clientgo.QueueConfig[types.NamespacedName]{
		Config: keys.Config{Queue: "dev/my-controller"},
	})
	if err != nil {
		log.Fatal(err)
	}

	// From here on nothing is new.
	add := func(obj any) {
		if name, err := cache.DeletionHandlingObjectToName(obj); err == nil {
			queue.Add(types.NamespacedName(name))
		}
	}
	_, err = pods.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, obj any) { add(obj) }, DeleteFunc: add})
	if err != nil {
		log.Fatal(err)
	}
	factory.StartWithContext(ctx)
	if err := factory.WaitForCacheSyncWithContext(ctx).AsError(); err != nil {
		log.Fatal(err)
	}
	for name, shutdown := queue.Get(); !shutdown; name, shutdown = queue.Get() {
		pod, err := factory.Core().V1().Pods().Lister().Pods(name.Namespace).Get(name.Name)
		switch {
		case errors.IsNotFound(err):
			queue.Forget(name)
		case err != nil:
			queue.AddRateLimited(name)
		default:
			log.Print(pod.Spec.NodeName)
			queue.Forget(name)
		}
		queue.Done(name)
	}
}
