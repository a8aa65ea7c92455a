package indexer

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
)

// names finds collections by whole and short names. It is immutable: adding a
// collection makes another one.
type names struct {
	all   []*collection // by name
	known map[string][]*collection
}

// with returns names that also have c.
func (n *names) with(c *collection) *names {
	return namesOf(append(slices.Clone(n.all), c))
}

// without returns names that do not have c.
func (n *names) without(c *collection) *names {
	return namesOf(slices.DeleteFunc(slices.Clone(n.all), func(x *collection) bool { return x == c }))
}

func namesOf(all []*collection) *names {
	next := &names{all: all, known: map[string][]*collection{}}
	slices.SortFunc(next.all, func(a, b *collection) int { return strings.Compare(a.name, b.name) })
	for _, c := range next.all {
		for _, alias := range aliases(c) {
			next.known[alias] = append(next.known[alias], c)
		}
	}
	return next
}

// aliases are the names that may stand for a collection: the version, the
// group and the cluster may each be left out.
func aliases(c *collection) []string {
	id := c.id
	short := []string{id.Resource, id.Resource + "." + id.Version}
	if id.Group != "" {
		short = append(short, id.Resource+"."+id.Group, id.Resource+"."+id.Version+"."+id.Group)
	}
	for _, name := range short {
		short = append(short, id.Cluster+"/"+name)
	}
	slices.Sort(short)
	return slices.Compact(short)
}

// find returns the collection that a name stands for.
func (n *names) find(name string) (*collection, error) {
	switch found := n.known[name]; len(found) {
	case 1:
		return found[0], nil
	case 0:
		return nil, fault.New(fault.ErrCollectionNotFound, fmt.Sprintf("%q", name), "collection", name)
	default:
		for _, c := range found {
			if c.name == name {
				return c, nil
			}
		}
		list := make([]string, len(found))
		for i, c := range found {
			list[i] = c.name
		}
		return nil, fault.New(fault.ErrCollectionAmbiguous, fmt.Sprintf("%q may be %s", name, strings.Join(list, " or ")), "collection", name)
	}
}

// find returns the collection a request field names.
func (s *collections) find(field, name string) (*collection, error) {
	if name == "" {
		return nil, rpc.InvalidArgument(field, "is required")
	}
	known := s.discovered.Load() // read first: what is found after it is not missed
	c, err := s.names.Load().find(name)
	switch {
	case err != nil && strings.ContainsAny(name, " \t\n%"):
		return nil, rpc.InvalidArgument(field, fmt.Sprintf("%.100q is not a collection name", name))
	case errors.Is(err, fault.ErrCollectionNotFound) && !known:
		return nil, fault.New(fault.ErrNotSynced, "the logs are not listed yet", "collection", name)
	case errors.Is(err, fault.ErrCollectionNotFound):
		return nil, s.unknown(fmt.Sprintf("%.100q", name), name)
	}
	return c, err
}

// unknown says that there is no such collection, and which there are.
func (s *collections) unknown(what, name string) error {
	var names []string
	for _, c := range s.names.Load().all {
		names = append(names, c.name)
	}
	return fault.New(fault.ErrCollectionNotFound, what+"; "+rpc.ThereAre(names, name), "collection", name)
}
