package filter

import (
	"context"
	"fmt"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/services/indexer/follow"
)

// CheckEvery is how many objects are looked at between two looks at whether
// the caller still waits.
const CheckEvery = 4096

// namespaceFits refuses a namespace where there is none.
func namespaceFits(c *follow.Collection, field, namespace string) error {
	if c.Scope(c.Snapshot()) == delta.ClusterScoped {
		return rpc.InvalidArgument(field, fmt.Sprintf("names namespace %.100q, and %s is cluster-scoped", namespace, c.Name))
	}
	return nil
}

// Faulty is how many objects the filter takes that could not be read.
func (f *Filter) Faulty(snap *store.Snapshot) (n int) {
	for o := range snap.Faulty().After("") {
		if f.Match(snap, o) {
			n++
		}
	}
	return n
}

// Count is how many objects of a snapshot the filter takes.
func (f *Filter) Count(ctx context.Context, snap *store.Snapshot) (int, error) {
	src, err := f.Source(snap)
	if err != nil || src.Exact {
		return src.Total, err
	}
	n, visited := 0, 0
	for o := range src.After("") {
		if visited++; visited%CheckEvery == 0 && ctx.Err() != nil {
			return n, ctx.Err()
		}
		if f.Match(snap, o) {
			n++
		}
	}
	return n, nil
}
