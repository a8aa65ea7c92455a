package filter

import (
	"errors"
	"slices"

	"github.com/deltaplane/deltaplane/core/store"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/follow"
)

// Tolerate leaves out the error of an index that has no values for some objects,
// unless it is asked for.
func Tolerate(err error, strict bool) error {
	if _, failed := errors.AsType[*store.FailedError](err); failed && !strict {
		return nil
	}
	return err
}

// Unindexed are those of all indexes that the filter goes by.
func (f *Filter) Unindexed(c *follow.Collection, snap *store.Snapshot) (list []*indexv1.UnindexedObjects) {
	for i, index := range f.ByField {
		if index == "" || index == f.Index || slices.Contains(f.ByField[:i], index) {
			continue
		}
		list = f.appendUnindexed(list, c, snap, index)
	}
	if f.Index != "" {
		list = f.appendUnindexed(list, c, snap, f.Index)
	}
	return list
}

func (f *Filter) appendUnindexed(list []*indexv1.UnindexedObjects, c *follow.Collection, snap *store.Snapshot, index string) []*indexv1.UnindexedObjects {
	u := c.Indexes.Unindexed(snap, index)
	if u != nil && f.limited {
		n, keys := f.unindexed(snap, index)
		if u = nil; n > 0 {
			u = &indexv1.UnindexedObjects{Index: index, Count: int64(n), Keys: keys, Collection: c.Name}
		}
	}
	if u == nil {
		return list
	}
	return append(list, u)
}
