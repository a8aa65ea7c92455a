package clientgo

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"k8s.io/client-go/tools/cache"

	"github.com/deltaplane/deltaplane/client/informer"
)

var (
	// ErrReadOnly: the store of an informer follows the index and is not written by others.
	ErrReadOnly = errors.New("clientgo: the store of an informer can only be read")
	// ErrNotDeterministic: an index function returned different values for one object.
	ErrNotDeterministic = errors.New("clientgo: index function is not deterministic")
)

// indexer is the store of an informer as client-go's.
type indexer struct {
	store *informer.Store[any]
	log   *slog.Logger

	mu    sync.Mutex // guards funcs
	funcs cache.Indexers
}

func (x *indexer) AddIndexers(fns cache.Indexers) error {
	checked := make(map[string]informer.IndexFunc[any], len(fns))
	for name, fn := range fns {
		checked[name] = x.check(name, fn)
	}
	if err := x.store.AddIndexers(checked); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	maps.Copy(x.funcs, fns)
	return nil
}

// check calls an index function twice: values that differ would be found now and then.
func (x *indexer) check(name string, fn cache.IndexFunc) informer.IndexFunc[any] {
	if fn == nil {
		return nil
	}
	var once sync.Once
	return func(obj any) ([]string, error) {
		values, err := fn(obj)
		if err != nil {
			return nil, err
		}
		values = slices.Clone(values)
		again, err := fn(obj)
		if err != nil {
			return nil, err
		}
		if !slices.Equal(values, again) && !slices.Equal(set(values), set(again)) {
			err := fmt.Errorf("%w: index %q has %q and then %q", ErrNotDeterministic, name, values, again)
			once.Do(func() { x.log.Error("index cannot be read", slog.String("index", name), slog.Any("error", err)) })
			return nil, err
		}
		return values, nil
	}
}

func set(values []string) []string { return slices.Compact(slices.Sorted(slices.Values(values))) }

func (x *indexer) GetIndexers() cache.Indexers {
	x.mu.Lock()
	defer x.mu.Unlock()
	return maps.Clone(x.funcs)
}

// List has no error: it is empty before the sync.
func (x *indexer) List() []any {
	all, _ := x.store.List() //nolint:errcheck // see above
	return all
}

func (x *indexer) ListKeys() []string {
	keys, _ := x.store.Keys() //nolint:errcheck // as List
	return keys
}

func (x *indexer) Get(obj any) (item any, exists bool, err error) {
	key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj)
	if err != nil {
		return nil, false, cache.KeyError{Obj: obj, Err: err}
	}
	return x.GetByKey(key)
}

func (x *indexer) GetByKey(key string) (item any, exists bool, err error) { return x.store.Get(key) }

func (x *indexer) Index(name string, obj any) ([]any, error) { return x.store.Index(name, obj) }

func (x *indexer) ByIndex(name, value string) ([]any, error) { return x.store.ByIndex(name, value) }

func (x *indexer) IndexKeys(name, value string) ([]string, error) {
	return x.store.IndexKeys(name, value)
}

// ListIndexFuncValues has no error, as List.
func (x *indexer) ListIndexFuncValues(name string) []string {
	values, _ := x.store.ListIndexFuncValues(name) //nolint:errcheck // see above
	return values
}

func (x *indexer) LastStoreSyncResourceVersion() string { return x.store.Revision().RV }

// Bookmark and Resync do nothing: the informer moves the store on.
func (x *indexer) Bookmark(string) {}
func (x *indexer) Resync() error   { return nil }

func (x *indexer) Add(any) error               { return ErrReadOnly }
func (x *indexer) Update(any) error            { return ErrReadOnly }
func (x *indexer) Delete(any) error            { return ErrReadOnly }
func (x *indexer) Replace([]any, string) error { return ErrReadOnly }
