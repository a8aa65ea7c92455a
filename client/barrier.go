package client

import (
	"maps"
	"slices"

	"github.com/deltaplane/deltaplane/core/delta"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
)

// Revision is a state of one collection; the zero value is before everything.
type Revision = delta.Revision

// Bounds are those of an answer of the index. Every event at or below the revision
// is in it, and none above Upper: where Upper is at most the revision the answer is
// exactly the state at the revision. What is passed on as the least that somebody
// else may read is Upper.
type Bounds struct {
	Revision
	Upper Revision
}

// Exact reports whether the answer is the state at the revision.
func (b Bounds) Exact() bool { return b.Upper.Compare(b.Revision) <= 0 }

// String shows the revision, and how far the answer goes beyond it.
func (b Bounds) String() string {
	if b.Exact() {
		return b.Revision.String()
	}
	return b.Revision.String() + ".." + b.Upper.String()
}

// Reading is what was read of each collection, by its full name. Nil is empty and may
// be read.
type Reading map[string]Bounds

// Raise makes r hold at least the bounds for the collection.
func (r Reading) Raise(collection string, b Bounds) {
	at, upper := Barrier{}, Barrier{}
	if old, ok := r[collection]; ok {
		at[collection], upper[collection] = old.Revision, old.Upper
	}
	at.Raise(collection, b.Revision)
	upper.Raise(collection, b.Upper)
	r[collection] = Bounds{at[collection], upper[collection]}
}

// Revisions are what every event at or below was read.
func (r Reading) Revisions() Barrier {
	b := make(Barrier, len(r))
	for collection, at := range r {
		b[collection] = at.Revision
	}
	return b
}

// Uppers are what to wait for so as to read nothing older than this.
func (r Reading) Uppers() Barrier {
	b := make(Barrier, len(r))
	for collection, at := range r {
		b[collection] = at.Upper
	}
	return b
}

// fromBounds reads an answer's. One of a server that states no upper bound is taken
// for exact.
func fromBounds(revision, upper *deltav1.Revision) Bounds {
	b := Bounds{Revision: fromRevision(revision), Upper: fromRevision(upper)}
	if upper == nil {
		b.Upper = b.Revision
	}
	return b
}

func fromReading(in []*deltav1.CollectionRevision) Reading {
	r := make(Reading, len(in))
	for _, cr := range in {
		r.Raise(cr.GetCollection(), fromBounds(cr.GetRevision(), cr.GetUpper()))
	}
	return r
}

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
