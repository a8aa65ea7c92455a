package indexer

import (
	"errors"
	"slices"

	"github.com/deltaplane/deltaplane/core/store"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/follow"
)

// tolerate leaves out the error of an index that has no values for some objects,
// unless it is asked for.
func tolerate(err error, strict bool) error {
	if _, failed := errors.AsType[*store.FailedError](err); failed && !strict {
		return nil
	}
	return err
}

// unindexed are those of all indexes that the filter goes by.
func (f *filter) unindexed(c *follow.Collection, snap *store.Snapshot) (list []*indexv1.UnindexedObjects) {
	for i, index := range f.byField {
		if index == "" || index == f.index || slices.Contains(f.byField[:i], index) {
			continue
		}
		if u := c.Unindexed(snap, index); u != nil {
			list = append(list, u)
		}
	}
	if f.index != "" {
		if u := c.Unindexed(snap, f.index); u != nil {
			list = append(list, u)
		}
	}
	return list
}
