package clientgo

import (
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/deltaplane/deltaplane/client/informer"
)

// AddEventHandler adds a handler with the resync period of the informer, at any time.
func (i *Informer) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandlerWithOptions(h, cache.HandlerOptions{})
}

// AddEventHandlerWithResyncPeriod adds a handler, at any time; a period of zero means never.
func (i *Informer) AddEventHandlerWithResyncPeriod(h cache.ResourceEventHandler, resync time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandlerWithOptions(h, cache.HandlerOptions{ResyncPeriod: &resync})
}

// AddEventHandlerWithOptions adds a handler, at any time. The logger of the options is not used:
// InformerConfig.Log is. After a stop it fails with informer.ErrStopped.
func (i *Informer) AddEventHandlerWithOptions(h cache.ResourceEventHandler, o cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	if h == nil {
		return nil, fmt.Errorf("%s: no handler", i.shared.Name())
	}
	options := informer.HandlerOptions{Name: fmt.Sprintf("%T", h)}
	if o.ResyncPeriod != nil {
		if options.Resync = *o.ResyncPeriod; options.Resync <= 0 {
			options.Resync = informer.NoResync
		}
	}
	r, err := i.shared.AddHandler(handler{h}, options)
	if errors.Is(err, informer.ErrStopped) {
		return nil, fmt.Errorf("%w: handler %T was not added to shared informer because it has stopped already", err, h)
	}
	if err != nil {
		return nil, err
	}
	return registration{r}, nil
}

// RemoveEventHandler removes a handler, which receives nothing more. One that was removed before or
// belongs to another informer is left alone.
func (i *Informer) RemoveEventHandler(r cache.ResourceEventHandlerRegistration) error {
	ours, ok := r.(registration)
	if !ok {
		return fmt.Errorf("%s: a registration of type %T is not one of ours", i.shared.Name(), r)
	}
	i.shared.RemoveHandler(ours.Registration, informer.Drop)
	return nil
}

type registration struct{ *informer.Registration }

// HasSyncedChecker is done when the handler has finished every initial add.
func (r registration) HasSyncedChecker() cache.DoneChecker { return r.Registration }

// ShutdownChan is closed when the handler was removed and its last callback has returned: what
// cache.ShutDownEventHandler of client-go 0.37 waits for.
func (r registration) ShutdownChan() <-chan struct{} { return r.Stopped() }

// handler is a handler of client-go's.
type handler struct{ cache.ResourceEventHandler }

// OnDelete implements informer.Handler.
func (h handler) OnDelete(d informer.Deletion[any]) {
	switch {
	case d.FinalStateUnknown():
		h.ResourceEventHandler.OnDelete(cache.DeletedFinalStateUnknown{Key: d.Key, Obj: d.Object})
	case d.Reason == informer.Filtered:
		h.ResourceEventHandler.OnDelete(at(d.Object, d.ResourceVersion))
	default:
		h.ResourceEventHandler.OnDelete(d.Object)
	}
}

// at is a copy of an object with the resource version at which it left the scope, as an API server
// sends it.
func at(obj any, resourceVersion string) any {
	o, ok := obj.(runtime.Object)
	if !ok || resourceVersion == "" {
		return obj
	}
	o = o.DeepCopyObject()
	if m, err := meta.Accessor(o); err == nil {
		m.SetResourceVersion(resourceVersion)
	}
	return o
}
