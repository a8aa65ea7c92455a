package define

import (
	"errors"
	"fmt"
	"slices"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/definition"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
)

// MaxDefinitions is how many indexes one call may declare or remove.
const MaxDefinitions = 16

// Scope is what indexes are declared for: a resource of one cluster or of all.
type Scope struct {
	Cluster  string // or definition.EveryCluster
	Resource string
}

// String is the scope as a collection's name, "*/pods.v1".
func (x Scope) String() string { return x.Cluster + "/" + x.Resource }

// ID is the scope as a collection.
func (x Scope) ID() delta.Collection {
	id, _ := delta.ParseResource(x.Cluster, x.Resource) // the resource is a collection's, or was parsed
	return id
}

// ReadDefinitions checks all that can be known of definitions without what else
// is declared.
func ReadDefinitions(x Scope, in []*indexv1.IndexerDefinition) ([]definition.Definition, error) {
	if n := len(in); n == 0 || n > MaxDefinitions {
		return nil, rpc.InvalidArgument("indexers", fmt.Sprintf("has %d entries, want 1 to %d", n, MaxDefinitions))
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
		if _, ok := BuiltInOf(x.ID(), d.Name); ok {
			err = errors.Join(err, rpc.InvalidArgument(field+".name", fmt.Sprintf("%q is a built-in index of %s", d.Name, x)))
		}
		if slices.ContainsFunc(list, func(o definition.Definition) bool { return o.Name == d.Name }) {
			err = errors.Join(err, rpc.InvalidArgument(field+".name", fmt.Sprintf("%q is there twice", d.Name)))
		}
		list, errs = append(list, d), append(errs, err)
	}
	return list, errors.Join(errs...)
}

// Add puts definitions into a set, all or none; nil if they are in it.
func (x Scope) Add(set definition.Set, list []definition.Definition, most int) (definition.Set, error) {
	next := slices.Clone(set)
	for _, d := range list {
		there := false
		for _, o := range set {
			switch {
			case o.Name != d.Name || !o.In(x.Cluster):
			case o.Cluster == x.Cluster && o.Err == nil && o.Equal(d):
				there = true
			default:
				return nil, fault.New(fault.ErrIndexConflict, fmt.Sprintf("%q is declared for %s/%s as %s", d.Name, o.Cluster, x.Resource, o.Source()),
					"index", d.Name, "collection", o.Cluster+"/"+x.Resource)
			}
		}
		if !there {
			next = append(next, definition.Declared{Definition: d, Cluster: x.Cluster})
		}
	}
	if len(next) == len(set) {
		return nil, nil
	}
	costs := map[string]uint64{}
	for _, cluster := range clusters(next) {
		if cluster == x.Cluster || x.Cluster == definition.EveryCluster {
			if err := x.admit(cluster, set, next, costs); err != nil {
				return nil, err
			}
		}
		n := 0
		for _, o := range next {
			if o.Cluster == cluster || o.Cluster == definition.EveryCluster {
				n++
			}
		}
		if n > most && (cluster == x.Cluster || x.Cluster == definition.EveryCluster) {
			return nil, fault.New(fault.ErrTooManyIndexes, fmt.Sprintf("%s/%s would have %d, at most %d", cluster, x.Resource, n, most), "collection", cluster+"/"+x.Resource)
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
	slices.Sort(names)
	return slices.Compact(names)
}

// Remove takes the definitions of names, each there once, out of a set: all or none.
func (x Scope) Remove(set definition.Set, names []string) (definition.Set, error) {
	next := definition.Set{}
	gone := 0
	for _, d := range set {
		if d.Cluster == x.Cluster && slices.Contains(names, d.Name) {
			gone++
			continue
		}
		next = append(next, d)
	}
	if gone < len(names) {
		return nil, x.missing(set, names)
	}
	return next, nil
}

// missing names the first index that is not declared for the scope.
func (x Scope) missing(set definition.Set, names []string) error {
	for _, name := range names {
		if slices.ContainsFunc(set, func(d definition.Declared) bool { return d.Cluster == x.Cluster && d.Name == name }) {
			continue
		}
		text := fmt.Sprintf("%.100q is not declared for %s", name, x)
		i := slices.IndexFunc(set, func(d definition.Declared) bool { return d.Name == name && d.In(x.Cluster) })
		if i >= 0 {
			text += fmt.Sprintf(", but for %s/%s", set[i].Cluster, x.Resource)
		} else {
			var there []string
			for _, d := range set {
				if d.Cluster == x.Cluster {
					there = append(there, d.Name)
				}
			}
			text += "; " + rpc.ThereAre(there, name)
		}
		return fault.New(fault.ErrIndexNotFound, text, "index", name, "collection", x.String())
	}
	return nil
}
