package wire

import (
	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// ProduceKind is the operation of a kind, whether it is limited, and whether the kind is known.
func ProduceKind(k queuev1.ProduceKind) (kind workqueue.OpKind, limited, known bool) {
	switch k {
	case queuev1.ProduceKind_PRODUCE_KIND_UNSPECIFIED, queuev1.ProduceKind_PRODUCE_KIND_ADD, queuev1.ProduceKind_PRODUCE_KIND_ADD_AFTER:
		return workqueue.OpAdd, false, true
	case queuev1.ProduceKind_PRODUCE_KIND_ADD_RATE_LIMITED:
		return workqueue.OpAdd, true, true
	case queuev1.ProduceKind_PRODUCE_KIND_FORGET:
		return workqueue.OpForget, false, true
	case queuev1.ProduceKind_PRODUCE_KIND_NUM_REQUEUES:
		return workqueue.OpRequeues, false, true
	}
	return 0, false, false
}

// Produced checks one operation.
func (c *Checks) Produced(field string, in *queuev1.ProduceOp) workqueue.Op {
	kind, limited, known := ProduceKind(in.GetKind())
	if !known {
		c.Add(field+".kind", "%d is not known", in.GetKind())
	}
	c.Key(field+".key", in.GetKey())
	c.Trace(field+".traceparent", in.GetTraceparent())
	op := workqueue.Op{
		Kind: kind, Key: in.GetKey(), Level: c.Level(field+".priority", in.GetPriority()), Limited: limited, Trace: in.GetTraceparent(),
		Delay: WholeMicros(c.Duration(field+".delay", in.GetDelay(), workqueue.MaxDelay)),
		Last:  in.GetPolicy() == queuev1.DelayPolicy_DELAY_POLICY_LAST,
	}
	if _, known := queuev1.DelayPolicy_name[int32(in.GetPolicy())]; !known {
		c.Add(field+".policy", "%d is not known", in.GetPolicy())
	}
	if op.Delay != 0 && in.GetKind() != queuev1.ProduceKind_PRODUCE_KIND_ADD_AFTER {
		c.Add(field+".delay", "only with PRODUCE_KIND_ADD_AFTER")
	}
	if b := c.Barrier(field+".barrier", in.GetBarrier()); len(b) > 0 {
		op.More = &workqueue.More{Barrier: b}
	}
	return op
}
