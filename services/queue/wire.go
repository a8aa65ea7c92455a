package queue

import (
	"encoding/binary"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// The messages of which streams carry thousands a second are written and read
// here by hand: leases, settlements and their statuses. It is the same wire
// format, without an object per item. Everything else, and every rare field,
// goes through the generated code.

// codec is protobuf for generated messages, and for the few of ours.
type codec struct{ encoding.CodecV2 }

// wireOptions are what a server needs to speak with this codec, and buffers
// that suit large batches.
func wireOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(codec{encoding.GetCodecV2(grpcproto.Name)}),
		grpc.InitialWindowSize(1 << 20),
		grpc.InitialConnWindowSize(4 << 20),
		grpc.ReadBufferSize(64 << 10),
		grpc.WriteBufferSize(64 << 10),
	}
}

// requestBytes bounds the requests of the unary methods that carry at most a list of keys, by
// full name.
func requestBytes() map[string]int {
	bounds := map[string]int{}
	for _, m := range queuev1.QueueService_ServiceDesc.Methods {
		switch m.MethodName {
		case "Add", "AddAfter", "AddRateLimited", "Settle", "Extend", "SaveState", "Expect", "Observe":
		default:
			bounds["/"+queuev1.QueueService_ServiceDesc.ServiceName+"/"+m.MethodName] = 2 << 20
		}
	}
	return bounds
}

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if e, ok := v.(*encoded); ok {
		return mem.BufferSlice{mem.NewBuffer(e.buf, buffers)}, nil
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	d, ok := v.(interface{ decode(b []byte) error })
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	b := data.MaterializeToBuffer(buffers)
	defer b.Free()
	return d.decode(b.ReadOnlyData())
}

var buffers = mem.DefaultBufferPool()

// encoded is a message that is on the wire already. It can be sent once.
type encoded struct{ buf *[]byte }

// message wraps the body of a oneof field into a message.
func message(field protowire.Number, head, body []byte) *encoded {
	n := len(head) + len(body)
	buf := buffers.Get(protowire.SizeTag(field) + protowire.SizeBytes(n))
	b := (*buf)[:0]
	b = protowire.AppendTag(b, field, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(n))
	b = append(append(b, head...), body...)
	*buf = b
	return &encoded{buf}
}

// Field numbers of WorkResponse and what it holds.
const (
	fieldAssign       = 2
	fieldSettled      = 3
	fieldAssignQueue  = 2
	fieldLeases       = 1
	fieldSettledID    = 1
	fieldSettledRows  = 2
	fieldSettledState = 3
	fieldSettledMore  = 10
)

var scratch = sync.Pool{New: func() any { return new([]byte) }}

func appendNumber(b []byte, field protowire.Number, v int64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), uint64(v))
}

func appendText(b []byte, field protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), s)
}

func appendMessage(b []byte, field protowire.Number, m proto.Message) []byte {
	b = protowire.AppendTag(b, field, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(proto.Size(m)))
	b, _ = proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b, m) // its strings are the store's, checked when they came
	return b
}

// appendLease writes a compact lease as an element of Assign.leases.
func appendLease(b []byte, l *workqueue.Lease, now, ends int64) []byte {
	b = protowire.AppendTag(b, fieldLeases, protowire.BytesType)
	b = append(b, 0) // its length, which mostly takes one byte
	at := len(b)
	b = appendText(b, 2, l.Key)
	b = appendNumber(b, 3, int64(l.Token))
	b = appendNumber(b, 6, int64(l.Requeues))
	b = appendNumber(b, 7, int64(l.Attempt))
	b = appendNumber(b, 8, int64(workqueue.Priority(l.Level)))
	for i := range l.Barrier {
		b = appendMark(b, 11, &l.Barrier[i])
	}
	for _, t := range l.Traces {
		b = protowire.AppendString(protowire.AppendTag(b, 12, protowire.BytesType), t)
	}
	if len(l.State) > 0 {
		b = protowire.AppendBytes(protowire.AppendTag(b, 13, protowire.BytesType), l.State)
	}
	if l.Expect != nil {
		b = appendMessage(b, 14, expected(l.Expect))
	}
	b = appendNumber(b, 15, l.Deadline)
	b = appendNumber(b, 16, l.Deadline-now)
	b = appendNumber(b, 17, l.AddedAt)
	b = appendNumber(b, 18, l.ReadyAt)
	b = appendNumber(b, 19, ends)
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
func settledMessage(id uint64, out *settled, partial bool) *encoded {
	tmp := scratch.Get().(*[]byte)
	b := appendNumber((*tmp)[:0], fieldSettledID, int64(id))
	for i, r := range out.rows {
		if r.requeues != 0 || r.readyAt != 0 {
			b = appendMessage(b, fieldSettledRows, out.result(i, r, partial))
		}
	}
	b = protowire.AppendTag(b, fieldSettledState, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(len(out.rows)))
	for i := range out.rows {
		b = append(b, byte(out.rows[i].code(partial))) // all below 128
	}
	b = appendNumber(b, fieldSettledMore, int64(btoi(out.more)))
	m := message(fieldSettled, nil, b)
	*tmp = b
	scratch.Put(tmp)
	return m
}
