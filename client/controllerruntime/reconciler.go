package controllerruntime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/clientgo"
	keys "github.com/deltaplane/deltaplane/client/workqueue"
)

// Controller is a reconciler and its queue. Both belong together:
//
//	notes := controllerruntime.Reconciler(operator, &NoteReconciler{…})
//	err := ctrl.NewControllerManagedBy(manager).For(&v1.Note{}).
//		WithOptions(controller.Options{NewQueue: notes.NewQueue}).
//		Complete(notes)
type Controller[T comparable] struct {
	op    *Operator
	inner reconcile.TypedReconciler[T]
	codec clientgo.Codec[T]

	mu    sync.Mutex
	queue *requests[T] // nil before NewQueue
}

// Reconciler wraps a reconciler. Its context ends with the lease of the request, reads of the
// operator's cache and client with that context see what caused the request and what its earlier
// runs read and wrote, on any replica, and writes are refused once the lease has ended.
//
// Until each of them has its queue, which a manager makes when it starts the controller, the
// replica does not lead the feed.
func Reconciler[T comparable](o *Operator, r reconcile.TypedReconciler[T]) *Controller[T] {
	o.mu.Lock()
	o.waiting++
	o.mu.Unlock()
	return &Controller[T]{op: o, inner: r}
}

// WithCodec sets how keys are made of requests. Requests that are reconcile.Request, a
// types.NamespacedName or a string need none.
func (c *Controller[T]) WithCodec(codec clientgo.Codec[T]) *Controller[T] {
	c.codec = codec
	return c
}

// NewQueue is for controller.Options.NewQueue. The queue of a controller is shared by the replicas
// of the operator, and a request is held by one of them. What it cannot be made of ends the manager
// with an error.
func (c *Controller[T]) NewQueue(name string, limiter workqueue.TypedRateLimiter[T]) workqueue.TypedRateLimitingInterface[T] {
	q, err := c.newQueue(name, limiter)
	if err != nil {
		c.op.fail(fmt.Errorf("controllerruntime: queue of controller %q: %w", name, err))
		stopped := workqueue.NewTypedRateLimitingQueue(limiter)
		stopped.ShutDown()
		return stopped
	}
	return q
}

// handKey is the key of a request's hand in the context of its reconcile.
type handKey struct{}

// handOf is the request in hand that a context belongs to; nil outside of a reconcile.
func handOf(ctx context.Context) *hand {
	h, _ := ctx.Value(handKey{}).(*hand) // nil says it
	return h
}

// Reconcile implements reconcile.TypedReconciler.
func (c *Controller[T]) Reconcile(ctx context.Context, request T) (reconcile.Result, error) {
	c.mu.Lock()
	q := c.queue
	c.mu.Unlock()
	if q == nil {
		return reconcile.Result{}, reconcile.TerminalError(fmt.Errorf("controllerruntime: the controller of %v has another queue: set controller.Options.NewQueue", request))
	}
	h, ok := q.held(request)
	if !ok {
		return reconcile.Result{}, reconcile.TerminalError(fmt.Errorf("controllerruntime: %v is reconciled and not in hand", request))
	}
	ctx, cancel := context.WithCancelCause(context.WithValue(ctx, handKey{}, h))
	defer cancel(nil)
	defer context.AfterFunc(h.Context(), func() { cancel(context.Cause(h.Context())) })()
	result, err := c.inner.Reconcile(ctx, request)
	if err := h.Tidy(ctx); err != nil { // what stays is looked for once more
		c.op.o.Log.DebugContext(ctx, "state was not cleared", slog.String("key", h.item.Key), slog.Any("error", err))
	}
	if errors.Is(err, client.ErrRevisionNotReached) || errors.Is(err, client.ErrNotSynced) {
		h.Behind()
	}
	return result, err
}

func (c *Controller[T]) newQueue(name string, limiter workqueue.TypedRateLimiter[T]) (*requests[T], error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.queue != nil {
		return nil, errors.New("controllerruntime: the reconciler has a queue already: wrap it once for each controller")
	}
	if c.op.conn == nil {
		return nil, errors.New("controllerruntime: the operator has no connection to a queue service")
	}
	settings := c.op.o.Queue
	q, err := newQueue(context.Background(), c.op.conn, c.op.index, limiter, queueConfig[T]{
		Config: keys.Config{
			Queue: c.op.queueName(name), Settings: &settings, Name: c.op.o.Identity, Lease: c.op.o.Lease, Grace: c.op.o.Grace,
			OnError: func(of, key string, err error) { c.op.queueFailed(name, of, key, err) }, Log: c.op.o.Log,
		},
		Codec: c.codec, Barrier: c.op.barrier, Seen: c.op.hasSeen,
	})
	if err != nil {
		return nil, err
	}
	if err := c.op.keep(name, q); err != nil {
		q.ShutDown()
		return nil, err
	}
	c.queue = q
	c.op.started()
	return q, nil
}
