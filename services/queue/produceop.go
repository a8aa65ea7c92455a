package queue

import (
	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// produceKind is the operation of a kind, whether it is limited, and whether the kind is known.
func produceKind(k queuev1.ProduceKind) (kind workqueue.OpKind, limited, known bool) {
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

// produced checks one operation.
func (c *checks) produced(field string, in *queuev1.ProduceOp) workqueue.Op {
	kind, limited, known := produceKind(in.GetKind())
	if !known {
		c.add(field+".kind", "%d is not known", in.GetKind())
	}
	c.key(field+".key", in.GetKey())
	c.trace(field+".traceparent", in.GetTraceparent())
	op := workqueue.Op{
		Kind: kind, Key: in.GetKey(), Level: c.level(field+".priority", in.GetPriority()), Limited: limited, Trace: in.GetTraceparent(),
		Delay: wholeMicros(c.duration(field+".delay", in.GetDelay(), workqueue.MaxDelay)),
		Last:  in.GetPolicy() == queuev1.DelayPolicy_DELAY_POLICY_LAST,
	}
	if _, known := queuev1.DelayPolicy_name[int32(in.GetPolicy())]; !known {
		c.add(field+".policy", "%d is not known", in.GetPolicy())
	}
	if op.Delay != 0 && in.GetKind() != queuev1.ProduceKind_PRODUCE_KIND_ADD_AFTER {
		c.add(field+".delay", "only with PRODUCE_KIND_ADD_AFTER")
	}
	if b := c.barrier(field+".barrier", in.GetBarrier()); len(b) > 0 {
		op.More = &workqueue.More{Barrier: b}
	}
	return op
}
