package indexer

import (
	"errors"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/deltaplane/deltaplane/core/store"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/follow"
)

const (
	// unindexedField is the number of UnindexedObjects in every answer.
	unindexedField = 20
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

// unindexed writes them.
func (o *out) unindexed(list []*indexv1.UnindexedObjects) {
	for _, u := range list {
		b, err := proto.Marshal(u)
		if err != nil { // a key that is not UTF-8
			b, _ = proto.Marshal(&indexv1.UnindexedObjects{Index: u.GetIndex(), Count: u.GetCount(), Collection: u.GetCollection()})
		}
		o.head(unindexedField, len(b))
		o.buf = append(o.buf, b...)
	}
}
