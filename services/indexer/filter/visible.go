package filter

import (
	"slices"

	"github.com/deltaplane/deltaplane/core/access"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/services/indexer/define"
)

// See leaves of the filter what is visible: it takes, counts and names nothing else.
func (f *Filter) See(scope access.Scope) {
	if scope.All {
		return
	}
	visible := scope.Namespaces
	if f.Namespaces != nil {
		visible = slices.DeleteFunc(slices.Clone(f.Namespaces), func(ns string) bool { return !scope.Sees(ns) })
	}
	f.limited, f.none = true, f.none || len(visible) == 0
	f.Namespaces = append([]string{}, visible...) // never nil, which is all of them
}

// Sees reports whether the filter takes objects of a namespace at all.
func (f *Filter) Sees(namespace string) bool {
	return !f.none && (f.Namespaces == nil || Contains(f.Namespaces, namespace))
}

// unindexed are the objects among those that are visible that an index has no values of: how many,
// and the first of their keys.
func (f *Filter) unindexed(snap *store.Snapshot, index string) (n int, keys []string) {
	for o := range snap.Unindexed(index).After("") {
		if !f.Sees(o.Namespace()) {
			continue
		}
		if n++; len(keys) < define.NamedUnindexed {
			keys = append(keys, o.Key())
		}
	}
	return n, keys
}
