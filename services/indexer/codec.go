package indexer

import (
	"errors"
	"runtime"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec we fall back to
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/deltaplane/deltaplane/internal/rpc"
)

// This file is where experimental API of grpc-go is used: the second codec
// interface and its buffers. copyCodec does the same without it.

var errNotMessage = errors.New("not a message")

// frame is a message that is protobuf already and may be sent any number of
// times. It goes to the transport as it is; stored payloads in it are not
// copied.
type frame struct{ parts mem.BufferSlice }

// decoder is a request that reads itself. It must not keep data.
type decoder interface{ decode(data []byte) error }

// codec is the proto codec that also knows frames, messages being built, and
// requests that read themselves. It keeps the name "proto", so stock clients
// decode what it sends.
//
// The server's connections may write a piece of [rpc.LentFrom] bytes or more
// after it was given back: all that long which is not stored is fresh memory,
// or is cut into shorter pieces, which are copied.
type codec struct {
	encoding.CodecV2
	// yields lets answers that are ready to be made go out by one system call, where
	// the connection does not see to that itself.
	yields bool
}

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	switch v := v.(type) {
	case *out:
		v.yields = c.yields
		return v.parts(), nil
	case *frame:
		return v.parts, nil
	case proto.Message:
		b, err := proto.Marshal(v)
		return mem.BufferSlice{mem.SliceBuffer(b)}, err
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

// messageHead is what gRPC puts before a message.
const messageHead = 5

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
	most := len(o.buf)
	if o.len() >= rpc.LentIn-messageHead {
		most = rpc.LentFrom - 1
	}
	at := o.from
	for _, c := range o.cuts {
		p.written(o.buf[at:c.at:c.at], most, 0)
		p.slices = append(p.slices, mem.SliceBuffer(c.data))
		at = c.at
	}
	at += p.written(o.buf[at:], most, most)
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

// written adds what the answer's buffer holds, which will be another one's, in
// pieces of at most so many bytes, until no more than a few are left.
func (p *pieces) written(b []byte, most, left int) (n int) {
	for len(b)-n > left {
		k := min(len(b)-n, most)
		p.slices = append(p.slices, mem.SliceBuffer(b[n:n+k:n+k]))
		n += k
	}
	return n
}

// outPool is an out whose buffer has been lent to the transport.
type outPool out

// Get implements mem.BufferPool; nobody calls it.
func (*outPool) Get(n int) *[]byte { b := make([]byte, n); return &b }

// Put implements mem.BufferPool. The connection's writer calls it when it has
// copied the message, but for long pieces of a large one. A writer of grpc-go
// flushes then, if nothing else is to be sent at the moment: answers that are
// ready to be made are made first, and go out by the same system call, which is
// a third of what a call costs.
func (p *outPool) Put(*[]byte) {
	wait := p.yields && gathers(p.size+len(p.buf))
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
// of what a connection is written to at once anyway.
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
func serverOptions(copying, yields bool) []grpc.ServerOption {
	if copying {
		return []grpc.ServerOption{grpc.ForceServerCodec(copyCodec{})}
	}
	return []grpc.ServerOption{grpc.ForceServerCodecV2(codec{encoding.GetCodecV2("proto"), yields})}
}

// requestBytes bounds the requests of unary methods, by full name. A page token may have 4 MiB.
func requestBytes() map[string]int {
	bounds := map[string]int{}
	for _, m := range serviceDesc.Methods {
		most := 1 << 20
		switch m.MethodName {
		case "List", "ByIndex", "Index":
			most = maxToken + 1<<20
		}
		bounds["/"+serviceDesc.ServiceName+"/"+m.MethodName] = most
	}
	return bounds
}
