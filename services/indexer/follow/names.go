package follow

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
)

// Names finds collections by whole and short names. It is immutable: adding a
// collection makes another one.
type Names struct {
	All   []*Collection // by name
	known map[string][]*Collection
}

// with returns names that also have c.
func (n *Names) with(c *Collection) *Names {
	return namesOf(append(slices.Clone(n.All), c))
}

// without returns names that do not have c.
func (n *Names) without(c *Collection) *Names {
	return namesOf(slices.DeleteFunc(slices.Clone(n.All), func(x *Collection) bool { return x == c }))
}

func namesOf(all []*Collection) *Names {
	next := &Names{All: all, known: map[string][]*Collection{}}
	slices.SortFunc(next.All, func(a, b *Collection) int { return strings.Compare(a.Name, b.Name) })
	for _, c := range next.All {
		for _, alias := range aliases(c) {
			next.known[alias] = append(next.known[alias], c)
		}
	}
	return next
}

// aliases are the names that may stand for a collection: the version, the
// group and the cluster may each be left out.
func aliases(c *Collection) []string {
	id := c.ID
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

// Find returns the collection that a name stands for.
func (n *Names) Find(name string) (*Collection, error) {
	switch found := n.known[name]; len(found) {
	case 1:
		return found[0], nil
	case 0:
		return nil, fault.New(fault.ErrCollectionNotFound, fmt.Sprintf("%q", name), "collection", name)
	default:
		for _, c := range found {
			if c.Name == name {
				return c, nil
			}
		}
		list := make([]string, len(found))
		for i, c := range found {
			list[i] = c.Name
		}
		return nil, fault.New(fault.ErrCollectionAmbiguous, fmt.Sprintf("%q may be %s", name, strings.Join(list, " or ")), "collection", name)
	}
}

// Find returns the collection a request field names.
func (s *Collections) Find(field, name string) (*Collection, error) {
	if name == "" {
		return nil, rpc.InvalidArgument(field, "is required")
	}
	known := s.discovered.Load() // read first: what is found after it is not missed
	c, err := s.names.Load().Find(name)
	switch {
	case err != nil && strings.ContainsAny(name, " \t\n%"):
		return nil, rpc.InvalidArgument(field, fmt.Sprintf("%.100q is not a collection name", name))
	case errors.Is(err, fault.ErrCollectionNotFound) && !known:
		return nil, fault.New(fault.ErrNotSynced, "the logs are not listed yet", "collection", name)
	case errors.Is(err, fault.ErrCollectionNotFound):
		return nil, s.Unknown(fmt.Sprintf("%.100q", name), name)
	}
	return c, err
}

// Unknown says that there is no such collection, and which there are.
func (s *Collections) Unknown(what, name string) error {
	var names []string
	for _, c := range s.names.Load().All {
		names = append(names, c.Name)
	}
	return fault.New(fault.ErrCollectionNotFound, what+"; "+rpc.ThereAre(names, name), "collection", name)
}
