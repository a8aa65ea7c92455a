package store

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"unique"
	"unsafe"

	"github.com/deltaplane/deltaplane/core/delta"
)

// Codec makes served bytes of stored ones. Two codecs that are equal (==) do
// the same; the dynamic type must be comparable, a pointer as a rule. It is
// safe for concurrent use.
type Codec interface {
	// Decode appends what stored was made from to dst.
	Decode(dst, stored []byte) ([]byte, error)
}

// ObjectConfig is what is known of one version of one key when it is put.
type ObjectConfig struct {
	// Key is "namespace/name", or "name" for a cluster-scoped object.
	Key string
	UID string
	// RV is the API server's resource version, a decimal of any length.
	RV string
	// Epoch and Sequence are the record's place in the log.
	Epoch, Sequence uint64
	Generation      int64
	// Labels, Owners and Fields are shared between objects; nil has none.
	Labels *Labels
	Owners *Owners
	Fields *Fields
	// Payload is the object as it is served, or what Codec makes that of. The
	// store does not look into it and does not copy it; it must not change.
	Payload []byte
	// Codec is nil when Payload is served as it is.
	Codec Codec
	// Size is the length of the served payload; it is needed with Codec only.
	Size int
	// Fault says why the payload cannot be served. A faulty object is an error
	// on its key, never an absence; its other facts may be guesses.
	Fault string
}

// Object is one version of one key. It never changes after it was given to
// Apply, and is safe for concurrent use. An object belongs to one store.
//
// It takes 96 bytes and one shared copy of its key: facts that have the usual
// form are kept as numbers, the rest in a side table.
type Object struct {
	key    *key
	uid    [16]byte
	rv     uint64
	seq    uint64
	era    uint64 // epoch, then 16 bits of generation
	labels *Labels
	owners *Owners
	fields *Fields
	data   *byte
	stored uint32 // length of data
	size   uint32 // length of the served payload
	odd    unique.Handle[odd]
}

// odd holds what an object has beside the usual. The same oddities, such as
// a codec alone, are shared between objects.
type odd struct {
	codec      Codec
	fault      string
	uid, rv    string // in a form that is not the canonical one
	wide       bool   // epoch and generation are here
	epoch      uint64
	generation int64
}

const (
	generationBits = 16
	epochBits      = 64 - generationBits
)

// NewObject packs what is known. It keeps none of the texts, but copies of them.
// A payload of 4 GiB or more is a fault.
func NewObject(c ObjectConfig) *Object {
	o := &Object{key: newKey(c.Key), seq: c.Sequence, labels: c.Labels, owners: c.Owners, fields: c.Fields}
	x := odd{codec: c.Codec, fault: c.Fault}
	size := len(c.Payload)
	if c.Codec != nil {
		size = c.Size
	}
	stored := c.Payload
	if size > math.MaxUint32 || len(stored) > math.MaxUint32 {
		x.fault = cmp.Or(x.fault, fmt.Sprintf("payload of %d bytes is too long", size))
		stored, size, x.codec = nil, 0, nil
	}
	o.data, o.stored, o.size = unsafe.SliceData(stored), uint32(len(stored)), uint32(max(size, 0))
	var ok bool
	if o.uid, ok = packUID(c.UID); !ok {
		x.uid = c.UID
	}
	if o.rv, ok = packRV(c.RV); !ok {
		x.rv = c.RV
	}
	if c.Epoch>>epochBits == 0 && c.Generation>>generationBits == 0 {
		o.era = c.Epoch<<generationBits | uint64(c.Generation)
	} else {
		x.wide, x.epoch, x.generation = true, c.Epoch, c.Generation
	}
	o.mark(x)
	return o
}

func (o *Object) mark(x odd) {
	o.odd = unique.Handle[odd]{}
	if x != (odd{}) {
		o.odd = unique.Make(x)
	}
}

func (o *Object) plain() bool { return o.odd == unique.Handle[odd]{} }

func (o *Object) oddity() odd {
	if o.plain() {
		return odd{}
	}
	return o.odd.Value()
}

// Key is "namespace/name", or "name" for a cluster-scoped object.
func (o *Object) Key() string { return o.key.String() }

// Namespace is the part of the key before the slash, "" when cluster-scoped.
func (o *Object) Namespace() string { return o.key.namespace() }

// Name is the part of the key after the slash.
func (o *Object) Name() string { return o.key.name() }

// UID returns the object's UID, newly allocated; see AppendUID.
func (o *Object) UID() string {
	if !o.plain() && o.odd.Value().uid != "" {
		return o.odd.Value().uid
	}
	return string(o.AppendUID(nil))
}

// AppendUID appends the object's UID, without allocating if dst has room.
func (o *Object) AppendUID(dst []byte) []byte {
	switch {
	case o.uid != [16]byte{}:
		return appendUID(dst, &o.uid)
	case o.plain():
		return dst
	}
	return append(dst, o.odd.Value().uid...)
}

// UIDLen is the length of the UID.
func (o *Object) UIDLen() int {
	switch {
	case o.uid != [16]byte{}:
		return uidLen
	case o.plain():
		return 0
	}
	return len(o.odd.Value().uid)
}

// RV returns the resource version, newly allocated; see AppendRV.
func (o *Object) RV() string {
	switch {
	case o.rv != 0:
		return strconv.FormatUint(o.rv, 10)
	case o.plain():
		return ""
	}
	return o.odd.Value().rv
}

// AppendRV appends the resource version, without allocating if dst has room.
func (o *Object) AppendRV(dst []byte) []byte {
	switch {
	case o.rv != 0:
		return strconv.AppendUint(dst, o.rv, 10)
	case o.plain():
		return dst
	}
	return append(dst, o.odd.Value().rv...)
}

// RVLen is the length of the resource version.
func (o *Object) RVLen() int {
	switch {
	case o.rv != 0:
		n := 1
		for v := o.rv; v >= 10; v /= 10 {
			n++
		}
		return n
	case o.plain():
		return 0
	}
	return len(o.odd.Value().rv)
}

// Epoch is that of the record the object came with.
func (o *Object) Epoch() uint64 {
	if x := o.oddity(); x.wide {
		return x.epoch
	}
	return o.era >> generationBits
}

// Sequence is the record's place in the log.
func (o *Object) Sequence() uint64 { return o.seq }

// Generation is metadata.generation, zero if unknown.
func (o *Object) Generation() int64 {
	if x := o.oddity(); x.wide {
		return x.generation
	}
	return int64(o.era & (1<<generationBits - 1))
}

// Labels may be nil, which is the empty set.
func (o *Object) Labels() *Labels { return o.labels }

// Owners may be nil, which is the empty set.
func (o *Object) Owners() *Owners { return o.owners }

// Fields may be nil, which has none.
func (o *Object) Fields() *Fields { return o.fields }

// Field returns the values of a declared field and whether it was read at
// ingest. A field that was read may have no values. They must not be changed.
func (o *Object) Field(name string) (values []string, ok bool) {
	f, ok := o.fields.get(name)
	return f.Values, ok
}

// FieldErr says why a declared field could not be read; nil when it could, or
// was not declared.
func (o *Object) FieldErr(name string) error {
	f, _ := o.fields.get(name)
	return f.Err
}

// Fault says why the payload cannot be served, "" when it can.
func (o *Object) Fault() string { return o.oddity().fault }

// Faulty reports whether there is a fault.
func (o *Object) Faulty() bool { return !o.plain() && o.odd.Value().fault != "" }

// Payload returns the object as it is served: the stored bytes themselves,
// which must not be changed, or bytes newly allocated by the codec.
func (o *Object) Payload() ([]byte, error) {
	stored, codec := o.Stored()
	if codec == nil {
		return stored, nil
	}
	return decode(make([]byte, 0, o.size), stored, codec)
}

// AppendPayload appends the object as it is served. After an error dst is
// returned as it was.
func (o *Object) AppendPayload(dst []byte) ([]byte, error) {
	stored, codec := o.Stored()
	if codec == nil {
		return append(dst, stored...), nil
	}
	return decode(dst, stored, codec)
}

func decode(dst, stored []byte, codec Codec) ([]byte, error) {
	out, err := codec.Decode(dst, stored)
	if err != nil {
		return dst, fmt.Errorf("store: decode payload: %w", err)
	}
	return out, nil
}

// Stored returns the bytes that are kept and the codec that makes the served
// payload of them; nil when they are it. They must not be changed.
func (o *Object) Stored() ([]byte, Codec) {
	return unsafe.Slice(o.data, o.stored), o.oddity().codec
}

// Size is the length of the served payload.
func (o *Object) Size() int { return int(o.size) }

// StoredSize is the length of the stored bytes.
func (o *Object) StoredSize() int { return int(o.stored) }

// WithStored returns the same version with its payload stored otherwise; with
// a nil codec stored is the served payload. Its length must be below 4 GiB.
func (o *Object) WithStored(stored []byte, codec Codec) *Object {
	n := o.Moved(stored)
	if codec == nil {
		n.size = n.stored
	}
	if x := o.oddity(); x.codec != codec {
		x.codec = codec
		n.mark(x)
	}
	return n
}

// Moved returns the same version with what is stored of it in another place.
func (o *Object) Moved(stored []byte) *Object {
	n := *o
	n.data, n.stored = unsafe.SliceData(stored), uint32(len(stored))
	return &n
}

// WithFields returns the same version with other fields.
func (o *Object) WithFields(f *Fields) *Object {
	n := *o
	n.fields = f
	return &n
}

// doubted returns the version with a fault in place of its payload.
func (o *Object) doubted(fault string, sequence uint64) *Object {
	n := *o
	n.data, n.stored, n.size, n.seq = nil, 0, 0, sequence
	x := o.oddity()
	x.codec, x.fault = nil, fault
	n.mark(x)
	return &n
}

// compare orders two objects of one key: by epoch, then resource version, then
// place in the log.
func (o *Object) compare(p *Object) int {
	return cmp.Or(cmp.Compare(o.Epoch(), p.Epoch()), o.compareRV(p), cmp.Compare(o.seq, p.seq))
}

func (o *Object) compareRV(p *Object) int {
	if o.rv != 0 && p.rv != 0 {
		return cmp.Compare(o.rv, p.rv)
	}
	return delta.Compare(o.RV(), p.RV())
}

// compareTombstone orders an object and a delete of its key.
func (o *Object) compareTombstone(t *Tombstone) int {
	c := cmp.Compare(o.Epoch(), t.Epoch)
	if c == 0 {
		if rv, ok := packRV(t.RV); ok && rv != 0 && o.rv != 0 {
			c = cmp.Compare(o.rv, rv)
		} else {
			c = delta.Compare(o.RV(), t.RV)
		}
	}
	return cmp.Or(c, cmp.Compare(o.seq, t.Sequence))
}

// digest is the object's part of its collection's.
func (o *Object) digest() delta.Digest {
	if o.rv != 0 {
		return delta.DigestOfNumber(o.key.String(), o.rv)
	}
	return delta.DigestOf(o.key.String(), o.RV())
}

// recreated reports whether p is another object under the same key.
func (o *Object) recreated(p *Object) bool {
	if o.uid == p.uid && o.uid != [16]byte{} {
		return false
	}
	return delta.Recreated(o.UID(), p.UID())
}
