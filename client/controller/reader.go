package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/internal/run"
	"github.com/deltaplane/deltaplane/core/delta"
)

type runKey struct{}

// runOf is the reconcile that a context belongs to. Reads outside of one see any state.
func runOf(ctx context.Context) *run.Run {
	if r, ok := ctx.Value(runKey{}).(*run.Run); ok {
		return r
	}
	r, _ := run.New(run.Config{}) // without a state it cannot fail
	return r
}

// reconcile runs the reconciler on a key.
func (c *Controller) reconcile(ctx context.Context, item client.Item) (res client.Result, err error) {
	c.metrics.began()
	if _, err := delta.ParseKey(item.Key); err != nil {
		c.emit(Event{Kind: EventBadKey, Key: item.Key, Err: err})
		return client.Result{}, client.Terminal(fmt.Errorf("controller: %w", err))
	}
	r, err := run.New(run.Config{
		Item: item, Index: c.index,
		Save: func(ctx context.Context, state []byte) error {
			return c.queue.SaveState(ctx, item.Key, item.Token, state)
		},
		OnGivenUp: func(g run.Gone) {
			c.emit(Event{Kind: EventDeletionUnseen, Collection: g.Collection, Key: g.Key, Reason: "uid " + g.UID})
		},
	})
	if err != nil {
		return client.Result{}, fmt.Errorf("controller: %w", err)
	}
	watch := context.AfterFunc(ctx, func() {
		if cause := context.Cause(ctx); errors.Is(cause, client.ErrTimeout) || errors.Is(cause, client.ErrLeaseLost) {
			c.emit(Event{Kind: EventReconcileOverran, Key: item.Key, Err: cause})
		}
	})
	defer watch()
	defer func() {
		if v := recover(); v != nil {
			err = &client.PanicError{Value: v, Stack: debug.Stack()}
		}
		res.ReadAt, res.Wrote = r.Results()
	}()
	out, err := c.rec(context.WithValue(ctx, runKey{}, r), Requests(item.Key)[0])
	if err := r.Tidy(ctx); err != nil { // what stays is looked for once more
		c.o.Log.DebugContext(ctx, "state was not cleared", slog.String("key", item.Key), slog.Any("error", err))
	}
	if err == nil && out.RequeueAfter < 0 {
		err = fmt.Errorf("controller: the reconciler asks to be run after %v, which is negative", out.RequeueAfter)
	}
	return client.Result{After: out.RequeueAfter, Reason: out.Reason}, err
}

// Find returns an object, or nil when there is none, at least as new as the context's
// reconcile has to see. Errors: those of [client.Index.Get] but for an absent key.
func (c *Controller) Find(ctx context.Context, collection, key string) (*client.Object, error) {
	full, err := c.names.of(ctx, collection)
	if err != nil {
		return nil, err
	}
	r := runOf(ctx)
	if err := r.Unseen(ctx, full); err != nil {
		return nil, fmt.Errorf("controller: %w", err)
	}
	obj, at, err := c.index.Find(ctx, full, key, client.ReadOptions{AtLeast: r.AtLeast(full)})
	if err != nil {
		return nil, err
	}
	r.Saw(full, at)
	return obj, nil
}

// Objects returns the objects that o chooses, of one collection and one state, at least as
// new as the context's reconcile has to see.
func (c *Controller) Objects(ctx context.Context, collection string, o client.ListOptions) ([]client.Object, error) {
	if len(o.Clusters) > 0 {
		return nil, errors.New("controller: a list of several clusters has no single state: list each of them")
	}
	full, err := c.names.of(ctx, collection)
	if err != nil {
		return nil, err
	}
	r := runOf(ctx)
	if err := r.Unseen(ctx, full); err != nil {
		return nil, fmt.Errorf("controller: %w", err)
	}
	if least := r.AtLeast(full); least.Compare(o.AtLeast) > 0 {
		o.AtLeast = least
	}
	objects, at, err := c.index.List(ctx, full, o)
	if err != nil {
		return nil, err
	}
	r.Saw(full, at)
	return objects, nil
}

// Get returns an object, decoded from its JSON. An absent key is [client.ErrKeyNotFound].
func Get[T any](ctx context.Context, c *Controller, collection, key string) (*T, error) {
	obj, err := c.Find(ctx, collection, key)
	if err != nil {
		return nil, err
	}
	if obj == nil {
		return nil, fmt.Errorf("controller: get %s %s: %w", collection, key, client.ErrKeyNotFound)
	}
	return decode[T](collection, *obj)
}

// List returns the objects that o chooses, decoded from their JSON.
func List[T any](ctx context.Context, c *Controller, collection string, o client.ListOptions) ([]*T, error) {
	objects, err := c.Objects(ctx, collection, o)
	if err != nil {
		return nil, err
	}
	all := make([]*T, len(objects))
	for i, obj := range objects {
		if all[i], err = decode[T](collection, obj); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func decode[T any](collection string, obj client.Object) (*T, error) {
	if obj.Quarantined {
		return nil, fmt.Errorf("controller: %s %s: %w", collection, obj.Key, client.ErrKeyQuarantined)
	}
	out := new(T)
	if err := json.Unmarshal(obj.Payload, out); err != nil {
		return nil, fmt.Errorf("controller: decode %s %s: %w", collection, obj.Key, err)
	}
	return out, nil
}

// Wrote says at which resource version the context's reconcile wrote an object of a
// collection. Its later reads see the write, and so does the key's next run, on whichever
// replica. An error says that this cannot be promised: return it from the reconciler.
func (c *Controller) Wrote(ctx context.Context, collection, resourceVersion string) error {
	r, ok := ctx.Value(runKey{}).(*run.Run)
	if !ok {
		return fmt.Errorf("controller: wrote %s: the context is not that of a reconcile", collection)
	}
	full, err := c.names.of(ctx, collection)
	if err == nil {
		err = r.Wrote(ctx, full, resourceVersion)
	}
	if err != nil {
		return fmt.Errorf("controller: wrote %s: %w", collection, err)
	}
	return nil
}
