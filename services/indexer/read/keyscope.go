package read

import (
	"fmt"
	"strings"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/services/indexer/follow"
)

// keyFits refuses a key that no object of the collection can have.
func keyFits(c *follow.Collection, snap *store.Snapshot, field, key string) error {
	namespaced := strings.Contains(key, "/")
	switch scope := c.Scope(snap); {
	case namespaced && scope == delta.ClusterScoped:
		return rpc.InvalidArgument(field, fmt.Sprintf("%q names a namespace, and %s is cluster-scoped: want a name alone", key, c.Name))
	case !namespaced && scope == delta.Namespaced:
		return rpc.InvalidArgument(field, fmt.Sprintf("%q names no namespace, and %s is namespaced: want namespace/name", key, c.Name))
	}
	return nil
}
