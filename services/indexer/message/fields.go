package message

import (
	"google.golang.org/protobuf/proto"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// unindexedField is the number of UnindexedObjects in every answer.
const unindexedField = 20

// Bounds writes the revision of the snapshot that an answer comes from, and its
// upper bound.
func (o *Writer) Bounds(revision, upper int, snap *store.Snapshot) {
	st := snap.State()
	o.revision(revision, st.Revision)
	o.revision(upper, st.Upper)
}

// Located writes a QuarantinedKey as a field.
func (o *Writer) Located(field int, collection, key string) {
	o.Head(field, BytesLen(len(collection))+BytesLen(len(key)))
	o.Text(1, collection)
	o.Text(2, key)
}

// CollectionRevision writes a delta.v1.CollectionRevision as a field.
func (o *Writer) CollectionRevision(field int, name string, snap *store.Snapshot) {
	st := snap.State()
	size := BytesLen(len(name))
	for _, r := range [...]delta.Revision{st.Revision, st.Upper} {
		inner := uintLen(r.Epoch) + BytesLen(len(r.RV))
		size += 1 + varintLen(uint64(inner)) + inner
	}
	o.Head(field, size)
	o.Text(1, name)
	o.revision(2, st.Revision)
	o.revision(3, st.Upper)
}

// Unindexed writes them.
func (o *Writer) Unindexed(list []*indexv1.UnindexedObjects) {
	for _, u := range list {
		b, err := proto.Marshal(u)
		if err != nil { // a key that is not UTF-8
			b, _ = proto.Marshal(&indexv1.UnindexedObjects{Index: u.GetIndex(), Count: u.GetCount(), Collection: u.GetCollection()})
		}
		o.Raw(unindexedField, b)
	}
}

// Raw writes a bytes field, a copy.
func (o *Writer) Raw(field int, b []byte) {
	o.Head(field, len(b))
	o.buf = append(o.buf, b...)
}

// Event is an index.v1.Event about to be written.
type Event struct {
	Type     deltav1.DeltaType
	Item     Item
	Reason   deltav1.DeleteReason
	Position delta.Position // zero is left out
	// unindexed: the object has left because the index of the watch fails on it.
	Unindexed bool
	Unknown   bool // of a deletion: what the object was like in the end
	// Previous is the object before the change, where HasPrevious is set.
	Previous    Item
	HasPrevious bool
	Trace       string // W3C traceparent of what the change came of; of most empty
}

// Len is the length of the event in a message.
func (e *Event) Len() int {
	n := uintLen(uint64(e.Type)) + uintLen(uint64(e.Reason)) + BytesLen(len(e.Trace))
	inner := e.Item.len()
	n += 1 + varintLen(uint64(inner)) + inner
	if !e.Position.IsZero() {
		inner = positionLen(e.Position)
		n += 1 + varintLen(uint64(inner)) + inner
	}
	if e.Item.quarantined {
		n += 2
	}
	if e.Unknown {
		n += 2
	}
	if e.Unindexed {
		n += 2
	}
	if e.HasPrevious {
		inner = e.Previous.len()
		n += 1 + varintLen(uint64(inner)) + inner
	}
	return n
}

// Before adds the object as it was before the change, as a view shows it. One that could not be
// read is left out.
func (e *Event) Before(it Item) {
	if !it.quarantined {
		e.Previous, e.HasPrevious = it, true
	}
}

// Final makes a deletion one of a known object, as a view shows it. What is not
// in the view stays as it was: a deletion has its version in any.
func (e *Event) Final(it Item) {
	if it.quarantined {
		return
	}
	e.Item.Payload, e.Item.encoding, e.Unknown = it.Payload, it.encoding, false
}
