package define

import (
	"fmt"

	"github.com/deltaplane/deltaplane/services/indexer/definition"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
)

// admit checks what the expressions of a cluster's collection may cost together
// for one object, if that is more with the next set than with the one before.
// costs remembers those of sources.
func (x Scope) admit(cluster string, before, next definition.Set, costs map[string]uint64) error {
	sum, dearest, most := x.sum(cluster, next, costs)
	if sum <= definition.MaxCostOfAll {
		return nil
	}
	if had, _, _ := x.sum(cluster, before, costs); sum <= had {
		return nil
	}
	return fault.New(fault.ErrTooManyIndexes, fmt.Sprintf("the expressions of %s/%s may cost %d for one object, at most %d; %q costs most, up to %d",
		cluster, x.Resource, sum, definition.MaxCostOfAll, dearest, most), "collection", cluster+"/"+x.Resource, "index", dearest)
}

// sum is what the expressions of a set may cost a cluster's collection, and which
// of them costs most.
func (x Scope) sum(cluster string, set definition.Set, costs map[string]uint64) (sum uint64, dearest string, most uint64) {
	counted := map[string]bool{}
	for _, d := range set {
		source := d.Source()
		if d.Err != nil || d.CEL == "" || counted[source] || d.Cluster != cluster && d.Cluster != definition.EveryCluster {
			continue
		}
		counted[source] = true
		cost, known := costs[source]
		if !known {
			if p, err := definition.Compile(d.Definition); err == nil { // else it is not evaluated
				cost = p.Cost()
			}
			costs[source] = cost
		}
		if sum += cost; cost > most {
			most, dearest = cost, d.Name
		}
	}
	return sum, dearest, most
}

// refuseTooCostly marks the expressions that may cost too much for one object
// together with those declared before them: such as were stored when there was no
// bound. list is in the order in which they were declared, which is that of the
// bucket, so that all replicas refuse the same ones.
func (c *Indexes) refuseTooCostly(list []declaration) {
	sum, counted := uint64(0), map[string]bool{}
	for i := range list {
		d := &list[i]
		if d.program == nil || !d.program.Evaluates() || counted[d.Source()] {
			continue
		}
		cost := d.program.Cost()
		if sum+cost > definition.MaxCostOfAll {
			d.program, d.err = nil, fault.New(fault.ErrTooManyIndexes, fmt.Sprintf("it may cost %d for one object, and the expressions that %s had before it may cost %d, at most %d together",
				cost, c.name, sum, definition.MaxCostOfAll), "collection", c.name, "index", d.Name)
			continue
		}
		sum += cost
		counted[d.Source()] = true
	}
}
