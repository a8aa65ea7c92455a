package wire

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec we fall back to
	"google.golang.org/grpc/mem"

	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
	"github.com/deltaplane/deltaplane/services/indexer/message"
	"github.com/deltaplane/deltaplane/services/indexer/read"
)

// This file is where experimental API of grpc-go is used: the second codec
// interface and its buffers.

// decoder is a request that reads itself. It must not keep data.
type decoder interface{ decode(data []byte) error }

// codec is the proto codec that also knows frames, messages being built, and
// requests that read themselves. It keeps the name "proto", so stock clients
// decode what it sends.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	switch v := v.(type) {
	case *message.Writer:
		return v.Parts(), nil
	case *message.Frame:
		return v.Parts, nil
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	d, ok := v.(decoder)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	if len(data) == 1 {
		return d.decode(data[0].ReadOnlyData())
	}
	return d.decode(data.Materialize())
}

// ServerOptions adds to the options of a server what the IndexService needs of it.
func ServerOptions(o rpc.Options) rpc.Options {
	c := newCodec()
	o.Rules, o.MessageBytes, o.Unmarshal = fault.Rules, requestBytes(), c.Unmarshal
	o.Extra = append(o.Extra, grpc.ForceServerCodecV2(c))
	return o
}

// requestBytes bounds the requests of unary methods, by full name. A page token may have 4 MiB.
func requestBytes() map[string]int {
	bounds := map[string]int{}
	for _, m := range serviceDesc.Methods {
		most := 1 << 20
		switch m.MethodName {
		case "List", "ByIndex", "Index":
			most = read.MaxToken + 1<<20
		}
		bounds["/"+serviceDesc.ServiceName+"/"+m.MethodName] = most
	}
	return bounds
}
