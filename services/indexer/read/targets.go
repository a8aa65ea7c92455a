package read

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
	"github.com/deltaplane/deltaplane/services/indexer/filter"
	"github.com/deltaplane/deltaplane/services/indexer/follow"
)

// target is what a request reads: one collection, or that resource of several
// clusters.
type target struct {
	resource string               // as the request names it
	one      *follow.Collection   // without clusters
	many     []*follow.Collection // with clusters, in their order
	every    bool                 // the clusters are all that have the resource
	partial  bool                 // those that cannot be read are left out
}

// everyCluster stands for every cluster that has the resource.
const everyCluster = "*"

// targets finds what a request's collection and clusters name.
func (s *Reader) targets(resource string, clusters []string) (target, error) {
	t := target{resource: resource}
	if len(clusters) == 0 {
		var err error
		t.one, err = s.collections.Find("collection", resource)
		return t, err
	}
	switch n := len(clusters); {
	case strings.Contains(resource, "/"):
		return t, rpc.InvalidArgument("collection", fmt.Sprintf("%.100q names a cluster; with clusters it is the resource alone", resource))
	case n > filter.MaxClusters:
		return t, rpc.InvalidArgument("clusters", fmt.Sprintf("has %d entries, at most %d", n, filter.MaxClusters))
	case n == 1 && clusters[0] == everyCluster:
		return s.everywhere(t)
	}
	for i, cluster := range clusters {
		field := fmt.Sprintf("clusters[%d]", i)
		switch {
		case cluster == everyCluster:
			return t, rpc.InvalidArgument(field, "* stands for every cluster, so it stands alone")
		case cluster == "" || strings.ContainsAny(cluster, "/ %"):
			return t, rpc.InvalidArgument(field, fmt.Sprintf("%.100q is not a cluster", cluster))
		case resource == "":
			return t, rpc.InvalidArgument("collection", "is required")
		}
		c, err := s.collections.Find("collection", cluster+"/"+resource)
		if err != nil {
			return t, err
		}
		t.many = append(t.many, c)
	}
	slices.SortFunc(t.many, byCluster)
	t.many = slices.Compact(t.many)
	return t, nil
}

func byCluster(a, b *follow.Collection) int {
	return cmp.Or(strings.Compare(a.ID.Cluster, b.ID.Cluster), strings.Compare(a.Name, b.Name))
}

// EveryCluster are the collections of a resource in every cluster that has it, by
// cluster.
func (s *Reader) EveryCluster(resource string) ([]*follow.Collection, error) {
	t, err := s.everywhere(target{resource: resource})
	return t.many, err
}

func (s *Reader) everywhere(t target) (target, error) {
	t.every = true
	if t.resource == "" {
		return t, rpc.InvalidArgument("collection", "is required")
	}
	known := s.collections.Discovered() // read first: what is found after it is not missed
	names := s.collections.Names()
	last := ""
	for _, c := range names.All { // by name, so one cluster's stand together
		if c.ID.Cluster == last {
			continue
		}
		last = c.ID.Cluster
		c, err := names.Find(last + "/" + t.resource)
		switch {
		case errors.Is(err, fault.ErrCollectionNotFound):
		case err != nil:
			return t, err
		default:
			t.many = append(t.many, c)
		}
	}
	switch {
	case len(t.many) > 0:
		slices.SortFunc(t.many, byCluster)
		return t, nil
	case !known:
		return t, fault.New(fault.ErrNotSynced, "the logs are not listed yet", "collection", t.resource)
	}
	return t, s.collections.Unknown(fmt.Sprintf("%.100q in any cluster", t.resource), t.resource)
}

// skipping makes the target one that leaves out what cannot be read.
func (t *target) skipping(skip bool) error {
	if skip && t.one != nil {
		return rpc.InvalidArgument("skip_unsynced", "is for several clusters")
	}
	t.partial = skip
	return nil
}

// without names the collections that parts leave out, if that was asked for: of
// every cluster, some may have come since.
func (t *target) without(parts []part) (names []string) {
	if !t.partial {
		return nil
	}
	for _, c := range t.many {
		if !slices.ContainsFunc(parts, func(p part) bool { return p.c == c }) {
			names = append(names, c.Name)
		}
	}
	return names
}

// is reports whether parts are of what the target names.
func (t *target) is(parts []part) bool {
	switch {
	case t.one != nil:
		return len(parts) == 1 && parts[0].c == t.one
	case t.every, t.partial: // clusters may have come since, or have been left out
		return !slices.ContainsFunc(parts, func(p part) bool { return !slices.Contains(t.many, p.c) })
	}
	return slices.EqualFunc(parts, t.many, func(p part, c *follow.Collection) bool { return p.c == c })
}
