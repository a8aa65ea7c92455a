package produce

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/rpc"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

// Field numbers of ProduceResponse and Produced.
const (
	fieldProduced      = 2 // of ProduceResponse
	fieldProducedID    = 1
	fieldProducedState = 2
	fieldProducedMore  = 3
	fieldProducedErr   = 4
	fieldProducedGen   = 5
)

// answer writes the Produced of a batch.
func (b *produceBatch) answer(generation string) *wire.Encoded {
	tmp := wire.Scratch.Get().(*[]byte)
	out := wire.AppendNumber((*tmp)[:0], fieldProducedID, int64(b.id)) //nolint:gosec // the same bits on the wire
	out = wire.AppendText(out, fieldProducedGen, generation)
	out = b.outcome(out)
	m := wire.Message(fieldProduced, nil, out)
	*tmp = out
	wire.Scratch.Put(tmp)
	return m
}

func (b *produceBatch) outcome(out []byte) []byte {
	c := &b.call
	err := b.err
	if err == nil && c.Err != nil && c.Failed == nil && len(b.bad)+len(b.dropped) == 0 {
		err = c.Err
	}
	closed := 0
	if err == nil && c.Err == nil {
		for i := range c.Ops {
			if c.Status(i) == workqueue.Closed {
				closed++
			}
		}
		if closed > 0 && closed == b.n {
			err = wire.ErrClosed
		}
	}
	if err != nil {
		return wire.AppendMessage(out, fieldProducedErr, wire.AsProduceError(err))
	}
	out = protowire.AppendTag(out, fieldProducedState, protowire.BytesType)
	out = protowire.AppendVarint(out, uint64(b.n)) //nolint:gosec // not negative
	states := len(out)
	for range b.n {
		out = append(out, 0)
	}
	for _, at := range b.dropped {
		out[states+at] = byte(queuev1.AddStatus_ADD_STATUS_SHUT_DOWN)
	}
	for i := range c.Ops {
		at := b.place(i)
		if err := c.Failure(i); err != nil {
			out = appendDetail(out, at, 0, 0, err)
			continue
		}
		r := c.Reply(i)
		switch {
		case r.Status == workqueue.Closed:
			out = appendDetail(out, at, 0, 0, wire.ErrClosed)
			continue
		case r.Status == workqueue.BarrierFull:
			out = appendDetail(out, at, 0, 0, rpc.InvalidField(atOp(at)+".barrier", wire.ErrBarrierFull))
			continue
		case c.Ops[i].Kind == workqueue.OpAdd:
			out[states+at] = addStates[r.Status]
		}
		if r.ReadyAt != 0 || r.Requeues != 0 {
			out = appendDetail(out, at, r.ReadyAt, r.Requeues, nil)
		}
	}
	for _, bad := range b.bad {
		out = appendDetail(out, bad.at, 0, 0, bad.err)
	}
	return out
}

func atOp(i int) string { return wire.At("batch.ops", i) }

// addStates is addStatus for the hot path.
var addStates = func() (out [workqueue.Died + 1]byte) {
	for s, to := range wire.AddStatus {
		out[s] = byte(to)
	}
	return out
}()

func appendDetail(b []byte, at int, readyAt int64, requeues int, err error) []byte {
	d := &queuev1.ProduceDetail{Index: int32(at), ReadyAt: wire.Stamp(readyAt), NumRequeues: int64(requeues)} //nolint:gosec // below maxItems
	if err != nil {
		d.Error = wire.AsProduceError(err)
	}
	return wire.AppendMessage(b, fieldProducedMore, d)
}
