package message

import (
	"runtime"

	"google.golang.org/grpc/mem"
)

// Frame is a message that is protobuf already and may be sent any number of
// times. It goes to the transport as it is; stored payloads in it are not
// copied.
type Frame struct{ Parts mem.BufferSlice }

// Parts ends the message and sends it once: stored bytes as they are, and between
// them views of the buffer of o. When the transport has freed the last of these, in
// whatever order, o goes back to its pool.
func (o *Writer) Parts() mem.BufferSlice {
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
type outPool Writer

// Get implements mem.BufferPool; nobody calls it.
func (*outPool) Get(n int) *[]byte { b := make([]byte, n); return &b }

// Put implements mem.BufferPool. As a rule the connection's writer calls it when it has
// copied the message, and then flushes unless more is to be sent. It yields itself before
// that when it has less than 1,000 bytes; a keys-only answer is a little longer. Without
// this yield each of them takes a system call, a third of what such a call costs.
func (p *outPool) Put(*[]byte) {
	short := p.size+len(p.buf) < yieldBelow
	(*Writer)(p).Free()
	if short {
		runtime.Gosched()
	}
}

// yieldBelow is the length below which an answer lets others be added before the flush:
// half of grpc-go's write buffer.
const yieldBelow = 16 << 10
