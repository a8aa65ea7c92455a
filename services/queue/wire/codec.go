package wire

import (
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// The messages of which streams carry thousands a second are written and read
// here by hand: leases, settlements and their statuses. It is the same wire
// format, without an object per item. Everything else, and every rare field,
// goes through the generated code.

// codec is protobuf for generated messages, and for the few of ours.
type codec struct{ encoding.CodecV2 }

// ServerOptions are what a server needs to speak with this codec, and buffers
// that suit large batches.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(codec{encoding.GetCodecV2(grpcproto.Name)}),
		grpc.InitialWindowSize(1 << 20),
		grpc.InitialConnWindowSize(4 << 20),
		grpc.ReadBufferSize(64 << 10),
		grpc.WriteBufferSize(64 << 10),
	}
}

// Services are the services of one queue server.
var Services = []*grpc.ServiceDesc{&queuev1.QueueService_ServiceDesc, &queuev1.QueueAdminService_ServiceDesc, &queuev1.BackoffService_ServiceDesc}

// RequestBytes bounds the requests of the unary methods that carry at most a list of keys, by
// full name.
func RequestBytes() map[string]int {
	bounds := map[string]int{}
	for _, s := range Services {
		for _, m := range s.Methods {
			switch method := "/" + s.ServiceName + "/" + m.MethodName; method {
			case queuev1.QueueService_Add_FullMethodName, queuev1.QueueService_AddAfter_FullMethodName, queuev1.QueueService_AddRateLimited_FullMethodName,
				queuev1.QueueService_Settle_FullMethodName, queuev1.QueueService_Extend_FullMethodName, queuev1.QueueService_SaveState_FullMethodName,
				queuev1.QueueService_Expect_FullMethodName, queuev1.QueueService_Observe_FullMethodName:
			default:
				bounds[method] = 2 << 20
			}
		}
	}
	return bounds
}

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if e, ok := v.(*Encoded); ok {
		return mem.BufferSlice{mem.NewBuffer(e.Buf, buffers)}, nil
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	d, ok := v.(interface{ Decode(b []byte) error })
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	b := data.MaterializeToBuffer(buffers)
	defer b.Free()
	return d.Decode(b.ReadOnlyData())
}

var buffers = mem.DefaultBufferPool()

// Encoded is a message that is on the wire already. It can be sent once.
type Encoded struct{ Buf *[]byte }

// Message wraps the body of a oneof field into a message.
func Message(field protowire.Number, head, body []byte) *Encoded {
	n := len(head) + len(body)
	buf := buffers.Get(protowire.SizeTag(field) + protowire.SizeBytes(n))
	b := (*buf)[:0]
	b = protowire.AppendTag(b, field, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(n))
	b = append(append(b, head...), body...)
	*buf = b
	return &Encoded{buf}
}

// Scratch are buffers for the bodies of messages, as *[]byte.
var Scratch = sync.Pool{New: func() any { return new([]byte) }}

// AppendNumber writes a field of a number that is not zero.
func AppendNumber(b []byte, field protowire.Number, v int64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), uint64(v))
}

// AppendText writes a field of a text that is not empty.
func AppendText(b []byte, field protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), s)
}

// AppendMessage writes a field of a generated message.
func AppendMessage(b []byte, field protowire.Number, m proto.Message) []byte {
	b = protowire.AppendTag(b, field, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(proto.Size(m)))
	b, _ = proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b, m) // its strings are the store's, checked when they came
	return b
}
