package wire

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/consistency"
	"github.com/deltaplane/deltaplane/services/indexer/define"
	"github.com/deltaplane/deltaplane/services/indexer/definition"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
	"github.com/deltaplane/deltaplane/services/indexer/filter"
	"github.com/deltaplane/deltaplane/services/indexer/follow"
	"github.com/deltaplane/deltaplane/services/indexer/read"
)

// scoped is a scope with the collections that have the resource, by name.
type scoped struct {
	define.Scope
	many []*follow.Collection
}

func (x *scoped) ids() []delta.Collection {
	ids := make([]delta.Collection, len(x.many))
	for i, c := range x.many {
		ids[i] = c.ID
	}
	return ids
}

// scope reads the collection that a request declares indexes for.
func (s *server) scope(name string) (x scoped, err error) {
	rest, every := strings.CutPrefix(name, definition.EveryCluster+"/")
	if !every {
		c, err := s.collections.Find("collection", name)
		if err != nil {
			return x, err
		}
		return scoped{define.Scope{Cluster: c.ID.Cluster, Resource: c.ID.ResourceName()}, []*follow.Collection{c}}, nil
	}
	many, err := s.reader.EveryCluster(rest)
	if errors.Is(err, fault.ErrCollectionNotFound) || errors.Is(err, fault.ErrNotSynced) {
		id, perr := delta.ParseResource(definition.EveryCluster, rest) // no cluster has it yet
		if perr != nil {
			return x, err
		}
		return scoped{Scope: define.Scope{Cluster: id.Cluster, Resource: id.ResourceName()}}, nil
	}
	if err != nil {
		return x, err
	}
	x = scoped{define.Scope{Cluster: definition.EveryCluster, Resource: many[0].ID.ResourceName()}, many}
	for _, c := range many {
		if c.ID.ResourceName() != x.Resource {
			return scoped{}, fault.New(fault.ErrCollectionAmbiguous, fmt.Sprintf("%.100q may be %s or %s", name, x.Resource, c.ID.ResourceName()), "collection", name)
		}
	}
	return x, nil
}

// ListIndexers returns the indexes of a collection, or all that is declared.
func (s *server) ListIndexers(ctx context.Context, req *indexv1.ListIndexersRequest) (*indexv1.ListIndexersResponse, error) {
	if req.GetCollection() == definition.EveryCluster {
		return s.listDeclared(ctx)
	}
	c, err := s.collections.Find("collection", req.GetCollection())
	if err != nil {
		return nil, err
	}
	if err := s.gate.Indexes(ctx, "list", c.ID.ResourceName()); err != nil {
		return nil, err
	}
	snap := c.Snapshot()
	if err := c.Synced(snap); err != nil {
		return nil, err
	}
	return &indexv1.ListIndexersResponse{Indexers: c.Indexes.Indexers(snap), Revision: read.Revision(snap), Upper: read.Upper(snap)}, nil
}

// listDeclared returns all that is declared, also for collections that no cluster has.
func (s *server) listDeclared(ctx context.Context) (*indexv1.ListIndexersResponse, error) {
	all, err := s.collections.Declarations().All()
	if err != nil {
		return nil, err
	}
	resp := &indexv1.ListIndexersResponse{}
	for _, resource := range slices.Sorted(maps.Keys(all)) {
		if err := s.gate.Indexes(ctx, "list", resource); err != nil {
			return nil, err
		}
		resp.Indexers = append(resp.Indexers, all[resource]...)
	}
	return resp, nil
}

// AddIndexers declares indexes.
func (s *server) AddIndexers(ctx context.Context, req *indexv1.AddIndexersRequest) (*indexv1.AddIndexersResponse, error) {
	x, err := s.scope(req.GetCollection())
	if err != nil {
		return nil, err
	}
	if err := s.gate.Indexes(ctx, "create", x.Resource, x.ids()...); err != nil {
		return nil, err
	}
	wait, err := s.waits.Timeout("wait", req.GetWait())
	if err != nil {
		return nil, err
	}
	list, err := define.ReadDefinitions(x.Scope, req.GetIndexers())
	if err != nil {
		return nil, err
	}
	err = s.collections.Declarations().Edit(ctx, x.Resource, func(set definition.Set) (definition.Set, error) {
		return x.Add(set, list, s.cfg.MaxIndexes)
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithDeadline(ctx, consistency.Deadline(ctx, wait))
	defer cancel()
	for _, c := range x.many {
		c.Indexes.AwaitBuilt(ctx, list, s.waits.Stopping)
	}
	resp := &indexv1.AddIndexersResponse{}
	var have []*indexv1.Indexer
	if len(x.many) > 0 {
		snap := x.many[0].Snapshot()
		have, resp.Revision, resp.Upper = x.many[0].Indexes.Indexers(snap), read.Revision(snap), read.Upper(snap)
	}
	for _, d := range list {
		i := slices.IndexFunc(have, func(x *indexv1.Indexer) bool { return x.GetName() == d.Name })
		if i < 0 { // no cluster has the resource yet, or another caller has removed the index meanwhile
			absent := &indexv1.Indexer{Name: d.Name, Description: d.Source(), Definition: d.Proto()}
			if len(x.many) > 0 {
				absent.State = indexv1.IndexerState_INDEXER_STATE_BUILDING
			}
			resp.Indexers = append(resp.Indexers, absent)
			continue
		}
		resp.Indexers = append(resp.Indexers, have[i])
	}
	return resp, nil
}

// RemoveIndexers takes declared indexes away.
func (s *server) RemoveIndexers(ctx context.Context, req *indexv1.RemoveIndexersRequest) (*indexv1.RemoveIndexersResponse, error) {
	x, err := s.scope(req.GetCollection())
	if err != nil {
		return nil, err
	}
	if err := s.gate.Indexes(ctx, "delete", x.Resource); err != nil {
		return nil, err
	}
	names := filter.Unique(req.GetNames())
	if n := len(req.GetNames()); n == 0 || n > define.MaxDefinitions {
		return nil, rpc.InvalidArgument("names", fmt.Sprintf("has %d entries, want 1 to %d", n, define.MaxDefinitions))
	}
	for i, name := range req.GetNames() {
		if _, ok := define.BuiltInOf(x.ID(), name); ok {
			return nil, rpc.InvalidArgument(fmt.Sprintf("names[%d]", i), fmt.Sprintf("%q is a built-in index", name))
		}
	}
	err = s.collections.Declarations().Edit(ctx, x.Resource, func(set definition.Set) (definition.Set, error) {
		return x.Remove(set, names)
	})
	if err != nil {
		return nil, err
	}
	return &indexv1.RemoveIndexersResponse{}, nil
}
