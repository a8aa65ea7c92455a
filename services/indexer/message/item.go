package message

import (
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// Item is an index.v1.Object about to be written.
type Item struct {
	Key, UID, RV string
	Payload      []byte
	encoding     deltav1.Encoding
	collection   string // left out when empty
	quarantined  bool   // written of events alone
}

func (it *Item) len() int {
	return BytesLen(len(it.Key)) + BytesLen(len(it.UID)) + BytesLen(len(it.RV)) + BytesLen(len(it.Payload)) + uintLen(uint64(it.encoding)) +
		BytesLen(len(it.collection))
}

// item writes an Object as a field.
func (o *Writer) item(field int, it *Item) {
	o.Head(field, it.len())
	o.Text(1, it.Key)
	o.Text(2, it.UID)
	o.Text(3, it.RV)
	o.stored(4, it.Payload)
	o.Uint(5, uint64(it.encoding))
	o.Text(6, it.collection)
}

// Key writes an Object of which only the key is told, as a field.
func (o *Writer) Key(field int, key string) {
	n := BytesLen(len(key))
	o.buf = append(o.buf, byte(field<<3|bytesType))
	o.varint(uint64(n))
	o.Text(1, key)
}

// Item makes the item of an object as a projection asks. A faulty object has
// no payload and no encoding.
func (p *Projection) Item(o *store.Object) Item {
	if p.View == indexv1.View_VIEW_KEYS {
		return Item{Key: o.Key(), quarantined: o.Faulty()}
	}
	it := Item{Key: o.Key(), UID: o.UID(), RV: o.RV(), quarantined: o.Faulty()}
	if it.quarantined {
		return it
	}
	payload, err := o.Payload()
	if it.quarantined = err != nil; err == nil {
		it.Payload, it.encoding = p.Payload(payload), deltav1.Encoding_ENCODING_JSON
	}
	return it
}

// revision writes a delta.v1.Revision as a field.
func (o *Writer) revision(field int, r delta.Revision) {
	o.Head(field, uintLen(r.Epoch)+BytesLen(len(r.RV)))
	o.Uint(1, r.Epoch)
	o.Text(2, r.RV)
}

func positionLen(p delta.Position) int {
	return uintLen(p.Epoch) + uintLen(p.Sequence) + uintLen(p.Term)
}

// position writes a delta.v1.Position as a field.
func (o *Writer) position(field int, p delta.Position) {
	o.Head(field, positionLen(p))
	o.Uint(1, p.Epoch)
	o.Uint(2, p.Sequence)
	o.Uint(3, p.Term)
}
