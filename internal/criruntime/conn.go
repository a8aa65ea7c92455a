package criruntime

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// direct makes unary calls as gRPC does, without the wire: requests and answers are copied, errors
// become statuses, and faults befall them. Every method of the runtime ends with its context.
// Streams go over the connection.
type direct struct {
	stream  grpc.ClientConnInterface
	methods map[string]method
}

type method struct {
	server  any
	handler grpc.MethodHandler
}

var _ grpc.ServiceRegistrar = (*direct)(nil)

// RegisterService implements [grpc.ServiceRegistrar].
func (d *direct) RegisterService(desc *grpc.ServiceDesc, server any) {
	for _, m := range desc.Methods {
		d.methods["/"+desc.ServiceName+"/"+m.MethodName] = method{server, m.Handler}
	}
}

// Invoke implements [grpc.ClientConnInterface].
func (d *direct) Invoke(ctx context.Context, name string, request, reply any, _ ...grpc.CallOption) error {
	m, ok := d.methods[name]
	if !ok {
		return status.Errorf(codes.Unimplemented, "criruntime: unknown method %s", name)
	}
	if err := ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	answer, err := m.handler(m.server, ctx, func(into any) error { return copyMessage(into, request) }, nil)
	if err != nil {
		st, ok := status.FromError(err)
		if !ok {
			st = status.FromContextError(err)
		}
		return st.Err()
	}
	return copyMessage(reply, answer)
}

// NewStream implements [grpc.ClientConnInterface].
func (d *direct) NewStream(ctx context.Context, desc *grpc.StreamDesc, name string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return d.stream.NewStream(ctx, desc, name, opts...)
}

func copyMessage(into, from any) error {
	to, ok := into.(proto.Message)
	what, also := from.(proto.Message)
	if !ok || !also {
		return status.Error(codes.Internal, fmt.Sprintf("criruntime: %T or %T is no message", into, from))
	}
	proto.Reset(to)
	proto.Merge(to, what)
	return nil
}
