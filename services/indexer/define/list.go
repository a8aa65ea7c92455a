package define

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/definition"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
)

// IndexError turns the store's errors into ours. An index that is declared and
// not there yet is being built.
func (c *Indexes) IndexError(err error) error {
	if unknown, ok := errors.AsType[*store.UnknownIndexError](err); ok {
		return c.UnknownIndex(unknown.Index)
	}
	if building, ok := errors.AsType[*store.BuildingError](err); ok {
		return fault.New(fault.ErrIndexBuilding, fmt.Sprintf("%q in %s: %d of %d objects are in it", building.Index, c.name, building.Filed, building.Total),
			"index", building.Index, "collection", c.name)
	}
	if failed, ok := errors.AsType[*store.FailedError](err); ok {
		return fault.New(fault.ErrIndexFailed, failed.Error(), "index", failed.Index, "collection", c.name, "key", failed.Key)
	}
	return err
}

// UnknownIndex is the error of an index that the collection does not have: one that is
// declared is being built, or cannot be used.
func (c *Indexes) UnknownIndex(name string) error {
	x, pairs := find(*c.declared.Load(), name), []string{"index", name, "collection", c.name}
	switch {
	case x != nil && x.err != nil:
		return fault.New(fault.ErrIndexFailed, fmt.Sprintf("%q in %s cannot be used: %v", name, c.name, x.err), pairs...)
	case x != nil:
		return fault.New(fault.ErrIndexBuilding, fmt.Sprintf("%q in %s", name, c.name), pairs...)
	case !c.Declarations.complete():
		return fault.New(fault.ErrIndexBuilding, fmt.Sprintf("%q in %s: which indexes are declared is not known yet", name, c.name), pairs...)
	}
	var names []string
	for _, known := range c.Indexers(c.store.Snapshot()) {
		names = append(names, known.GetName())
	}
	return fault.New(fault.ErrIndexNotFound, fmt.Sprintf("%.100q in %s; %s", name, c.name, rpc.ThereAre(names, name)), pairs...)
}

// All describes everything that is declared, by resource, cluster and name.
func (d *Declarations) All() (map[string][]*indexv1.Indexer, error) {
	if !d.complete() {
		return nil, fault.New(fault.ErrDefinitionsAway, "which indexes are declared is not known yet")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	all := map[string][]*indexv1.Indexer{}
	for resource, e := range d.entries {
		if e.err != nil {
			return nil, fault.New(fault.ErrDefinitionsAway, e.err.Error(), "resource", resource)
		}
		for _, x := range e.list {
			i := &indexv1.Indexer{Name: x.Name, DeclaredFor: declaredFor(x.Declared, resource)}
			if x.Err == nil {
				i.Description, i.Definition = x.Source(), x.Proto()
			} else {
				i.State, i.LastError = indexv1.IndexerState_INDEXER_STATE_FAILED, x.Err.Error()
			}
			all[resource] = append(all[resource], i)
		}
		slices.SortFunc(all[resource], func(a, b *indexv1.Indexer) int {
			return cmp.Or(strings.Compare(a.GetDeclaredFor(), b.GetDeclaredFor()), strings.Compare(a.GetName(), b.GetName()))
		})
	}
	return all, nil
}

func declaredFor(d definition.Declared, resource string) string { return d.Cluster + "/" + resource }

// NamedUnindexed is how many of the objects that an index has no values for are named.
const NamedUnindexed = 10

// Indexers describes what a collection has in a snapshot, and what is declared
// for it beside, by name.
func (c *Indexes) Indexers(snap *store.Snapshot) []*indexv1.Indexer {
	declared := *c.declared.Load()
	var list []*indexv1.Indexer
	for _, info := range snap.Indexers() {
		x := &indexv1.Indexer{
			Name: info.Name, Values: int64(info.Values), Entries: int64(info.Entries), Bytes: int64(info.Bytes), Errors: int64(info.Failed),
			State: indexv1.IndexerState_INDEXER_STATE_BUILDING,
		}
		if text, ok := BuiltInOf(c.id, info.Name); ok {
			x.Description, x.BuiltIn = text, true
		} else if d := find(declared, info.Name); d != nil {
			x.Description, x.Definition, x.DeclaredFor = d.Source(), d.Proto(), declaredFor(d.Declared, c.id.ResourceName())
		} else {
			continue // removed a moment ago
		}
		if info.State == store.Ready {
			x.State, x.CompleteFrom = indexv1.IndexerState_INDEXER_STATE_READY, &deltav1.Revision{Epoch: info.CompleteFrom.Epoch, ResourceVersion: info.CompleteFrom.RV}
		}
		if info.Failed > 0 {
			_, keys := snap.UnindexedKeys(info.Name, NamedUnindexed)
			x.LastError, x.UnindexedKeys = info.Err.Error(), keys
		}
		list = append(list, x)
	}
	for _, d := range declared {
		if slices.ContainsFunc(list, func(x *indexv1.Indexer) bool { return x.GetName() == d.Name && !x.GetBuiltIn() }) {
			continue
		}
		x := &indexv1.Indexer{Name: d.Name, Description: d.Source(), Definition: d.Proto(), State: indexv1.IndexerState_INDEXER_STATE_BUILDING}
		if d.err != nil {
			x.State, x.LastError = indexv1.IndexerState_INDEXER_STATE_FAILED, d.err.Error()
		}
		list = append(list, x)
	}
	slices.SortStableFunc(list, func(a, b *indexv1.Indexer) int { return strings.Compare(a.GetName(), b.GetName()) })
	return list
}

// AwaitBuilt waits until the collection has built the indexes, ctx ends or stopping is closed.
func (c *Indexes) AwaitBuilt(ctx context.Context, list []definition.Definition, stopping <-chan struct{}) {
	for {
		snap := c.store.Snapshot()
		have := c.Indexers(snap)
		building := slices.ContainsFunc(list, func(d definition.Definition) bool {
			return slices.ContainsFunc(have, func(x *indexv1.Indexer) bool {
				return x.GetName() == d.Name && x.GetState() == indexv1.IndexerState_INDEXER_STATE_BUILDING
			})
		})
		if !building {
			return
		}
		select {
		case <-snap.Superseded():
		case <-stopping:
			return
		case <-ctx.Done():
			return
		}
	}
}

// Unindexed are the objects for which an index of a snapshot has no values; nil
// when there are none.
func (c *Indexes) Unindexed(snap *store.Snapshot, index string) *indexv1.UnindexedObjects {
	n, keys := snap.UnindexedKeys(index, NamedUnindexed)
	if n == 0 {
		return nil
	}
	return &indexv1.UnindexedObjects{Index: index, Count: int64(n), Keys: keys, Collection: c.name}
}
