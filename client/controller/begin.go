package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/attempt"
)

// names finds the full names of collections, by which barriers go.
type names struct {
	index   *client.Index
	cluster string

	mu   sync.Mutex
	full map[string]string
}

// of returns the full name of a collection that the index serves and has synced.
func (n *names) of(ctx context.Context, name string) (string, error) {
	n.mu.Lock()
	full, ok := n.full[name]
	n.mu.Unlock()
	if ok {
		return full, nil
	}
	full, err := n.ask(ctx, name)
	if err != nil {
		return "", err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.full == nil {
		n.full = map[string]string{}
	}
	n.full[name] = full
	return full, nil
}

// ask waits until the collection is synced, and returns its full name.
func (n *names) ask(ctx context.Context, name string) (string, error) {
	long := name
	if !strings.Contains(name, "/") {
		long = n.cluster + "/" + name
	}
	at, err := n.index.WaitFor(ctx, client.Barrier{long: {}}, 0)
	if err != nil {
		return "", fmt.Errorf("controller: collection %s: %w", name, err)
	}
	for full := range at {
		return full, nil
	}
	return "", fmt.Errorf("controller: collection %s: the index answered without a name", name)
}

func newWait() attempt.Wait {
	return attempt.Wait{First: 50 * time.Millisecond, Most: 2 * time.Second, Low: 0.5, High: 1}
}

// errMisuse is a fault of the program, which shows only once the services answer.
var errMisuse = errors.New("controller: misuse")

// scope checks what Options say of the objects that the controller is for.
func (c *Controller) scope(w *watched, some []client.Object) error {
	if w.role != roleFor || len(some) == 0 || strings.Contains(some[0].Key, "/") != c.o.ClusterScoped {
		return nil
	}
	return fmt.Errorf("%w: Options.ClusterScoped is %t, and %s has the object %s", errMisuse, c.o.ClusterScoped, w.collection, some[0].Key)
}

// hopeless reports whether an error is the answer to any repetition of the call.
func hopeless(err error) bool {
	if errors.Is(err, errMisuse) {
		return true
	}
	e, ok := errors.AsType[*client.Error](err)
	return ok && (e.Code == codes.InvalidArgument || e.Code == codes.Unimplemented || e.Reason == "COLLECTION_AMBIGUOUS")
}

// notService says what to look at when a server does not know a service.
func notService(err error, what string) error {
	if e, ok := errors.AsType[*client.Error](err); ok && e.Code == codes.Unimplemented {
		return fmt.Errorf("the server at this address is no %s service (the index's default port is 7441, the queue's 7442): %w", what, err)
	}
	return err
}

// begin finds the collections and makes the queues. It returns nil too when ctx ends.
func (c *Controller) begin(ctx context.Context) error {
	for _, w := range c.watches {
		if err := c.resolve(ctx, w); err != nil || ctx.Err() != nil {
			return err
		}
	}
	identify(c.watches)
	primary, err := delta.ParseCollection(c.watches[0].collection)
	if err != nil {
		return fmt.Errorf("controller: %w", err)
	}
	for _, w := range c.watches {
		w.ownedBy = ownerKind{group: primary.Group, kind: c.o.Kind, resource: primary.Resource, clusterScoped: c.o.ClusterScoped}
	}
	return c.keepTrying(ctx, "start", EventQueueFailed, func() (bool, error) {
		err := notService(c.configure(ctx), "queue")
		return hopeless(err), err
	})
}

// resolve waits until an index serves a collection.
func (c *Controller) resolve(ctx context.Context, w *watched) error {
	began := time.Now()
	kind := EventIndexFailed
	return c.keepTrying(ctx, "start", EventIndexFailed, func() (bool, error) {
		full, err := c.names.of(ctx, w.name)
		if err == nil {
			err = w.resolved(full, c.o)
		}
		if err == nil { // a selection that the index refuses is refused now, not by the watch
			o := w.list(w.view)
			o.Fields, o.PageSize = w.fields, 1
			var some client.Page
			if some, err = c.index.Page(ctx, full, o, ""); err == nil {
				err = c.scope(w, some.Objects)
			}
		}
		if err == nil {
			return true, nil
		}
		kind = EventIndexFailed
		switch {
		case errors.Is(err, client.ErrCollectionNotFound):
			kind = EventCollectionMissing
		case errors.Is(err, client.ErrNotSynced):
			kind = EventNotSynced
		}
		err = &eventError{kind, w.name, notService(err, "index")}
		return hopeless(err) || kind == EventCollectionMissing && time.Since(began) > c.o.StartTimeout, err
	})
}

// eventError is an error that is an event of another kind than is usual where it occurs.
type eventError struct {
	kind       EventKind
	collection string
	error
}

func (e *eventError) Unwrap() error { return e.error }

// sayAgain is how often what goes on failing is an event again.
const sayAgain = 10 * time.Second

// keepTrying repeats a call until it succeeds, fails once and for all, or ctx ends, which is
// no error. What fails is an event, and the state of a part.
func (c *Controller) keepTrying(ctx context.Context, part string, kind EventKind, call func() (final bool, err error)) error {
	wait := newWait()
	var last string
	var at time.Time
	for {
		final, err := call()
		if err == nil {
			c.health.set(part, nil)
			return nil
		}
		if ctx.Err() != nil {
			return nil
		}
		c.health.set(part, err)
		if err.Error() != last || time.Since(at) > sayAgain {
			last, at = err.Error(), time.Now()
			e := Event{Kind: kind, Err: err}
			if as, ok := errors.AsType[*eventError](err); ok {
				e.Kind, e.Collection = as.kind, as.collection
			}
			c.emit(e)
		}
		if final {
			return err
		}
		if !wait.Sleep(ctx, 0) {
			return nil
		}
	}
}
