package indexer

import (
	"runtime"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec we fall back to
	"google.golang.org/grpc/mem"
)

// This file is where experimental API of grpc-go is used: the second codec
// interface and its buffers.

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

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

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

// parts ends the message and sends it once: stored bytes as they are, and between
// them views of the buffer of o. When the transport has freed the last of these, in
// whatever order, o goes back to its pool.
func (o *out) parts() mem.BufferSlice {
	o.view = o.buf[o.from:]
	whole := mem.NewBuffer(&o.view, (*outPool)(o))
	if len(o.cuts) == 0 {
		return mem.BufferSlice{whole}
	}
	list, stored := make(mem.BufferSlice, 0, 2*len(o.cuts)+1), make([]mem.SliceBuffer, len(o.cuts))
	at := o.from
	for i, c := range o.cuts {
		stored[i] = c.data // one allocation for all
		list = append(list, whole.Slice(at-o.from, c.at-o.from), &stored[i])
		at = c.at
	}
	list = append(list, whole.Slice(at-o.from, len(o.view)))
	whole.Free()
	return list
}

// outPool is an out whose buffer has been lent to the transport.
type outPool out

// Get implements mem.BufferPool; nobody calls it.
func (*outPool) Get(n int) *[]byte { b := make([]byte, n); return &b }

// Put implements mem.BufferPool. As a rule the connection's writer calls it when it has
// copied the message, and then flushes unless more is to be sent. It yields itself before
// that when it has less than 1,000 bytes; a keys-only answer is a little longer. Without
// this yield each of them takes a system call, a third of what such a call costs.
func (p *outPool) Put(*[]byte) {
	short := p.size+len(p.buf) < yieldBelow
	(*out)(p).free()
	if short {
		runtime.Gosched()
	}
}

// yieldBelow is the length below which an answer lets others be added before the flush:
// half of grpc-go's write buffer.
const yieldBelow = 16 << 10

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
