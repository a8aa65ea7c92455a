package informer

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/client"
)

// FactoryConfig is what informers of a factory have in common, where their own
// config says nothing. Its fields are those of [Config].
type FactoryConfig struct {
	Resync        time.Duration
	BookmarkEvery time.Duration
	CrashOnPanic  bool
	OnError       func(error)
	Log           *slog.Logger
}

// Factory has one informer per type, collection, scope and view, which all callers of
// [For] share: client-go's SharedInformerFactory. It is safe for concurrent use.
type Factory struct {
	src Source
	cfg FactoryConfig

	mu        sync.Mutex // guards what follows
	informers map[identity]member
	order     []identity
	started   map[identity]bool
	parts     sync.WaitGroup
}

type identity struct {
	typ        reflect.Type
	collection string
	scope      string
	view       client.View
	fields     string
}

// member is a *Shared of any type.
type member interface {
	Waitable
	Run(ctx context.Context) error
}

// NewFactory returns a factory of informers that read src.
func NewFactory(src Source, cfg FactoryConfig) *Factory {
	return &Factory{src: src, cfg: cfg, informers: map[identity]member{}, started: map[identity]bool{}}
}

// For returns the informer of a factory for a config. If there is one already it is
// that, with the indexers of cfg added; the rest of cfg is then as for the one who
// asked first. Collections are the same only under the same name. Informers that
// were asked for after a Start run with the next.
func For[T any](f *Factory, cfg Config[T]) (*Shared[T], error) {
	if cfg.Resync == 0 {
		cfg.Resync = f.cfg.Resync
	}
	if cfg.BookmarkEvery == 0 {
		cfg.BookmarkEvery = f.cfg.BookmarkEvery
	}
	cfg.CrashOnPanic = cfg.CrashOnPanic || f.cfg.CrashOnPanic
	if cfg.OnError == nil {
		cfg.OnError = f.cfg.OnError
	}
	if cfg.Log == nil {
		cfg.Log = f.cfg.Log
	}
	id := identity{reflect.TypeFor[T](), cfg.Collection, cfg.Scope.String(), max(cfg.View, client.ViewFull), fmt.Sprintf("%q", sorted(cfg.Fields))}
	f.mu.Lock()
	defer f.mu.Unlock()
	if there, ok := f.informers[id].(*Shared[T]); ok {
		return there, there.AddIndexers(cfg.Indexers)
	}
	i, err := New(f.src, cfg)
	if err != nil {
		return nil, err
	}
	f.informers[id] = i
	f.order = append(f.order, id)
	return i, nil
}

// Start runs every informer that is not running, until ctx ends. It does not wait.
func (f *Factory) Start(ctx context.Context) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range f.order {
		if !f.started[id] {
			f.started[id] = true
			i := f.informers[id]
			f.parts.Go(func() { _ = i.Run(ctx) }) // it runs for the first time: there is no error
		}
	}
}

// WaitForSync waits until the store of every informer that was started is synced,
// or fails with a *[NotSyncedError]. It says nothing of handlers: [WaitFor] waits for
// their registrations.
func (f *Factory) WaitForSync(ctx context.Context) error {
	f.mu.Lock()
	var all []Waitable
	for _, id := range f.order {
		if f.started[id] {
			all = append(all, f.informers[id])
		}
	}
	f.mu.Unlock()
	return WaitFor(ctx, all...)
}

// Wait returns when every informer that was started has stopped, and every callback
// has returned: client-go's Shutdown. The contexts of Start must have ended.
func (f *Factory) Wait() { f.parts.Wait() }
