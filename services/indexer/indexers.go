package indexer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/definition"
)

// maxDefinitions is how many indexes one call may declare or remove.
const maxDefinitions = 16

// scope is what indexes are declared for: a resource of one cluster or of all.
type scope struct {
	cluster  string // or definition.EveryCluster
	resource string
	many     []*collection // that have the resource, by name
}

// String is the scope as a collection's name, "*/pods.v1".
func (x scope) String() string { return x.cluster + "/" + x.resource }

func (x scope) id() delta.Collection {
	id, _ := delta.ParseResource(x.cluster, x.resource) // the resource is a collection's, or was parsed
	return id
}

// scope reads the collection that a request declares indexes for.
func (s *Service) scope(name string) (scope, error) {
	rest, every := strings.CutPrefix(name, definition.EveryCluster+"/")
	if !every {
		c, err := s.find("collection", name)
		if err != nil {
			return scope{}, err
		}
		return scope{cluster: c.id.Cluster, resource: c.id.ResourceName(), many: []*collection{c}}, nil
	}
	t, err := s.everywhere(target{resource: rest})
	if errors.Is(err, errCollectionNotFound) || errors.Is(err, errNotSynced) {
		id, perr := delta.ParseResource(definition.EveryCluster, rest) // no cluster has it yet
		if perr != nil {
			return scope{}, err
		}
		return scope{cluster: id.Cluster, resource: id.ResourceName()}, nil
	}
	if err != nil {
		return scope{}, err
	}
	x := scope{cluster: definition.EveryCluster, resource: t.many[0].id.ResourceName(), many: t.many}
	for _, c := range t.many {
		if c.id.ResourceName() != x.resource {
			return scope{}, newFault(errCollectionAmbiguous, fmt.Sprintf("%.100q may be %s or %s", name, x.resource, c.id.ResourceName()), "collection", name)
		}
	}
	return x, nil
}

// ListIndexers returns the indexes of a collection.
func (s *server) ListIndexers(_ context.Context, req *indexv1.ListIndexersRequest) (*indexv1.ListIndexersResponse, error) {
	c, err := s.find("collection", req.GetCollection())
	if err != nil {
		return nil, err
	}
	snap := c.store.Snapshot()
	if err := c.synced(snap); err != nil {
		return nil, err
	}
	return &indexv1.ListIndexersResponse{Indexers: c.indexers(snap), Revision: revision(snap), Upper: upper(snap)}, nil
}

// indexers describes what a collection has in a snapshot, and what is declared
// for it beside, by name.
func (c *collection) indexers(snap *store.Snapshot) []*indexv1.Indexer {
	declared := *c.declared.Load()
	var list []*indexv1.Indexer
	for _, info := range snap.Indexers() {
		x := &indexv1.Indexer{
			Name: info.Name, Values: int64(info.Values), Entries: int64(info.Entries), Bytes: int64(info.Bytes), Errors: int64(info.Failed),
			State: indexv1.IndexerState_INDEXER_STATE_BUILDING,
		}
		if text, ok := builtInOf(c.id, info.Name); ok {
			x.Description, x.BuiltIn = text, true
		} else if d := find(declared, info.Name); d != nil {
			x.Description, x.Definition = d.Source(), d.Proto()
		} else {
			continue // removed a moment ago
		}
		if info.State == store.Ready {
			x.State, x.CompleteFrom = indexv1.IndexerState_INDEXER_STATE_READY, &deltav1.Revision{Epoch: info.CompleteFrom.Epoch, ResourceVersion: info.CompleteFrom.RV}
		}
		if info.Failed > 0 {
			_, keys := snap.UnindexedKeys(info.Name, namedUnindexed)
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

// AddIndexers declares indexes (S-06).
func (s *server) AddIndexers(ctx context.Context, req *indexv1.AddIndexersRequest) (*indexv1.AddIndexersResponse, error) {
	x, err := s.scope(req.GetCollection())
	if err != nil {
		return nil, err
	}
	wait, err := s.timeout("wait", req.GetWait())
	if err != nil {
		return nil, err
	}
	list, err := readDefinitions(x, req.GetIndexers())
	if err != nil {
		return nil, err
	}
	err = s.declarations.edit(ctx, x.resource, func(set definition.Set) (definition.Set, error) {
		return x.add(set, list, s.cfg.MaxIndexes)
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithDeadline(ctx, deadline(ctx, wait))
	defer cancel()
	for _, c := range x.many {
		s.settle(ctx, c, list)
	}
	resp := &indexv1.AddIndexersResponse{}
	var have []*indexv1.Indexer
	if len(x.many) > 0 {
		snap := x.many[0].store.Snapshot()
		have, resp.Revision, resp.Upper = x.many[0].indexers(snap), revision(snap), upper(snap)
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

// readDefinitions checks all that can be known of definitions without what else
// is declared.
func readDefinitions(x scope, in []*indexv1.IndexerDefinition) ([]definition.Definition, error) {
	if n := len(in); n == 0 || n > maxDefinitions {
		return nil, rpc.InvalidArgument("indexers", fmt.Sprintf("has %d entries, want 1 to %d", n, maxDefinitions))
	}
	var list []definition.Definition
	var errs []error
	for i, p := range in {
		field := fmt.Sprintf("indexers[%d]", i)
		d, err := definition.FromProto(field, p)
		if err == nil {
			_, err = definition.Compile(d)
			if err != nil { // only expressions can fail
				err = rpc.InvalidField(field+".cel", err)
			}
		}
		if _, ok := builtInOf(x.id(), d.Name); ok {
			err = errors.Join(err, rpc.InvalidArgument(field+".name", fmt.Sprintf("%q is a built-in index of %s", d.Name, x)))
		}
		if slices.ContainsFunc(list, func(o definition.Definition) bool { return o.Name == d.Name }) {
			err = errors.Join(err, rpc.InvalidArgument(field+".name", fmt.Sprintf("%q is there twice", d.Name)))
		}
		list, errs = append(list, d), append(errs, err)
	}
	return list, errors.Join(errs...)
}

// add puts definitions into a set, all or none; nil if they are in it.
func (x scope) add(set definition.Set, list []definition.Definition, most int) (definition.Set, error) {
	next := slices.Clone(set)
	for _, d := range list {
		there := false
		for _, o := range set {
			switch {
			case o.Name != d.Name || !o.In(x.cluster):
			case o.Cluster == x.cluster && o.Err == nil && o.Equal(d):
				there = true
			default:
				return nil, newFault(errIndexConflict, fmt.Sprintf("%q is declared for %s/%s as %s", d.Name, o.Cluster, x.resource, o.Source()),
					"index", d.Name, "collection", o.Cluster+"/"+x.resource)
			}
		}
		if !there {
			next = append(next, definition.Declared{Definition: d, Cluster: x.cluster})
		}
	}
	if len(next) == len(set) {
		return nil, nil
	}
	costs := map[string]uint64{}
	for _, cluster := range clusters(next) {
		if cluster == x.cluster || x.cluster == definition.EveryCluster {
			if err := x.afford(cluster, set, next, costs); err != nil {
				return nil, err
			}
		}
		n := 0
		for _, o := range next {
			if o.Cluster == cluster || o.Cluster == definition.EveryCluster {
				n++
			}
		}
		if n > most && (cluster == x.cluster || x.cluster == definition.EveryCluster) {
			return nil, newFault(errTooManyIndexes, fmt.Sprintf("%s/%s would have %d, at most %d", cluster, x.resource, n, most), "collection", cluster+"/"+x.resource)
		}
	}
	return next, nil
}

// clusters are those that a set names.
func clusters(set definition.Set) []string {
	var names []string
	for _, d := range set {
		names = append(names, d.Cluster)
	}
	return unique(names)
}

// settle waits until the collection has built the indexes, or ctx ends.
func (s *Service) settle(ctx context.Context, c *collection, list []definition.Definition) {
	for {
		snap := c.store.Snapshot()
		have := c.indexers(snap)
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
		case <-s.stopping:
			return
		case <-ctx.Done():
			return
		}
	}
}

// RemoveIndexers takes declared indexes away.
func (s *server) RemoveIndexers(ctx context.Context, req *indexv1.RemoveIndexersRequest) (*indexv1.RemoveIndexersResponse, error) {
	x, err := s.scope(req.GetCollection())
	if err != nil {
		return nil, err
	}
	names := unique(req.GetNames())
	if n := len(req.GetNames()); n == 0 || n > maxDefinitions {
		return nil, rpc.InvalidArgument("names", fmt.Sprintf("has %d entries, want 1 to %d", n, maxDefinitions))
	}
	for i, name := range req.GetNames() {
		if _, ok := builtInOf(x.id(), name); ok {
			return nil, rpc.InvalidArgument(fmt.Sprintf("names[%d]", i), fmt.Sprintf("%q is a built-in index", name))
		}
	}
	err = s.declarations.edit(ctx, x.resource, func(set definition.Set) (definition.Set, error) {
		next := definition.Set{}
		gone := 0
		for _, d := range set {
			if d.Cluster == x.cluster && slices.Contains(names, d.Name) {
				gone++
				continue
			}
			next = append(next, d)
		}
		if gone < len(names) {
			return nil, x.missing(set, names)
		}
		return next, nil
	})
	if err != nil {
		return nil, err
	}
	return &indexv1.RemoveIndexersResponse{}, nil
}

// missing names the first index that is not declared for the scope.
func (x scope) missing(set definition.Set, names []string) error {
	for _, name := range names {
		if slices.ContainsFunc(set, func(d definition.Declared) bool { return d.Cluster == x.cluster && d.Name == name }) {
			continue
		}
		text := fmt.Sprintf("%.100q is not declared for %s", name, x)
		i := slices.IndexFunc(set, func(d definition.Declared) bool { return d.Name == name && d.In(x.cluster) })
		if i >= 0 {
			text += fmt.Sprintf(", but for %s/%s", set[i].Cluster, x.resource)
		} else {
			var there []string
			for _, d := range set {
				if d.Cluster == x.cluster {
					there = append(there, d.Name)
				}
			}
			text += "; " + rpc.ThereAre(there, name)
		}
		return newFault(errIndexNotFound, text, "index", name, "collection", x.String())
	}
	return nil
}
