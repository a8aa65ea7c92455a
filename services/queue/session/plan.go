package session

import (
	"slices"
	"strconv"

	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

// Plan is a settlement request, checked: its operations in order, and the
// queues they are for.
type Plan struct {
	Ops   []workqueue.Op
	Parts []Part
}

// Part is what a request says of one queue.
type Part struct {
	Queue string
	At    []int // places of its operations; nil for all of them
}

// NewPlan checks settlements.
func NewPlan(c *wire.Checks, in []*queuev1.Settlement) *Plan {
	p := &Plan{}
	if !c.Count("settlements", len(in), 1, wire.MaxItems) {
		return p
	}
	p.Ops = make([]workqueue.Op, 0, len(in))
	for i, st := range in {
		p.Add(st.GetQueue(), c.Settlement("settlements["+strconv.Itoa(i)+"]", st))
	}
	return p
}

// Add puts an operation on a queue behind the others.
func (p *Plan) Add(queue string, op workqueue.Op) {
	i := len(p.Ops)
	p.Ops = append(p.Ops, op)
	switch {
	case i == 0:
		p.Parts = append(p.Parts, Part{Queue: queue})
		return
	case len(p.Parts) == 1 && p.Parts[0].Queue == queue && p.Parts[0].At == nil:
		return
	case p.Parts[0].At == nil: // the second queue
		for n := range i {
			p.Parts[0].At = append(p.Parts[0].At, n)
		}
	}
	n := slices.IndexFunc(p.Parts, func(pt Part) bool { return pt.Queue == queue })
	if n < 0 {
		n = len(p.Parts)
		p.Parts = append(p.Parts, Part{Queue: queue})
	}
	p.Parts[n].At = append(p.Parts[n].At, i)
}

// Place is where operation n of a part stands in the request.
func (pt *Part) Place(n int) int {
	if pt.At == nil {
		return n
	}
	return pt.At[n]
}

// sum tells plans apart that settle different leases or settle them otherwise.
func (p *Plan) sum() uint64 {
	d := wire.Digest(len(p.Ops))
	for i := range p.Parts {
		pt := &p.Parts[i]
		d.Text(pt.Queue)
		d.Number(uint64(len(pt.At)))
		for _, at := range pt.At {
			d.Number(uint64(at)) //nolint:gosec // not negative
		}
	}
	for i := range p.Ops {
		d.Op(&p.Ops[i])
	}
	return uint64(d)
}

// Lease is what operation i of a plan is about.
func (p *Plan) Lease(i int) LeaseAt {
	at := LeaseAt{i, p.Parts[0].Queue, p.Ops[i].Key, p.Ops[i].Token}
	for n := range p.Parts {
		if slices.Contains(p.Parts[n].At, i) {
			at.queue = p.Parts[n].Queue
		}
	}
	return at
}
