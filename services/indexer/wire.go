package indexer

import (
	"bytes"
	"math/bits"
	"runtime"
	"sync"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/limit"
)

// This file writes the hot messages of index.proto by hand. Field numbers are
// those of the proto; wire_test.go decodes everything written here with the
// generated code.

// copyBelow is the payload length below which copying is cheaper than one more
// piece for the transport.
const copyBelow = 1 << 10

// out builds one message: bytes written here, and between them stored bytes
// that are only pointed at. As a response it goes to the transport by the codec,
// which gives it back to its pool when it has been sent.
type out struct {
	buf  []byte // begins with room for what may be put before the message
	cuts []cut
	size int     // of the stored bytes
	from int     // where the message begins in buf
	made int     // of the bytes pointed at, those that are not stored
	kept []byte  // the buffer of small messages, while buf is one of large
	lent *[]byte // that, as its pool has it

	lease *limit.Lease // memory it is counted for
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

func makeOut(room int) *out {
	o := &out{buf: make([]byte, headRoom, room), from: headRoom, lease: &limit.Lease{}}
	// An answer whose connection breaks may be left to the collector.
	runtime.AddCleanup(o, (*limit.Lease).End, o.lease)
	return o
}

func newOut() *out {
	o := outs.Get().(*out)
	o.buf, o.cuts, o.size, o.from, o.made = o.buf[:headRoom], o.cuts[:0], 0, headRoom, 0
	return o
}

// room sees to it that n more bytes are not what makes a small buffer large.
func (o *out) room(n int) {
	if len(o.buf)+n > outSmall && o.lent == nil && cap(o.buf)-len(o.buf) < n {
		o.lent = largeBufs.Get().(*[]byte)
		o.kept, o.buf = o.buf, append((*o.lent)[:0], o.buf...)
	}
}

// free gives o back. Nothing may refer to it.
func (o *out) free() {
	o.lease.End()
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

// len is the length of the message so far.
func (o *out) len() int { return len(o.buf) - o.from + o.size }

// own is what the message takes beside stored bytes. A buffer that is used again
// may be larger than what is in it.
func (o *out) own() int { return max(len(o.buf), min(cap(o.buf), outMost)) + cap(o.kept) + o.made }

// mark is a place to rewind to.
func (o *out) mark() [3]int { return [3]int{len(o.buf), len(o.cuts), o.size} }

func (o *out) rewind(mark [3]int) { o.buf, o.cuts, o.size = o.buf[:mark[0]], o.cuts[:mark[1]], mark[2] }

// bytes returns the message in one piece, a copy.
func (o *out) bytes() []byte {
	b := make([]byte, 0, o.len())
	at := o.from
	for _, c := range o.cuts {
		b = append(append(b, o.buf[at:c.at]...), c.data...)
		at = c.at
	}
	return append(b, o.buf[at:]...)
}

// wrap makes the message a QueryResponse: the answer to a tag, as a field.
func (o *out) wrap(tag uint64, field int) {
	var head [headRoom]byte
	b := head[:0]
	if tag != 0 {
		b = protowire.AppendVarint(append(b, 1<<3|varintType), tag)
	}
	b = append(b, byte(field<<3|bytesType))
	b = protowire.AppendVarint(b, uint64(o.len()))
	o.from -= copy(o.buf[o.from-len(b):], b)
}

// message appends a message that generated code writes.
func (o *out) message(m proto.Message) error {
	buf, err := proto.MarshalOptions{}.MarshalAppend(o.buf, m)
	if err == nil {
		o.buf = buf
	}
	return err
}

// frame ends the message and gives o back.
func (o *out) frame() *frame {
	defer o.free()
	if len(o.cuts) == 0 {
		return &frame{parts: mem.BufferSlice{mem.SliceBuffer(bytes.Clone(o.buf[headRoom:]))}}
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
	return &frame{parts: parts}
}

const (
	varintType = 0
	bytesType  = 2
)

func (o *out) tag(field, wireType int) { o.varint(uint64(field<<3 | wireType)) }

func (o *out) varint(v uint64) {
	for v >= 0x80 {
		o.buf = append(o.buf, byte(v)|0x80)
		v >>= 7
	}
	o.buf = append(o.buf, byte(v))
}

// uint writes a scalar field; zero is left out.
func (o *out) uint(field int, v uint64) {
	if v != 0 {
		o.tag(field, varintType)
		o.varint(v)
	}
}

// string writes a string field; an empty one is left out.
func (o *out) string(field int, s string) {
	if s != "" {
		o.element(field, s)
	}
}

// element writes a string of a repeated field, also an empty one.
func (o *out) element(field int, s string) {
	o.head(field, len(s))
	o.buf = append(o.buf, s...)
}

// head begins a length-delimited field.
func (o *out) head(field, length int) {
	o.tag(field, bytesType)
	o.varint(uint64(length))
}

// stored writes a bytes field; long ones are not copied. They must not change.
func (o *out) stored(field int, data []byte) {
	if len(data) == 0 {
		return
	}
	o.head(field, len(data))
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

func bytesLen(n int) int { // with a tag below 16
	if n == 0 {
		return 0
	}
	return 1 + varintLen(uint64(n)) + n
}

// item is an index.v1.Object about to be written.
type item struct {
	key, uid, rv string
	payload      []byte
	encoding     deltav1.Encoding
	collection   string // left out when empty
	quarantined  bool   // written of events alone
}

func (it *item) len() int {
	return bytesLen(len(it.key)) + bytesLen(len(it.uid)) + bytesLen(len(it.rv)) + bytesLen(len(it.payload)) + uintLen(uint64(it.encoding)) +
		bytesLen(len(it.collection))
}

// item writes an Object as a field.
func (o *out) item(field int, it *item) {
	o.head(field, it.len())
	o.string(1, it.key)
	o.string(2, it.uid)
	o.string(3, it.rv)
	o.stored(4, it.payload)
	o.uint(5, uint64(it.encoding))
	o.string(6, it.collection)
}

// key writes an Object of which only the key is told, as a field.
func (o *out) key(field int, key string) {
	n := bytesLen(len(key))
	o.buf = append(o.buf, byte(field<<3|bytesType))
	o.varint(uint64(n))
	o.string(1, key)
}

// view makes the item of an object as a projection asks. A faulty object has
// no payload and no encoding.
func (p *projection) item(o *store.Object) item {
	if p.view == indexv1.View_VIEW_KEYS {
		return item{key: o.Key(), quarantined: o.Faulty()}
	}
	it := item{key: o.Key(), uid: o.UID(), rv: o.RV(), quarantined: o.Faulty()}
	if it.quarantined {
		return it
	}
	payload, err := o.Payload()
	if it.quarantined = err != nil; err == nil {
		it.payload, it.encoding = p.payload(payload), deltav1.Encoding_ENCODING_JSON
	}
	return it
}

// revision writes a delta.v1.Revision as a field.
func (o *out) revision(field int, r delta.Revision) {
	o.head(field, uintLen(r.Epoch)+bytesLen(len(r.RV)))
	o.uint(1, r.Epoch)
	o.string(2, r.RV)
}

// collectionRevision writes a delta.v1.CollectionRevision as a field.
func (o *out) collectionRevision(field int, p part) {
	st := p.snap.State()
	size := bytesLen(len(p.c.Name))
	for _, r := range [...]delta.Revision{st.Revision, st.Upper} {
		inner := uintLen(r.Epoch) + bytesLen(len(r.RV))
		size += 1 + varintLen(uint64(inner)) + inner
	}
	o.head(field, size)
	o.string(1, p.c.Name)
	o.revision(2, st.Revision)
	o.revision(3, st.Upper)
}

func positionLen(p delta.Position) int {
	return uintLen(p.Epoch) + uintLen(p.Sequence) + uintLen(p.Term)
}

// position writes a delta.v1.Position as a field.
func (o *out) position(field int, p delta.Position) {
	o.head(field, positionLen(p))
	o.uint(1, p.Epoch)
	o.uint(2, p.Sequence)
	o.uint(3, p.Term)
}

// event is an index.v1.Event about to be written.
type event struct {
	typ      deltav1.DeltaType
	item     item
	reason   deltav1.DeleteReason
	position delta.Position // zero is left out
	// unindexed: the object has left because the index of the watch fails on it.
	unindexed bool
	unknown   bool // of a deletion: what the object was like in the end
}

func (e *event) len() int {
	n := uintLen(uint64(e.typ)) + uintLen(uint64(e.reason))
	inner := e.item.len()
	n += 1 + varintLen(uint64(inner)) + inner
	if !e.position.IsZero() {
		inner = positionLen(e.position)
		n += 1 + varintLen(uint64(inner)) + inner
	}
	if e.item.quarantined {
		n += 2
	}
	if e.unknown {
		n += 2
	}
	if e.unindexed {
		n += 2
	}
	return n
}
