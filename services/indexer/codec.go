package indexer

import (
	"runtime"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec we fall back to
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// This file is where experimental API of grpc-go is used: the second codec
// interface and its buffers. copyCodec does the same without it.

// frame is a message that is protobuf already and may be sent any number of
// times. It goes to the transport as it is; stored payloads in it are not
// copied.
type frame struct{ parts mem.BufferSlice }

// decoder is a request that reads itself. It must not keep data.
type decoder interface{ decode(data []byte) error }

// codec is the proto codec that also knows frames, messages being built, and
// requests that read themselves. It keeps the name "proto", so stock clients
// decode what it sends.
type codec struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	switch v := v.(type) {
	case *out:
		return v.parts(), nil
	case *frame:
		return v.parts, nil
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

// pieces are the buffers of one message, kept to be used again: making some
// for each answer would cost as much as finding what is in it.
type pieces struct {
	list   mem.BufferSlice
	slices []mem.SliceBuffer
	view   []byte // of the last piece
	tail   []byte // holds the last piece when it would not be given back otherwise
}

// leastOwner is the least capacity of a buffer that mem.NewBuffer gives back.
const leastOwner = 1<<10 + 1

// parts ends the message. It is sent once; when the transport lets go of the
// last piece, o is given back. Pieces are let go of in order, so the last one
// owns the others and the buffer of all.
func (o *out) parts() mem.BufferSlice {
	p := &o.pieces
	p.list, p.slices = p.list[:0], p.slices[:0]
	if n := 2 * len(o.cuts); n > cap(p.slices) {
		p.slices = make([]mem.SliceBuffer, 0, n)
	}
	at := o.from
	for _, c := range o.cuts {
		if at < c.at {
			p.slices = append(p.slices, mem.SliceBuffer(o.buf[at:c.at:c.at]))
		}
		p.slices = append(p.slices, mem.SliceBuffer(c.data))
		at = c.at
	}
	for i := range p.slices {
		p.list = append(p.list, &p.slices[i])
	}
	if p.view = o.buf[at:]; len(p.view) == 0 && len(p.list) > 0 {
		list := p.list
		*p = pieces{} // without an owner o is left to the collector
		return list
	}
	if cap(p.view) < leastOwner { // the bytes between the pieces have filled the buffer
		if p.tail == nil {
			p.tail = make([]byte, 0, leastOwner)
		}
		p.tail = append(p.tail[:0], p.view...)
		p.view = p.tail
	}
	p.list = append(p.list, mem.NewBuffer(&p.view, (*outPool)(o)))
	return p.list
}

// outPool is an out whose buffer has been lent to the transport.
type outPool out

// Get implements mem.BufferPool; nobody calls it.
func (*outPool) Get(n int) *[]byte { b := make([]byte, n); return &b }

// Put implements mem.BufferPool. The connection's writer calls it when it has
// copied the message to its buffer, and flushes that if nothing else is to be
// sent at the moment. Answers that are ready to be made are made first, and go
// out by the same system call: it is a third of what a call costs.
func (p *outPool) Put(*[]byte) {
	wait := gathers(p.size + len(p.buf))
	(*out)(p).free()
	if wait {
		runtime.Gosched()
	}
}

// gathers reports whether an answer of n bytes waits for others. While watchers
// wait in line for their states, hundreds of writers may be ready to run: the
// answer would wait for them all.
func gathers(n int) bool { return n < gatherBelow && inLine.Load() == 0 }

// gatherBelow is the length below which an answer waits for others: a fraction
// of the writer's buffer, which is flushed when it is full anyway.
const gatherBelow = 16 << 10

// copyCodec does what codec does with the first codec interface: every answer
// is copied into one piece.
type copyCodec struct{}

// Name implements encoding.Codec.
func (copyCodec) Name() string { return "proto" }

// Marshal implements encoding.Codec.
func (copyCodec) Marshal(v any) ([]byte, error) {
	switch v := v.(type) {
	case *out:
		defer v.free()
		return v.bytes(), nil
	case *frame:
		return v.parts.Materialize(), nil
	case proto.Message:
		return proto.Marshal(v)
	}
	return nil, errNotMessage
}

// Unmarshal implements encoding.Codec.
func (copyCodec) Unmarshal(data []byte, v any) error {
	switch v := v.(type) {
	case decoder:
		return v.decode(data)
	case proto.Message:
		return proto.Unmarshal(data, v)
	}
	return errNotMessage
}

// serverOptions are what a gRPC server needs to send frames.
func serverOptions(copying bool) []grpc.ServerOption {
	if copying {
		return []grpc.ServerOption{grpc.ForceServerCodec(copyCodec{})}
	}
	return []grpc.ServerOption{grpc.ForceServerCodecV2(codec{encoding.GetCodecV2("proto")})}
}
