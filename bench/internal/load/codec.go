package load

import (
	"bytes"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that is wrapped
	"google.golang.org/grpc/mem"
)

// Wire is a message in protobuf already. A client sends it as it is and gets
// an answer into it without decoding it, so that the driver costs little beside
// the server it measures.
type Wire struct {
	Data   []byte
	Pieces mem.BufferSlice // sent instead of data, if there are any
}

// InPieces returns the message in buffers of its own: one for each of some parts
// of it, in their order, and those between.
func (w *Wire) InPieces(parts ...[]byte) (*Wire, error) {
	var p Wire
	rest := w.Data
	piece := func(data []byte) {
		if len(data) > 0 {
			p.Pieces = append(p.Pieces, mem.SliceBuffer(bytes.Clone(data)))
		}
	}
	for _, part := range parts {
		before, after, found := bytes.Cut(rest, part)
		if !found {
			return nil, fmt.Errorf("a part of %d bytes is not in the message", len(part))
		}
		piece(before)
		piece(part)
		rest = after
	}
	piece(rest)
	return &p, nil
}

// Near returns the message cut into the same pieces, which lie one behind the
// other in one buffer.
func (w *Wire) Near() *Wire {
	var p Wire
	rest := w.Pieces.Materialize()
	for _, piece := range w.Pieces {
		n := piece.Len()
		p.Pieces = append(p.Pieces, mem.SliceBuffer(rest[:n:n]))
		rest = rest[n:]
	}
	return &p
}

// codec is the proto codec that also knows wire. Servers of the bench use it
// too: the indexer's answers go the same way.
type codec struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if w, ok := v.(*Wire); ok {
		if w.Pieces != nil {
			return w.Pieces, nil
		}
		return mem.BufferSlice{mem.SliceBuffer(w.Data)}, nil
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal implements encoding.CodecV2. What a wire receives holds its first kilobyte only.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	w, ok := v.(*Wire)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	n := min(data.Len(), cap(w.Data))
	w.Data = w.Data[:0]
	for _, part := range data {
		bytes := part.ReadOnlyData()
		w.Data = append(w.Data, bytes[:min(len(bytes), n-len(w.Data))]...)
	}
	return nil
}

// NewCodec passes a Wire on as it is and encodes everything else as gRPC does.
func NewCodec() codec { return codec{encoding.GetCodecV2("proto")} }

func serverCodec() grpc.ServerOption { return grpc.ForceServerCodecV2(NewCodec()) }

// ClientCodec makes a call use NewCodec.
func ClientCodec() grpc.CallOption { return grpc.ForceCodecV2(NewCodec()) }
