package client

import (
	"maps"
	"slices"

	"github.com/deltaplane/deltaplane/core/delta"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
)

// Revision is a state of one collection; the zero value is before everything.
type Revision = delta.Revision

// Barrier holds a revision per collection, by the collection's full name
// ("dev/pods.v1"). Nil is empty and may be read.
type Barrier map[string]Revision

// Raise makes b hold at least rev for the collection. A revision without an
// epoch is taken to be of the epoch b knows.
func (b Barrier) Raise(collection string, rev Revision) {
	old := b[collection]
	if rev.Epoch == 0 {
		rev.Epoch = old.Epoch
	}
	if old.Epoch == 0 {
		old.Epoch = rev.Epoch
	}
	if rev.Compare(old) >= 0 {
		b[collection] = rev
	}
}

// Merge raises b to everything in o.
func (b Barrier) Merge(o Barrier) {
	for collection, rev := range o {
		b.Raise(collection, rev)
	}
}

func (b Barrier) proto() []*deltav1.CollectionRevision {
	out := make([]*deltav1.CollectionRevision, 0, len(b))
	for _, collection := range slices.Sorted(maps.Keys(b)) {
		out = append(out, &deltav1.CollectionRevision{Collection: collection, Revision: toRevision(b[collection])})
	}
	return out
}

func fromBarrier(in []*deltav1.CollectionRevision) Barrier {
	if len(in) == 0 {
		return nil
	}
	b := make(Barrier, len(in))
	for _, cr := range in {
		b.Raise(cr.GetCollection(), fromRevision(cr.GetRevision()))
	}
	return b
}

func toRevision(r Revision) *deltav1.Revision {
	if r.IsZero() {
		return nil
	}
	return &deltav1.Revision{Epoch: r.Epoch, ResourceVersion: r.RV}
}

func fromRevision(r *deltav1.Revision) Revision {
	return Revision{Epoch: r.GetEpoch(), RV: r.GetResourceVersion()}
}
