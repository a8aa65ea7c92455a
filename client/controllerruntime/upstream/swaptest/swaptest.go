// Package swaptest is what controller-runtime's tests call in place of its constructors, see
// package upstream: caches, clients and queues of controllerruntime, on the services that the
// environment names.
package swaptest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onsi/ginkgo/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	crclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/clientgo"
	"github.com/deltaplane/deltaplane/client/controllerruntime"
)

// The connections are there before any spec, as some look for goroutines that stay.
var (
	index, indexErr = connect("DELTAPLANE_INDEX")
	queue, queueErr = connect("DELTAPLANE_QUEUE")
)

func connect(variable string) (*grpc.ClientConn, error) {
	conn, err := client.Dial(os.Getenv(variable), client.DialConfig{})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", variable, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	conn.Connect()
	for state := conn.GetState(); state != connectivity.Ready; state = conn.GetState() {
		if !conn.WaitForStateChange(ctx, state) {
			return nil, fmt.Errorf("%s: %w", variable, ctx.Err())
		}
	}
	return conn, nil
}

var operators atomic.Int64

// operator returns one that has nothing in common with the others.
func operator(queues grpc.ClientConnInterface) (*controllerruntime.Operator, error) {
	if indexErr != nil {
		return nil, indexErr
	}
	if err := count(); err != nil {
		return nil, err
	}
	return controllerruntime.New(index, queues, controllerruntime.Options{
		Name: fmt.Sprintf("suite-%d", operators.Add(1)), Local: os.Getenv("DELTAPLANE_CACHE") == "local",
		Log: slog.New(slog.NewTextHandler(ginkgo.GinkgoWriter, nil)),
	})
}

// count adds a byte to a file that shows how often the suite comes here.
func count() error {
	file, err := os.OpenFile(os.Getenv("DELTAPLANE_SWAPS"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.WriteString(".")
	return errors.Join(err, file.Close())
}

// NewCache is cache.New.
func NewCache(cfg *rest.Config, o cache.Options) (cache.Cache, error) {
	if os.Getenv("DELTAPLANE_CACHE") == "gateway" { // the cache is controller-runtime's own, and the server the gateway
		if err := count(); err != nil {
			return nil, err
		}
		return cache.New(cfg, o)
	}
	op, err := operator(nil)
	if err != nil {
		return nil, err
	}
	if cfg.Host != "" {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := await(ctx, cfg); err != nil {
			return nil, err
		}
	}
	return op.NewCache(cfg, o)
}

// made are the operators of managers, by their caches.
var made sync.Map

// Manager changes a manager's options: its cache and client are those of an operator, where the
// options say nothing else.
func Manager(newCache *cache.NewCacheFunc, newClient *crclient.NewClientFunc) error {
	if queueErr != nil {
		return queueErr
	}
	op, err := operator(queue)
	if err != nil {
		return err
	}
	if *newCache == nil {
		*newCache = func(cfg *rest.Config, o cache.Options) (cache.Cache, error) {
			c, err := op.NewCache(cfg, o)
			made.Store(c, op)
			return c, err
		}
	}
	if *newClient == nil {
		*newClient = op.NewClient
	}
	return nil
}

// NewQueue is the type of controller.Options.NewQueue.
type NewQueue[T comparable] = func(string, workqueue.TypedRateLimiter[T]) workqueue.TypedRateLimitingInterface[T]

// Controller changes the options of a controller of the manager that has a cache: its reconciler
// and queue are those of the manager's operator, unless the options bring a queue.
func Controller[T comparable](of cache.Cache, r *reconcile.TypedReconciler[T], q *NewQueue[T]) {
	op, ok := made.Load(of)
	if !ok || *r == nil || *q != nil {
		return
	}
	c := controllerruntime.Reconciler(op.(*controllerruntime.Operator), *r) //nolint:forcetypeassert // nothing else is stored
	*r, *q = c, c.NewQueue
}

// Queue returns a queue of its own.
func Queue[T comparable]() priorityqueue.PriorityQueue[T] {
	codec, err := clientgo.CodecFor[T]()
	if err != nil {
		codec = encoded[T]{}
	}
	op, err := operator(queue)
	if err != nil {
		ginkgo.Fail(err.Error())
	}
	q, ok := controllerruntime.Reconciler[T](op, nil).WithCodec(codec).NewQueue("queue", nil).(priorityqueue.PriorityQueue[T])
	if !ok {
		ginkgo.Fail("the queue is none of Deltaplane")
	}
	return q
}

// encoded is the codec of a type that has none.
type encoded[T comparable] struct{}

func (encoded[T]) Encode(item T) (string, error) {
	text, err := json.Marshal(item)
	return string(text), err
}

func (encoded[T]) Decode(key string) (item T, err error) {
	err = json.Unmarshal([]byte(key), &item)
	return item, err
}
