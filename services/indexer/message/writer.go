package message

import (
	"bytes"
	"math/bits"
	"runtime"
	"sync"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/deltaplane/deltaplane/services/indexer/limit"
)

// This file writes the hot messages of index.proto by hand. Field numbers are
// those of the proto; the tests decode everything written here with the
// generated code.

// copyBelow is the payload length below which copying is cheaper than one more
// piece for the transport.
const copyBelow = 1 << 10

// Writer builds one message: bytes written here, and between them stored bytes
// that are only pointed at. As a response it goes to the transport by the codec,
// which gives it back to its pool when it has been sent.
type Writer struct {
	buf  []byte // begins with room for what may be put before the message
	cuts []cut
	size int     // of the stored bytes
	from int     // where the message begins in buf
	made int     // of the bytes pointed at, those that are not stored
	kept []byte  // the buffer of small messages, while buf is one of large
	lent *[]byte // that, as its pool has it

	Lease *limit.Lease // memory it is counted for
	view  []byte       // of buf: the message that is being sent
}

// cut says that data comes after the first at bytes of buf.
type cut struct {
	at   int
	data []byte
}

const (
	// headRoom is enough for the tag and the head of an answer on a Query stream.
	headRoom = 32
	// outLeast is what a new buffer holds, outMost what one may that is kept: those
	// above outSmall are kept apart, or a small answer that waits would hold a large
	// buffer.
	outLeast = 4 << 10
	outSmall = 16 << 10
	outMost  = 1 << 20
	// outTiny is what the buffer of a message holds that is not hot: the least that
	// mem.NewBuffer gives back to its pool.
	outTiny = headRoom + 1<<10 + 1
)

var outs = sync.Pool{New: func() any { return makeOut(outLeast) }}

// largeBufs are the buffers above outSmall.
var largeBufs = sync.Pool{New: func() any { b := make([]byte, 0, 4*outSmall); return &b }}

func makeOut(room int) *Writer {
	o := &Writer{buf: make([]byte, headRoom, room), from: headRoom, Lease: &limit.Lease{}}
	// An answer whose connection breaks may be left to the collector.
	runtime.AddCleanup(o, (*limit.Lease).End, o.Lease)
	return o
}

// NewSmall is New for a message that is not hot.
func NewSmall() *Writer { return makeOut(outTiny) }

// New returns a writer for one message, from a pool.
func New() *Writer {
	o := outs.Get().(*Writer)
	o.buf, o.cuts, o.size, o.from, o.made = o.buf[:headRoom], o.cuts[:0], 0, headRoom, 0
	return o
}

// room sees to it that n more bytes are not what makes a small buffer large.
func (o *Writer) room(n int) {
	if len(o.buf)+n > outSmall && o.lent == nil && cap(o.buf)-len(o.buf) < n {
		o.lent = largeBufs.Get().(*[]byte)
		o.kept, o.buf = o.buf, append((*o.lent)[:0], o.buf...)
	}
}

// Free gives o back. Nothing may refer to it.
func (o *Writer) Free() {
	o.Lease.End()
	if o.lent != nil {
		if cap(o.buf) <= outMost {
			*o.lent = o.buf
			largeBufs.Put(o.lent)
		}
		o.buf, o.kept, o.lent = o.kept, nil, nil
	}
	if c := cap(o.buf); c < outLeast || c > outSmall {
		return
	}
	clear(o.cuts) // the store's bytes are not to be kept alive
	outs.Put(o)
}

// Len is the length of the message so far.
func (o *Writer) Len() int { return len(o.buf) - o.from + o.size }

// Own is what the message takes beside stored bytes. A buffer that is used again
// may be larger than what is in it.
func (o *Writer) Own() int { return max(len(o.buf), min(cap(o.buf), outMost)) + cap(o.kept) + o.made }

// Mark is a place to rewind to.
func (o *Writer) Mark() [3]int { return [3]int{len(o.buf), len(o.cuts), o.size} }

// Rewind drops what was written behind a mark.
func (o *Writer) Rewind(mark [3]int) {
	o.buf, o.cuts, o.size = o.buf[:mark[0]], o.cuts[:mark[1]], mark[2]
}

// Bytes returns the message in one piece, a copy.
func (o *Writer) Bytes() []byte {
	b := make([]byte, 0, o.Len())
	at := o.from
	for _, c := range o.cuts {
		b = append(append(b, o.buf[at:c.at]...), c.data...)
		at = c.at
	}
	return append(b, o.buf[at:]...)
}

// Wrap makes the message a QueryResponse: the answer to a tag, as a field.
func (o *Writer) Wrap(tag uint64, field int) {
	var head [headRoom]byte
	b := head[:0]
	if tag != 0 {
		b = protowire.AppendVarint(append(b, 1<<3|varintType), tag)
	}
	b = append(b, byte(field<<3|bytesType))
	b = protowire.AppendVarint(b, uint64(o.Len()))
	o.from -= copy(o.buf[o.from-len(b):], b)
}

// Message appends a message that generated code writes.
func (o *Writer) Message(m proto.Message) error {
	buf, err := proto.MarshalOptions{}.MarshalAppend(o.buf, m)
	if err == nil {
		o.buf = buf
	}
	return err
}

// Frame ends the message and gives o back.
func (o *Writer) Frame() *Frame {
	defer o.Free()
	if len(o.cuts) == 0 {
		return &Frame{Parts: mem.BufferSlice{mem.SliceBuffer(bytes.Clone(o.buf[headRoom:]))}}
	}
	head := append(make([]byte, 0, len(o.buf)), o.buf...)
	parts := make(mem.BufferSlice, 0, 2*len(o.cuts)+1)
	at := headRoom
	for _, c := range o.cuts {
		if at < c.at {
			parts = append(parts, mem.SliceBuffer(head[at:c.at:c.at]))
		}
		parts = append(parts, mem.SliceBuffer(c.data))
		at = c.at
	}
	if at < len(head) {
		parts = append(parts, mem.SliceBuffer(head[at:]))
	}
	return &Frame{Parts: parts}
}

const (
	varintType = 0
	bytesType  = 2
)

func (o *Writer) tag(field, wireType int) { o.varint(uint64(field<<3 | wireType)) }

func (o *Writer) varint(v uint64) {
	for v >= 0x80 {
		o.buf = append(o.buf, byte(v)|0x80)
		v >>= 7
	}
	o.buf = append(o.buf, byte(v))
}

// Uint writes a scalar field; zero is left out.
func (o *Writer) Uint(field int, v uint64) {
	if v != 0 {
		o.tag(field, varintType)
		o.varint(v)
	}
}

// Text writes a string field; an empty one is left out.
func (o *Writer) Text(field int, s string) {
	if s != "" {
		o.Element(field, s)
	}
}

// Element writes a string of a repeated field, also an empty one.
func (o *Writer) Element(field int, s string) {
	o.Head(field, len(s))
	o.buf = append(o.buf, s...)
}

// Head begins a length-delimited field.
func (o *Writer) Head(field, length int) {
	o.tag(field, bytesType)
	o.varint(uint64(length))
}

// stored writes a bytes field; long ones are not copied. They must not change.
func (o *Writer) stored(field int, data []byte) {
	if len(data) == 0 {
		return
	}
	o.Head(field, len(data))
	if len(data) < copyBelow {
		o.buf = append(o.buf, data...)
		return
	}
	o.cuts = append(o.cuts, cut{len(o.buf), data})
	o.size += len(data)
}

func varintLen(v uint64) int { return (bits.Len64(v|1) + 6) / 7 }

func uintLen(v uint64) int { // with a tag below 16
	if v == 0 {
		return 0
	}
	return 1 + varintLen(v)
}

// BytesLen is what a text or bytes of a length take as a field; nothing when it is empty.
func BytesLen(n int) int { // with a tag below 16
	if n == 0 {
		return 0
	}
	return 1 + varintLen(uint64(n)) + n
}
