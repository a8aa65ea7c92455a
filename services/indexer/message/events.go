package message

import (
	"google.golang.org/grpc/mem"

	"github.com/deltaplane/deltaplane/core/delta"
)

// Events are events made ready for the wire, as one message that may be sent
// any number of times, or as a part of a larger one.
type Events struct {
	Frame *Frame
	body  mem.BufferSlice // the events of frame
	Size  int             // of the events
	Cost  int             // memory beside the payloads
}

// PartCost is about what one more piece of a message takes.
const PartCost = 48

// Trailer says where a reader is behind a message of a watch; what is zero is left out.
type Trailer struct {
	At, Told        delta.Position
	Selection       uint64
	Scope           uint64
	Revision, Upper delta.Revision
}

// EncodeEvents writes events, whether earlier ones were left out, and where a reader
// is behind them.
func EncodeEvents(events []Event, folded bool, behind Trailer) Events {
	o := New()
	o.changes(events)
	if folded {
		o.Uint(2, 1)
	}
	size, cost := o.Len(), len(o.buf)-o.from
	body := o.shared()
	o = New()
	o.Head(1, size)
	head := o.flat()
	o = New()
	o.Trailer(behind)
	tail := o.flat()
	parts := make(mem.BufferSlice, 0, len(body)+2)
	parts = append(append(append(parts, mem.SliceBuffer(head)), body...), mem.SliceBuffer(tail))
	return Events{
		Frame: &Frame{Parts: parts}, body: parts[1 : len(parts)-1], Size: size,
		Cost: cost + len(head) + len(tail) + PartCost*len(parts),
	}
}

// MergeEvents makes one message of several, with what stands behind the last.
func MergeEvents(list []*Events) *Frame {
	if len(list) == 1 {
		return list[0].Frame
	}
	size, n := 0, 2
	for _, b := range list {
		size += b.Size
		n += len(b.body)
	}
	o := New()
	o.Head(1, size)
	parts := append(make(mem.BufferSlice, 0, n), mem.SliceBuffer(o.flat()))
	for _, b := range list {
		parts = append(parts, b.body...)
	}
	last := list[len(list)-1].Frame.Parts
	return &Frame{Parts: append(parts, last[len(last)-1])}
}

// Trailer ends a WatchResponse.
func (o *Writer) Trailer(t Trailer) {
	if !t.At.IsZero() || !t.Told.IsZero() {
		o.Head(5, positionLen(t.At)+positionLen(t.Told)+uintLen(t.Selection)+uintLen(t.Scope))
		o.Uint(1, t.At.Epoch)
		o.Uint(2, t.At.Sequence)
		o.Uint(3, t.At.Term)
		o.Uint(4, t.Told.Epoch)
		o.Uint(5, t.Told.Sequence)
		o.Uint(6, t.Told.Term)
		o.Uint(7, t.Selection)
		o.Uint(8, t.Scope)
	}
	if !t.Revision.IsZero() {
		o.revision(6, t.Revision)
	}
	if !t.Upper.IsZero() {
		o.revision(7, t.Upper)
	}
}

// changes writes the repeated field of an Events message.
func (o *Writer) changes(list []Event) {
	for i := range list {
		e := &list[i]
		o.Head(1, e.Len())
		o.Uint(1, uint64(e.Type))
		o.item(2, &e.Item)
		o.Uint(3, uint64(e.Reason))
		if !e.Position.IsZero() {
			o.position(4, e.Position)
		}
		if e.Item.quarantined {
			o.Uint(5, 1)
		}
		if e.Unknown {
			o.Uint(6, 1)
		}
		if e.Unindexed {
			o.Uint(7, 1)
		}
		if e.HasPrevious {
			o.item(8, &e.Previous)
		}
		o.Text(9, e.Trace)
	}
}

// flat returns what was written, without stored bytes, and gives o back.
func (o *Writer) flat() []byte {
	defer o.Free()
	return o.Bytes()
}

// shared is what frame makes, in pieces that many streams may send: nothing of
// it goes back to a pool.
func (o *Writer) shared() mem.BufferSlice {
	defer o.Free()
	buf := append(make([]byte, 0, len(o.buf)-o.from), o.buf[o.from:]...)
	parts := make(mem.BufferSlice, 0, 2*len(o.cuts)+1)
	at := 0
	for _, c := range o.cuts {
		end := c.at - o.from
		if at < end {
			parts = append(parts, mem.SliceBuffer(buf[at:end:end]))
		}
		parts = append(parts, mem.SliceBuffer(c.data))
		at = end
	}
	if at < len(buf) {
		parts = append(parts, mem.SliceBuffer(buf[at:]))
	}
	return parts
}
