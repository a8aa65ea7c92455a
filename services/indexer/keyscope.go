package indexer

import (
	"fmt"
	"strings"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// scopeIn is where keys live: as the log says or, where it is of an older
// version, as the objects show. It is empty for an empty collection of which
// nobody has said.
func (c *collection) scopeIn(snap *store.Snapshot) delta.Scope {
	if known := c.known.scope.Load(); known != nil {
		return *known
	}
	for o := range snap.All("") {
		if o.Namespace() != "" {
			return delta.Namespaced
		}
		return delta.ClusterScoped
	}
	return ""
}

// keyFits refuses a key that no object of the collection can have.
func (c *collection) keyFits(snap *store.Snapshot, field, key string) error {
	namespaced := strings.Contains(key, "/")
	switch scope := c.scopeIn(snap); {
	case namespaced && scope == delta.ClusterScoped:
		return rpc.InvalidArgument(field, fmt.Sprintf("%q names a namespace, and %s is cluster-scoped: want a name alone", key, c.name))
	case !namespaced && scope == delta.Namespaced:
		return rpc.InvalidArgument(field, fmt.Sprintf("%q names no namespace, and %s is namespaced: want namespace/name", key, c.name))
	}
	return nil
}

// namespaceFits refuses a namespace where there is none.
func (c *collection) namespaceFits(field, namespace string) error {
	if c.scopeIn(c.store.Snapshot()) == delta.ClusterScoped {
		return rpc.InvalidArgument(field, fmt.Sprintf("names namespace %.100q, and %s is cluster-scoped", namespace, c.name))
	}
	return nil
}

var scopes = map[delta.Scope]indexv1.KeyScope{
	delta.Namespaced: indexv1.KeyScope_KEY_SCOPE_NAMESPACED, delta.ClusterScoped: indexv1.KeyScope_KEY_SCOPE_CLUSTER,
}
