package view

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/client"
)

// kept is what is kept of each object of a collection, by a watch.
type kept[T any] struct {
	collection string
	options    client.WatchOptions
	read       func(payload []byte) T

	mu     sync.Mutex
	all    map[string]T // guarded by mu
	coming map[string]T // guarded by mu: an initial state that is not complete; nil for none
	synced bool         // guarded by mu
	err    error        // guarded by mu
}

// run follows the collection until ctx ends.
func (k *kept[T]) run(ctx context.Context, index *client.Index) {
	o := k.options
	o.OnRetry = func(r client.WatchRetry) { k.fail(r.Err) }
	for ctx.Err() == nil {
		k.mu.Lock()
		k.coming = map[string]T{}
		k.mu.Unlock()
		for e, err := range index.Watch(ctx, k.collection, o) {
			if err != nil {
				k.fail(err)
				break
			}
			k.take(&e)
		}
		select {
		case <-ctx.Done():
		case <-time.After(againAfter):
		}
	}
}

func (k *kept[T]) fail(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.err = err
}

func (k *kept[T]) take(e *client.Event) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.err = nil
	into := k.all
	if k.coming != nil {
		into = k.coming
	}
	switch e.Type {
	case client.EventAdded, client.EventUpdated:
		if e.Object.Payload != nil {
			into[e.Object.Key] = k.read(e.Object.Payload)
		}
	case client.EventDeleted:
		delete(into, e.Object.Key)
	case client.EventGap:
		k.coming = map[string]T{}
	case client.EventInitialEnd:
		if k.coming != nil {
			k.all, k.coming = k.coming, nil
		}
		k.synced = true
	case client.EventBookmark:
	}
}

// state is what is kept now; the map is the caller's.
func (k *kept[T]) state() (all map[string]T, synced bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return maps.Clone(k.all), k.synced, k.err
}
