package queue

import (
	"slices"
	"strconv"

	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

// plan is a settlement request, checked: its operations in order, and the
// queues they are for.
type plan struct {
	ops   []workqueue.Op
	parts []part
}

// part is what a request says of one queue.
type part struct {
	queue string
	at    []int // places of its operations; nil for all of them
}

// newPlan checks settlements.
func newPlan(c *wire.Checks, in []*queuev1.Settlement) *plan {
	p := &plan{}
	if !c.Count("settlements", len(in), 1, wire.MaxItems) {
		return p
	}
	p.ops = make([]workqueue.Op, 0, len(in))
	for i, st := range in {
		p.add(st.GetQueue(), c.Settlement("settlements["+strconv.Itoa(i)+"]", st))
	}
	return p
}

// add puts an operation on a queue behind the others.
func (p *plan) add(queue string, op workqueue.Op) {
	i := len(p.ops)
	p.ops = append(p.ops, op)
	switch {
	case i == 0:
		p.parts = append(p.parts, part{queue: queue})
		return
	case len(p.parts) == 1 && p.parts[0].queue == queue && p.parts[0].at == nil:
		return
	case p.parts[0].at == nil: // the second queue
		for n := range i {
			p.parts[0].at = append(p.parts[0].at, n)
		}
	}
	n := slices.IndexFunc(p.parts, func(pt part) bool { return pt.queue == queue })
	if n < 0 {
		n = len(p.parts)
		p.parts = append(p.parts, part{queue: queue})
	}
	p.parts[n].at = append(p.parts[n].at, i)
}

// place is where operation n of a part stands in the request.
func (pt *part) place(n int) int {
	if pt.at == nil {
		return n
	}
	return pt.at[n]
}

// sum tells plans apart that settle different leases or settle them otherwise.
func (p *plan) sum() uint64 {
	d := wire.Digest(len(p.ops))
	for i := range p.parts {
		pt := &p.parts[i]
		d.Text(pt.queue)
		d.Number(uint64(len(pt.at)))
		for _, at := range pt.at {
			d.Number(uint64(at)) //nolint:gosec // not negative
		}
	}
	for i := range p.ops {
		d.Op(&p.ops[i])
	}
	return uint64(d)
}

// lease is what operation i of a plan is about.
func (p *plan) lease(i int) leaseAt {
	at := leaseAt{i, p.parts[0].queue, p.ops[i].Key, p.ops[i].Token}
	for n := range p.parts {
		if slices.Contains(p.parts[n].at, i) {
			at.queue = p.parts[n].queue
		}
	}
	return at
}
