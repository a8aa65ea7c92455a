package queue

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// produceBatch is one ProduceBatch from its receipt to its answer.
type produceBatch struct {
	id      uint64
	queue   string
	n       int   // operations asked for
	call    call  // those that are done
	at      []int // their places, when some are not
	dropped []int // places of adds that a shut session did not make
	bad     []badOp
	err     error // why the whole batch is refused
	bytes   int
	after   int  // AddAfter without a delay: a retry to client-go all the same
	ready   bool // to be answered; guarded by the producer's mu
	known   collections
}

// badOp is an operation that was refused.
type badOp struct {
	at  int
	err error
}

func (b *produceBatch) reset() {
	clear(b.call.ops)
	clear(b.bad)
	*b = produceBatch{
		call: call{ops: b.call.ops[:0], done: b.call.done, reads: true},
		at:   b.at[:0], dropped: b.dropped[:0], bad: b.bad[:0], known: b.known,
	}
}

// place is where operation i of the call stands in the batch.
func (b *produceBatch) place(i int) int {
	if len(b.at) == 0 {
		return i
	}
	return b.at[i]
}

// sum tells batches apart that ask for different operations.
func (b *produceBatch) sum() uint64 {
	d := digest(b.n)
	d.text(b.queue)
	for i := range b.call.ops {
		d.number(uint64(b.place(i))) //nolint:gosec // not negative
		d.op(&b.call.ops[i])
	}
	for _, bad := range b.bad {
		d.number(uint64(bad.at)) //nolint:gosec // not negative
		d.text(bad.err.Error())
	}
	return uint64(d)
}

// dropAdds takes the adds out: their session was shut down.
func (b *produceBatch) dropAdds() {
	kept, places := b.call.ops[:0], make([]int, 0, len(b.call.ops))
	for i := range b.call.ops {
		if at := b.place(i); b.call.ops[i].Kind == workqueue.OpAdd {
			b.dropped = append(b.dropped, at)
		} else {
			kept, places = append(kept, b.call.ops[i]), append(places, at)
		}
	}
	b.call.ops, b.at = kept, places
}

// produceMessage is a ProduceRequest as the server reads it: a batch goes into
// the one it holds, which it loses when the message is something else.
type produceMessage struct {
	queuev1.ProduceRequest
	batch *produceBatch
}

const fieldBatch = 2 // of ProduceRequest

func (m *produceMessage) decode(data []byte) error {
	m.Kind = nil
	num, typ, n := protowire.ConsumeTag(data)
	if m.batch != nil && n > 0 && num == fieldBatch && typ == protowire.BytesType {
		if body, k := protowire.ConsumeBytes(data[n:]); k > 0 && n+k == len(data) {
			return m.batch.decode(body)
		}
	}
	m.batch = nil
	return proto.Unmarshal(data, &m.ProduceRequest)
}

// decode reads a batch. What is wrong with it is kept for its answer; only what
// cannot be read at all is an error.
func (b *produceBatch) decode(body []byte) error {
	b.bytes = len(body)
	for len(body) > 0 {
		num, typ, n := protowire.ConsumeTag(body)
		if n < 0 {
			return errWire
		}
		body = body[n:]
		switch {
		case num == 1 && typ == protowire.VarintType:
			if b.id, n = protowire.ConsumeVarint(body); n < 0 {
				return errWire
			}
		case num == 2 && typ == protowire.BytesType:
			v, k := protowire.ConsumeBytes(body)
			if n = k; n < 0 {
				return errWire
			}
			b.queue = string(v)
		case num == 3 && typ == protowire.BytesType:
			v, k := protowire.ConsumeBytes(body)
			if n = k; n < 0 {
				return errWire
			}
			if b.n++; b.n <= maxItems {
				if err := b.add(v); err != nil {
					return err
				}
			}
		default:
			if n = protowire.ConsumeFieldValue(num, typ, body); n < 0 {
				return errWire
			}
		}
		body = body[n:]
	}
	c := &checks{}
	c.queue("batch.queue", b.queue)
	if b.id == 0 {
		c.add("batch.request_id", "must be above zero")
	}
	c.count("batch.ops", b.n, 1, maxItems)
	b.err = c.err()
	return nil
}

// add reads one operation: the common fields here, any other through the
// generated code.
func (b *produceBatch) add(body []byte) error {
	op := workqueue.Op{Level: workqueue.Level(0)}
	kind := queuev1.ProduceKind_PRODUCE_KIND_ADD
	var marks []workqueue.Mark
	good := true
	for rest := body; len(rest) > 0 && good; {
		num, typ, n := protowire.ConsumeTag(rest)
		if n < 0 {
			return errWire
		}
		rest = rest[n:]
		switch {
		case num == 1 && typ == protowire.BytesType:
			v, k := protowire.ConsumeBytes(rest)
			if n = k; n < 0 {
				return errWire
			}
			op.Key = string(v)
		case num == 2 && typ == protowire.VarintType:
			v, k := protowire.ConsumeVarint(rest)
			if n = k; n < 0 {
				return errWire
			}
			kind = queuev1.ProduceKind(int32(v)) //nolint:gosec // an enum is an int32 on the wire
		case num == 3 && typ == protowire.VarintType:
			v, k := protowire.ConsumeVarint(rest)
			if n = k; n < 0 {
				return errWire
			}
			p := int(int32(v)) //nolint:gosec // an int32 on the wire
			good = p >= workqueue.MinPriority && p <= workqueue.MaxPriority
			op.Level = workqueue.Level(p)
		case num == 7 && typ == protowire.BytesType:
			v, k := protowire.ConsumeBytes(rest)
			if n = k; n < 0 {
				return errWire
			}
			op.Trace = string(v)
			good = goodTrace(op.Trace)
		case num == 6 && typ == protowire.BytesType:
			v, k := protowire.ConsumeBytes(rest)
			if n = k; n < 0 {
				return errWire
			}
			var m workqueue.Mark
			if m, good = readMark(v, b.known); good && len(marks) < maxMarks {
				marks = append(marks, m)
			} else {
				good = false
			}
		default:
			good = false
		}
		rest = rest[n:]
	}
	place := b.n - 1
	var known bool
	op.Kind, op.Limited, known = produceKind(kind)
	if good && known && kind != queuev1.ProduceKind_PRODUCE_KIND_ADD_AFTER && goodKey(op.Key) {
		if len(marks) > 0 {
			op.More = &workqueue.More{Barrier: barrierOf(marks)}
		}
		b.put(place, op)
		return nil
	}
	var in queuev1.ProduceOp
	if err := (proto.UnmarshalOptions{}).Unmarshal(body, &in); err != nil {
		if goodKey(op.Key) || op.Key == "" {
			return err
		}
		in = queuev1.ProduceOp{Key: op.Key} // not UTF-8: said of this operation alone
	}
	c := &checks{}
	op = c.produced(at("batch.ops", place), &in)
	if err := c.err(); err != nil {
		if len(b.bad) == 0 && len(b.at) == 0 { // from here on places differ
			for i := range place {
				b.at = append(b.at, i)
			}
		}
		b.bad = append(b.bad, badOp{place, err})
		return nil
	}
	if kind == queuev1.ProduceKind_PRODUCE_KIND_ADD_AFTER && op.Delay <= 0 {
		b.after++
	}
	b.put(place, op)
	return nil
}

// barrierOf is the barrier of marks, without a copy when they are in order.
func barrierOf(marks []workqueue.Mark) workqueue.Barrier {
	for i := 1; i < len(marks); i++ {
		if marks[i-1].Collection >= marks[i].Collection {
			return workqueue.NewBarrier(marks...)
		}
	}
	return marks
}

func (b *produceBatch) put(place int, op workqueue.Op) {
	if len(b.bad) > 0 {
		b.at = append(b.at, place)
	}
	b.call.ops = append(b.call.ops, op)
}

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
