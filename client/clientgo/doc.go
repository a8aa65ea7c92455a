// Package clientgo is Deltaplane behind the interfaces of client-go, for controllers that are
// written on them: informers on the index service and work queues on the queue service. It is a
// module of its own, so that the client does not depend on client-go.
//
//	index := client.NewIndex(conn)
//	factory := informers.NewSharedInformerFactory(clientset, 0)
//	_, err := clientgo.InformerFor(ctx, factory, index, &corev1.Pod{}, nil, clientgo.InformerConfig{})
//	pods := factory.Core().V1().Pods() // its informer and its lister read the index
//
//	queue, err := clientgo.NewQueue[types.NamespacedName](ctx, queueConn, nil, clientgo.QueueConfig[types.NamespacedName]{
//		Config: keys.Config{Queue: "dev/my-controller"}, // Deltaplane's client/workqueue
//	})
//
// docs/client-go.md shows what takes the place of what, and docs/differences.md says what differs.
// The suites of client-go that hold its informers and queues to their rules run on these too, see
// folder upstream.
package clientgo
