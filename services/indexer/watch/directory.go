package watch

import (
	"slices"

	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/services/indexer/message"
)

// directory finds the groups that a change concerns, by what they ask for.
type directory struct {
	groups  map[string]*group
	views   map[string]message.Projection // by what makes them equal, so that those share a mask
	byValue map[string]map[string][]*group
	byScope map[string][]*group
	rest    []*group // concerned by every change
	byNeed  map[need][]*group
	strict  map[*group]struct{}
}

func newDirectory() directory {
	return directory{
		groups: map[string]*group{}, views: map[string]message.Projection{}, byValue: map[string]map[string][]*group{},
		byScope: map[string][]*group{}, byNeed: map[need][]*group{}, strict: map[*group]struct{}{},
	}
}

// file finds the place where changes look for the group.
func (h *directory) file(g *group) {
	h.groups[g.key] = g
	f := &g.filter
	if f.Strict {
		h.strict[g] = struct{}{}
	}
	for _, n := range f.needs {
		h.byNeed[n] = append(h.byNeed[n], g)
	}
	switch {
	case f.Index != "":
		if h.byValue[f.Index] == nil {
			h.byValue[f.Index] = map[string][]*group{}
		}
		for _, v := range f.Values {
			h.byValue[f.Index][v] = append(h.byValue[f.Index][v], g)
		}
	case f.Namespaces != nil:
		for _, ns := range f.Namespaces {
			h.byScope[ns] = append(h.byScope[ns], g)
		}
	default:
		h.rest = append(h.rest, g)
	}
}

func (h *directory) unfile(g *group) {
	if h.groups[g.key] != g { // it failed, and may have a successor
		return
	}
	delete(h.groups, g.key)
	delete(h.strict, g)
	without := func(list []*group) []*group {
		return slices.DeleteFunc(list, func(o *group) bool { return o == g })
	}
	f := &g.filter
	for _, n := range f.needs {
		if h.byNeed[n] = without(h.byNeed[n]); len(h.byNeed[n]) == 0 {
			delete(h.byNeed, n)
		}
	}
	switch {
	case f.Index != "":
		values := h.byValue[f.Index]
		for _, v := range f.Values {
			if values[v] = without(values[v]); len(values[v]) == 0 {
				delete(values, v)
			}
		}
		if len(values) == 0 {
			delete(h.byValue, f.Index)
		}
	case f.Namespaces != nil:
		for _, ns := range f.Namespaces {
			if h.byScope[ns] = without(h.byScope[ns]); len(h.byScope[ns]) == 0 {
				delete(h.byScope, ns)
			}
		}
	default:
		h.rest = without(h.rest)
	}
}

// concerned visits the groups that a change may mean something to, each once.
func (h *directory) concerned(snap *store.Snapshot, c *store.Change, visit func(*group)) {
	once := func(list []*group) {
		for _, g := range list {
			if g.stamp != c.N {
				g.stamp = c.N
				visit(g)
			}
		}
	}
	for index, groups := range h.byValue {
		for _, o := range [...]*store.Object{c.Old, c.New} {
			if o == nil {
				continue
			}
			values, _ := snap.Values(index, o) // one that the index fails on is under none
			for _, v := range values {
				once(groups[v])
			}
		}
	}
	if len(h.byScope) > 0 {
		once(h.byScope[store.Namespace(c.Key)])
	}
	once(h.rest)
}
