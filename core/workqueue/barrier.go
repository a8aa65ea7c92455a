package workqueue

import (
	"cmp"
	"slices"
	"strings"

	"github.com/deltaplane/deltaplane/core/delta"
)

// Mark is the least revision of one collection that a worker must see. RV is a
// canonical decimal of any length. An epoch of zero means the current one: it
// compares by RV alone.
type Mark struct {
	Collection string
	Epoch      uint64
	RV         string
}

// Barrier is one mark per collection, sorted by collection. Barriers are never
// changed in place.
type Barrier []Mark

func compare(a, b Mark) int {
	if a.Epoch != 0 && b.Epoch != 0 && a.Epoch != b.Epoch {
		return cmp.Compare(a.Epoch, b.Epoch)
	}
	return delta.Compare(a.RV, b.RV)
}

// NewBarrier sorts marks and keeps the greatest of each collection.
func NewBarrier(marks ...Mark) Barrier { return Barrier(nil).Merge(marks) }

// Merge is the union of both; the greater revision wins per collection.
func (b Barrier) Merge(marks []Mark) Barrier {
	if len(marks) == 0 {
		return b
	}
	out := slices.Clone(b)
	for _, m := range marks {
		i, found := slices.BinarySearchFunc(out, m.Collection, byCollection)
		switch {
		case !found:
			out = slices.Insert(out, i, m)
		case compare(m, out[i]) > 0:
			m.Epoch = cmp.Or(m.Epoch, out[i].Epoch)
			out[i] = m
		}
	}
	return out
}

// Above is what of b lies above the revisions read: what a worker that read
// there still has to see.
func (b Barrier) Above(read []Mark) Barrier {
	if len(b) == 0 || len(read) == 0 {
		return b
	}
	var out Barrier
	for _, m := range b {
		i := slices.IndexFunc(read, func(r Mark) bool { return r.Collection == m.Collection })
		if i < 0 || compare(m, read[i]) > 0 {
			out = append(out, m)
		}
	}
	return out
}

func byCollection(m Mark, c string) int { return strings.Compare(m.Collection, c) }
