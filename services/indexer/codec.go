package indexer

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec we fall back to
	"google.golang.org/grpc/mem"
)

// frame is a response that is already protobuf. It goes to the transport as it
// is; stored payloads in it are not copied.
type frame struct{ parts mem.BufferSlice }

// codec is the proto codec that also knows frames. It keeps the name "proto",
// so stock clients decode what it sends. It is experimental API of grpc-go, and
// used in this file only.
type codec struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if f, ok := v.(*frame); ok {
		return f.parts, nil
	}
	return c.CodecV2.Marshal(v)
}

// serverOptions are what a gRPC server needs to send frames.
func serverOptions() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ForceServerCodecV2(codec{encoding.GetCodecV2("proto")})}
}
