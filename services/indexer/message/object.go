package message

import (
	"unicode/utf8"

	"github.com/deltaplane/deltaplane/core/store"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// objectField is the field of objects in every message that has some.
const objectField = 1

// Object writes an index.v1.Object as a projection asks, with its collection
// unless that is empty. It reports whether the object could be read: a faulty
// one is written without payload and encoding.
func (o *Writer) Object(obj *store.Object, p *Projection, collection string) bool {
	o.room(2 * copyBelow) // about what one takes whose payload is not copied
	if p.View == indexv1.View_VIEW_KEYS {
		if collection == "" {
			o.Key(objectField, obj.Key())
		} else {
			o.item(objectField, &Item{Key: obj.Key(), collection: collection})
		}
		return !obj.Faulty()
	}
	if obj.Faulty() {
		o.body(obj, nil, 0, collection)
		return false
	}
	_, codec := obj.Stored()
	switch {
	case p.Mask != nil || codec == nil:
		payload, err := obj.Payload()
		if err != nil {
			o.body(obj, nil, 0, collection)
			return false
		}
		if p.Mask != nil {
			payload = p.Payload(payload)
			o.made += len(payload)
		}
		o.body(obj, payload, len(payload), collection)
	default:
		// The payload is decoded to where it is sent from.
		o.room(obj.Size() + copyBelow)
		mark := len(o.buf)
		n := o.head4(obj, obj.Size(), collection)
		buf, err := obj.AppendPayload(o.buf)
		if err != nil || len(buf)-len(o.buf) != n {
			o.buf = o.buf[:mark]
			o.body(obj, nil, 0, collection)
			return false
		}
		o.buf = buf
		o.tail(n, collection)
	}
	return true
}

// body writes an Object with a payload that is at hand; none when n is zero.
func (o *Writer) body(obj *store.Object, payload []byte, n int, collection string) {
	o.head4(obj, n, collection)
	if n > 0 && n < copyBelow {
		o.buf = append(o.buf, payload...)
	} else if n > 0 {
		o.cuts = append(o.cuts, cut{len(o.buf), payload})
		o.size += n
	}
	o.tail(n, collection)
}

// head4 writes an Object up to the bytes of its payload, which are n, and
// returns n.
func (o *Writer) head4(obj *store.Object, n int, collection string) int {
	key := obj.Key()
	uid, rv := obj.UIDLen(), obj.RVLen()
	size := BytesLen(len(key)) + BytesLen(uid) + BytesLen(rv) + BytesLen(n) + BytesLen(len(collection))
	if n > 0 {
		size += uintLen(uint64(deltav1.Encoding_ENCODING_JSON))
	}
	o.Head(objectField, size)
	o.Text(1, key)
	if uid > 0 {
		o.Head(2, uid)
		at := len(o.buf)
		o.buf = obj.AppendUID(o.buf)
		ascii(o.buf[at:])
	}
	if rv > 0 {
		o.Head(3, rv)
		at := len(o.buf)
		o.buf = obj.AppendRV(o.buf)
		ascii(o.buf[at:])
	}
	if n > 0 {
		o.Head(4, n)
	}
	return n
}

// tail writes what stands behind the payload.
func (o *Writer) tail(n int, collection string) {
	if n > 0 {
		o.Uint(5, uint64(deltav1.Encoding_ENCODING_JSON))
	}
	o.Text(6, collection)
}

// ascii makes text that is not UTF-8 readable: one such would keep a client from
// decoding everything beside it.
func ascii(b []byte) {
	if utf8.Valid(b) {
		return
	}
	for i := range b {
		if b[i] >= utf8.RuneSelf {
			b[i] = '?'
		}
	}
}

// ObjectLen is about what an object adds to a message, at least its payload.
func (p *Projection) ObjectLen(obj *store.Object) int {
	if p.View == indexv1.View_VIEW_KEYS {
		return len(obj.Key()) + 4
	}
	if p.Mask != nil {
		return 0
	}
	return len(obj.Key()) + obj.Size() + 80
}
