package controllerruntime

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	toolscache "k8s.io/client-go/tools/cache"
	crclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/attempt"
)

// Everywhere has every replica run a handler that is added to an informer, as controller-runtime
// does. Other handlers, those of controllers among them, run on the replica that leads the
// operator's feed: what they add to queues is for all replicas.
func Everywhere(h toolscache.ResourceEventHandler) toolscache.ResourceEventHandler {
	return everywhere{h}
}

type everywhere struct {
	toolscache.ResourceEventHandler
}

// registration is a handler of an informer.
type registration struct {
	informer *informer
	handler  toolscache.ResourceEventHandler
	all      bool          // every replica runs it
	resync   time.Duration // zero: that of each scope; below zero: never
	number   int           // among the handlers of the informer
	synced   chan struct{}
	gone     atomic.Bool        // it was removed
	cancel   context.CancelFunc // of follow, when it is not the leader's; guarded by the informer's mutex

	calls sync.Mutex // the handler is called by one goroutine at a time
}

func newRegistration(i *informer, h toolscache.ResourceEventHandler, o toolscache.HandlerOptions) *registration {
	r := &registration{informer: i, handler: h, synced: make(chan struct{})}
	if e, ok := h.(everywhere); ok {
		r.handler, r.all = e.ResourceEventHandler, true
	}
	if o.ResyncPeriod != nil {
		if r.resync = *o.ResyncPeriod; r.resync == 0 {
			r.resync = -1
		}
	}
	return r
}

// led reports whether the leader of the feed runs the handler.
func (r *registration) led() bool { return !r.all && r.informer.cache.lead != nil }

// HasSynced implements toolscache.ResourceEventHandlerRegistration: the handler has had every
// object that there was, be it on another replica.
func (r *registration) HasSynced() bool { return isClosed(r.checked()) }

// HasSyncedChecker implements toolscache.ResourceEventHandlerRegistration.
func (r *registration) HasSyncedChecker() toolscache.DoneChecker {
	return checker{fmt.Sprintf("handler %T of %s", r.handler, r.informer.gvk), r.checked()}
}

func (r *registration) checked() chan struct{} {
	if r.led() {
		return r.informer.synced
	}
	return r.synced
}

// periodOf is how often the handler receives everything of a scope again; zero for never.
func (r *registration) periodOf(s scope) time.Duration {
	switch {
	case r.resync < 0:
		return 0
	case r.resync == 0:
		return max(s.resync, 0)
	default:
		return r.resync
	}
}

// log says where a leader has to go on, and takes down how far it came.
type log interface {
	from(r *registration, scope int) client.Position
	// moved is called after the handler was; false: what follows must not be passed on.
	moved(r *registration, scope int, at client.Position, upper client.Revision) bool
}

// follow calls the handler until ctx ends. A leader's goes on where the log says. Rounds over every
// object are due whole periods after the given time.
func (r *registration) follow(ctx context.Context, f log, since time.Time) {
	var parts sync.WaitGroup
	var initial atomic.Int64
	for n, s := range r.informer.scopes {
		if s.empty() {
			continue
		}
		initial.Add(1)
		once := sync.OnceFunc(func() {
			if initial.Add(-1) == 0 && !r.led() && !isClosed(r.synced) {
				close(r.synced)
			}
		})
		parts.Go(func() { r.followScope(ctx, f, n, s, once) })
		if period := r.periodOf(s); period > 0 {
			parts.Go(func() {
				for attempt.Sleep(ctx, period-time.Since(since)%period) {
					r.again(ctx, s)
				}
			})
		}
	}
	if initial.Load() == 0 && !r.led() && !isClosed(r.synced) {
		close(r.synced) // no object can be in the scopes
	}
	parts.Wait()
}

func (r *registration) followScope(ctx context.Context, f log, n int, s scope, initial func()) {
	i := r.informer
	wait := attempt.Wait{First: time.Second, Most: 30 * time.Second, Low: 0.5, High: 1.5}
	var refused attempt.Report
	var at client.Position
	if f != nil {
		at = f.from(r, n)
	}
	for ctx.Err() == nil {
		d := delivery{r: r, s: s, initial: at == (client.Position{})}
		o := client.WatchOptions{
			Namespace: s.namespace, Labels: s.labels.String(), FieldSelector: s.fields.String(), View: i.view(),
			Previous: true, Resume: at, Log: i.cache.op.o.Log,
		}
		if d.initial {
			o.AtLeast = i.cache.op.least(ctx, i.collection)
		}
		err := errors.New("the watch ended")
		for e, failed := range i.cache.op.index.Watch(ctx, i.collection, o) {
			if failed != nil {
				err = failed
				break
			}
			wait.Reset()
			if ctx.Err() != nil || r.gone.Load() {
				return
			}
			upper := e.Upper
			if upper.IsZero() {
				upper = e.Revision
			}
			i.cache.op.feeds(i.collection, upper)
			d.take(e)
			switch {
			case e.Type == client.EventGap:
				at = client.Position{}
			case e.Position != (client.Position{}):
				at = e.Position
			}
			if f != nil && !f.moved(r, n, at, upper) {
				return
			}
			if e.Type == client.EventInitialEnd {
				initial()
			}
		}
		if ctx.Err() != nil {
			return
		}
		if refused.Due(err.Error()) {
			i.cache.op.report("watch", i.collection, err)
		}
		at = client.Position{} // it may be what is refused
		if !wait.Sleep(ctx, 0) {
			return
		}
	}
}

// again passes every object of a scope to the handler, as an update that changed nothing.
func (r *registration) again(ctx context.Context, s scope) {
	i := r.informer
	d := delivery{r: r, s: s}
	o := client.ListOptions{
		ReadOptions: client.ReadOptions{View: i.view(), AtLeast: i.cache.op.least(ctx, i.collection)},
		Namespace:   s.namespace, Labels: s.labels.String(), FieldSelector: s.fields.String(),
	}
	for object, err := range i.cache.op.index.All(ctx, i.collection, o) {
		if ctx.Err() != nil || r.gone.Load() {
			return
		}
		if err != nil {
			i.cache.op.report("resync", i.collection, err)
			return
		}
		d.call(func(h toolscache.ResourceEventHandler) {
			obj := d.object(object)
			h.OnUpdate(obj, obj)
		})
	}
}

// delivery calls a handler with the events of one watch.
type delivery struct {
	r       *registration
	s       scope
	initial bool // within the initial state
}

func (d *delivery) call(f func(toolscache.ResourceEventHandler)) {
	d.r.calls.Lock()
	defer d.r.calls.Unlock()
	f(d.r.handler)
}

// object decodes what the index sent. Handlers receive what cannot be read by its key alone: its
// reconcile meets the error.
func (d *delivery) object(o client.Object) crclient.Object {
	obj, err := d.r.informer.decode(o, d.s.transform)
	if err == nil {
		return obj
	}
	d.r.informer.cache.op.report("decode", o.Key, err)
	return d.r.informer.shell(o)
}

func (d *delivery) take(e client.Event) {
	switch e.Type {
	case client.EventGap:
		d.initial = true
	case client.EventInitialEnd:
		d.initial = false
	case client.EventAdded:
		d.call(func(h toolscache.ResourceEventHandler) { h.OnAdd(d.object(e.Object), d.initial) })
	case client.EventUpdated:
		d.call(func(h toolscache.ResourceEventHandler) {
			if e.Previous == nil { // nobody can compare: a predicate must not leave it out
				h.OnAdd(d.object(e.Object), d.initial)
				return
			}
			h.OnUpdate(d.object(*e.Previous), d.object(e.Object))
		})
	case client.EventDeleted:
		d.call(func(h toolscache.ResourceEventHandler) { d.deleted(h, e) })
	}
}

func (d *delivery) deleted(h toolscache.ResourceEventHandler, e client.Event) {
	switch {
	case e.DeleteReason == client.DeleteFiltered && e.Previous != nil:
		obj := d.object(*e.Previous)
		obj.SetResourceVersion(e.Object.ResourceVersion)
		h.OnDelete(obj)
	case e.FinalStateUnknown || len(e.Object.Payload) == 0:
		h.OnDelete(toolscache.DeletedFinalStateUnknown{Key: e.Object.Key, Obj: d.r.informer.shell(e.Object)})
	default:
		h.OnDelete(d.object(e.Object))
	}
}
