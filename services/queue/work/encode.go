package work

import (
	"encoding/binary"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/session"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

// Field numbers of WorkResponse and what it holds.
const (
	fieldAssign       = 2
	fieldSettled      = 3
	fieldAssignQueue  = 2
	fieldLeases       = 1
	fieldSettledID    = 1
	fieldSettledRows  = 2
	fieldSettledState = 3
	fieldSettledMore  = 4
)

// appendLease writes a compact lease as an element of Assign.leases.
func appendLease(b []byte, l *workqueue.Lease, now, ends int64) []byte {
	b = protowire.AppendTag(b, fieldLeases, protowire.BytesType)
	b = append(b, 0) // its length, which mostly takes one byte
	at := len(b)
	b = wire.AppendText(b, 2, l.Key)
	b = wire.AppendNumber(b, 3, int64(l.Token))
	b = wire.AppendNumber(b, 6, int64(l.Requeues))
	b = wire.AppendNumber(b, 7, int64(l.Attempt))
	b = wire.AppendNumber(b, 8, int64(workqueue.Priority(l.Level)))
	for i := range l.Barrier {
		b = wire.AppendMark(b, 11, &l.Barrier[i])
	}
	for _, t := range l.Traces {
		b = protowire.AppendString(protowire.AppendTag(b, 12, protowire.BytesType), t)
	}
	if len(l.State) > 0 {
		b = protowire.AppendBytes(protowire.AppendTag(b, 13, protowire.BytesType), l.State)
	}
	if l.Expect != nil {
		b = wire.AppendMessage(b, 14, wire.Expectations(l.Expect))
	}
	b = wire.AppendNumber(b, 15, l.Deadline)
	b = wire.AppendNumber(b, 16, l.Deadline-now)
	b = wire.AppendNumber(b, 17, l.AddedAt)
	b = wire.AppendNumber(b, 18, l.ReadyAt)
	b = wire.AppendNumber(b, 19, ends)
	n := len(b) - at
	if n < 0x80 {
		b[at-1] = byte(n)
		return b
	}
	var size [binary.MaxVarintLen64]byte
	head := protowire.AppendVarint(size[:0], uint64(n))
	b = append(b, head[1:]...) // makes room
	copy(b[at-1+len(head):], b[at:at+n])
	copy(b[at-1:], head)
	return b
}

// settledMessage writes a compact Settled.
func settledMessage(id uint64, out *session.SettleResults, partial bool) *wire.Encoded {
	tmp := wire.Scratch.Get().(*[]byte)
	b := wire.AppendNumber((*tmp)[:0], fieldSettledID, int64(id))
	for i, r := range out.Rows {
		if r.Requeues != 0 || r.ReadyAt != 0 {
			b = wire.AppendMessage(b, fieldSettledRows, out.Result(i, r, partial))
		}
	}
	b = protowire.AppendTag(b, fieldSettledState, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(len(out.Rows)))
	for i := range out.Rows {
		b = append(b, byte(out.Rows[i].Code(partial))) // all below 128
	}
	if out.More {
		b = wire.AppendNumber(b, fieldSettledMore, 1)
	}
	m := wire.Message(fieldSettled, nil, b)
	*tmp = b
	wire.Scratch.Put(tmp)
	return m
}
