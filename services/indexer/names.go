package indexer

import (
	"fmt"
	"slices"
	"strings"
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
		return nil, newFault(errCollectionNotFound, fmt.Sprintf("%q", name), "collection", name)
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
		return nil, newFault(errCollectionAmbiguous, fmt.Sprintf("%q may be %s", name, strings.Join(list, " or ")), "collection", name)
	}
}
