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
		if u := c.Indexes.Unindexed(snap, index); u != nil {
			list = append(list, u)
		}
	}
	if f.Index != "" {
		if u := c.Indexes.Unindexed(snap, f.Index); u != nil {
			list = append(list, u)
		}
	}
	return list
}
