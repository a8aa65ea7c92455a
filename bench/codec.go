package main

import (
	"bytes"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec we fall back to
	"google.golang.org/grpc/mem"
)

// wire is a message in protobuf already. A client sends it as it is and gets
// an answer into it without decoding it, so that the driver costs little beside
// the server it measures.
type wire struct {
	data   []byte
	pieces mem.BufferSlice // sent instead of data, if there are any
}

// inPieces returns the message in buffers of its own: one for each of some parts
// of it, in their order, and those between.
func (w *wire) inPieces(parts ...[]byte) (*wire, error) {
	var p wire
	rest := w.data
	piece := func(data []byte) {
		if len(data) > 0 {
			p.pieces = append(p.pieces, mem.SliceBuffer(bytes.Clone(data)))
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

// near returns the message cut into the same pieces, which lie one behind the
// other in one buffer.
func (w *wire) near() *wire {
	var p wire
	rest := w.pieces.Materialize()
	for _, piece := range w.pieces {
		n := piece.Len()
		p.pieces = append(p.pieces, mem.SliceBuffer(rest[:n:n]))
		rest = rest[n:]
	}
	return &p
}

// codec is the proto codec that also knows wire. Servers of the bench use it
// too: the indexer's answers go the same way.
type codec struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if w, ok := v.(*wire); ok {
		if w.pieces != nil {
			return w.pieces, nil
		}
		return mem.BufferSlice{mem.SliceBuffer(w.data)}, nil
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal implements encoding.CodecV2. What a wire receives holds its first kilobyte only.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	w, ok := v.(*wire)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	n := min(data.Len(), cap(w.data))
	w.data = w.data[:0]
	for _, part := range data {
		bytes := part.ReadOnlyData()
		w.data = append(w.data, bytes[:min(len(bytes), n-len(w.data))]...)
	}
	return nil
}

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

func serverCodec() grpc.ServerOption { return grpc.ForceServerCodecV2(newCodec()) }

func clientCodec() grpc.CallOption { return grpc.ForceCodecV2(newCodec()) }
