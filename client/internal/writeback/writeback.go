// Package writeback refuses to write objects back whole of which an index has only a part.
package writeback

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/client"
)

// kept is how long an answer of the index is used. A reflector says every two seconds what its spec
// leaves out.
const kept = time.Second

// Index is *client.Index as far as it is needed.
type Index interface {
	Collections(ctx context.Context) ([]client.CollectionStatus, error)
}

// Resource is a resource of a cluster.
type Resource struct{ Cluster, Group, Version, Name string }

// Guard knows what an index leaves out. It is safe for concurrent use.
type Guard struct {
	index Index

	mu    sync.Mutex // guards what follows
	at    time.Time  // of the answer
	known []client.CollectionStatus
}

// New returns a guard that has asked nothing yet.
func New(index Index) *Guard { return &Guard{index: index} }

// Update returns nil when an object of a resource that was read from the index may be sent by PUT
// to a subresource, to the object itself if that is empty. Else the error wraps
// [client.ErrDroppedFields], or says why the index cannot be asked. Resources that the index does
// not have were read elsewhere.
func (g *Guard) Update(ctx context.Context, of Resource, subresource string) error {
	if subresource != "" && subresource != "status" { // another kind of object is sent
		return nil
	}
	all, err := g.collections(ctx)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(all, func(c client.CollectionStatus) bool {
		return Resource{c.Cluster, c.Group, c.Version, c.Resource} == of
	})
	if at < 0 {
		return nil
	}
	check := all[at].Dropped.WriteBack
	if subresource == "status" {
		check = all[at].Dropped.WriteBackStatus
	}
	if err := check(); err != nil {
		return fmt.Errorf("%s: %w; a patch or Apply sends only what it changes", all[at].Collection, err)
	}
	return nil
}

func (g *Guard) collections(ctx context.Context) ([]client.CollectionStatus, error) {
	g.mu.Lock()
	all, at := g.known, g.at
	g.mu.Unlock()
	if time.Since(at) < kept {
		return all, nil
	}
	now := time.Now()
	all, err := g.index.Collections(ctx)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if now.After(g.at) {
		g.at, g.known = now, all
	}
	return all, nil
}
