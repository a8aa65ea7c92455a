package produce

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

// produceMessage is a ProduceRequest as the server reads it: a batch goes into
// the one it holds, which it loses when the message is something else.
type produceMessage struct {
	queuev1.ProduceRequest
	batch *produceBatch
}

const fieldBatch = 2 // of ProduceRequest

// Decode reads one message.
func (m *produceMessage) Decode(data []byte) error {
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
			return wire.ErrWire
		}
		body = body[n:]
		switch {
		case num == 1 && typ == protowire.VarintType:
			if b.id, n = protowire.ConsumeVarint(body); n < 0 {
				return wire.ErrWire
			}
		case num == 2 && typ == protowire.BytesType:
			v, k := protowire.ConsumeBytes(body)
			if n = k; n < 0 {
				return wire.ErrWire
			}
			b.queue = string(v)
		case num == 3 && typ == protowire.BytesType:
			v, k := protowire.ConsumeBytes(body)
			if n = k; n < 0 {
				return wire.ErrWire
			}
			if b.n++; b.n <= wire.MaxItems {
				if err := b.add(v); err != nil {
					return err
				}
			}
		default:
			if n = protowire.ConsumeFieldValue(num, typ, body); n < 0 {
				return wire.ErrWire
			}
		}
		body = body[n:]
	}
	c := &wire.Checks{}
	c.Queue("batch.queue", b.queue)
	if b.id == 0 {
		c.Add("batch.request_id", "must be above zero")
	}
	c.Count("batch.ops", b.n, 1, wire.MaxItems)
	b.err = c.Err()
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
			return wire.ErrWire
		}
		rest = rest[n:]
		switch {
		case num == 1 && typ == protowire.BytesType:
			v, k := protowire.ConsumeBytes(rest)
			if n = k; n < 0 {
				return wire.ErrWire
			}
			op.Key = string(v)
		case num == 2 && typ == protowire.VarintType:
			v, k := protowire.ConsumeVarint(rest)
			if n = k; n < 0 {
				return wire.ErrWire
			}
			kind = queuev1.ProduceKind(int32(v)) //nolint:gosec // an enum is an int32 on the wire
		case num == 3 && typ == protowire.VarintType:
			v, k := protowire.ConsumeVarint(rest)
			if n = k; n < 0 {
				return wire.ErrWire
			}
			p := int(int32(v)) //nolint:gosec // an int32 on the wire
			good = p >= workqueue.MinPriority && p <= workqueue.MaxPriority
			op.Level = workqueue.Level(p)
		case num == 7 && typ == protowire.BytesType:
			v, k := protowire.ConsumeBytes(rest)
			if n = k; n < 0 {
				return wire.ErrWire
			}
			op.Trace = string(v)
			good = wire.GoodTrace(op.Trace)
		case num == 6 && typ == protowire.BytesType:
			v, k := protowire.ConsumeBytes(rest)
			if n = k; n < 0 {
				return wire.ErrWire
			}
			var m workqueue.Mark
			if m, good = wire.ReadMark(v, b.known); good && len(marks) < wire.MaxMarks {
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
	op.Kind, op.Limited, known = wire.ProduceKind(kind)
	if good && known && kind != queuev1.ProduceKind_PRODUCE_KIND_ADD_AFTER && wire.GoodKey(op.Key) {
		if len(marks) > 0 {
			op.More = &workqueue.More{Barrier: barrierOf(marks)}
		}
		b.put(place, op)
		return nil
	}
	var in queuev1.ProduceOp
	if err := (proto.UnmarshalOptions{}).Unmarshal(body, &in); err != nil {
		if wire.GoodKey(op.Key) || op.Key == "" {
			return err
		}
		in = queuev1.ProduceOp{Key: op.Key} // not UTF-8: said of this operation alone
	}
	c := &wire.Checks{}
	op = c.Produced(wire.At("batch.ops", place), &in)
	if err := c.Err(); err != nil {
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
	b.call.Ops = append(b.call.Ops, op)
}
