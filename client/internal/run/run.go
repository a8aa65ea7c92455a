// Package run is what one run of a key must see: what caused it, and what it and the key's earlier
// runs read, wrote and deleted, on any replica.
package run

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/core/delta"
)

// Index is *client.Index as far as runs need it.
type Index interface {
	Find(ctx context.Context, collection, key string, o client.ReadOptions) (*client.Object, client.Bounds, error)
	WaitFor(ctx context.Context, b client.Barrier, timeout time.Duration) (client.Barrier, error)
}

// Config says whose run it is.
type Config struct {
	Item  client.Item
	Index Index
	// Save keeps a state with the key, for its next run.
	Save func(ctx context.Context, state []byte) error
	// OnGivenUp, where set, is called with a deletion that no index has shown for ten minutes.
	OnGivenUp func(Gone)
}

// Run is one run of a key. It is safe for concurrent use.
type Run struct {
	cfg Config

	mu     sync.Mutex // guards the rest
	least  client.Barrier
	read   client.Reading
	wrote  client.Barrier
	gone   []Gone // what was deleted, and no index is known to have seen
	forgot bool   // there was more than that, and the queue still keeps it
}

// New begins a run. It fails when the state that an earlier run left cannot be read.
func New(cfg Config) (*Run, error) {
	r := &Run{cfg: cfg, least: maps.Clone(cfg.Item.Barrier), read: client.Reading{}, wrote: client.Barrier{}}
	if r.least == nil {
		r.least = client.Barrier{}
	}
	if len(cfg.Item.State) > 0 {
		if err := json.Unmarshal(cfg.Item.State, &r.gone); err != nil {
			return nil, fmt.Errorf("state of %s: %w", cfg.Item.Key, err)
		}
	}
	return r, nil
}

// AtLeast is what a read of a collection must see.
func (r *Run) AtLeast(collection string) client.Revision {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.least[collection]
}

// Saw notes an answer of the index. The next read is not older.
func (r *Run) Saw(collection string, at client.Bounds) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.read.Raise(collection, at)
	r.least.Raise(collection, at.Revision)
}

// Wrote notes the resource version of something that was written.
func (r *Run) Wrote(ctx context.Context, collection, resourceVersion string) error {
	at, err := r.revision(ctx, collection, resourceVersion)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wrote.Raise(collection, at)
	r.least.Raise(collection, at)
	return nil
}

// revision is that of a version in a collection's present epoch: the queue and the index compare
// revisions of one epoch.
func (r *Run) revision(ctx context.Context, collection, version string) (client.Revision, error) {
	rv, err := delta.ParseRV(version)
	if err != nil {
		return client.Revision{}, err
	}
	at := client.Revision{Epoch: r.AtLeast(collection).Epoch, RV: rv}
	if at.Epoch == 0 {
		now, err := r.cfg.Index.WaitFor(ctx, client.Barrier{collection: {}}, 0)
		if err != nil {
			return client.Revision{}, err
		}
		at.Epoch = now[collection].Epoch
	}
	return at, nil
}

// Results are what was read and written: also those of a run that failed are for the next one.
func (r *Run) Results() (client.Reading, client.Barrier) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.read, r.wrote
}
