package checkpoint

import (
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/seal"
)

// dictionary is a codec that can be written down: [Options.Open] makes it again
// of its bytes.
type dictionary interface {
	store.Codec
	Bytes() []byte
}

// Counts are how many there are in a file.
type Counts struct{ Objects, Tombstones int }

// Write writes a snapshot. It reads nothing that changes, and holds about a
// block at a time. An object whose bytes cannot be had makes it fail: a file
// must not hold less than the store did. With keys the file is encrypted.
func Write(w io.Writer, h Header, snap *store.Snapshot, keys *seal.Keys) (Counts, error) {
	e := &encoder{
		out: blockWriter{w: w, keys: keys}, strings: map[string]uint64{}, labels: map[*store.Labels]uint64{}, owners: map[*store.Owners]uint64{},
		fields: map[*store.Fields]uint64{}, readings: map[*store.Reading]uint64{}, alike: map[string]uint64{}, codecs: map[store.Codec]uint64{},
	}
	if err := e.out.start(); err != nil {
		return e.counts, err
	}
	if err := e.out.block(kindHeader, appendHeader(nil, h)); err != nil {
		return e.counts, err
	}
	dump := snap.Dump()
	for o := range dump.Objects {
		if err := e.object(o); err != nil {
			return e.counts, err
		}
	}
	if err := e.flush(kindObjects); err != nil {
		return e.counts, err
	}
	for t := range dump.Tombstones {
		if err := e.tombstone(t); err != nil {
			return e.counts, err
		}
	}
	if err := e.flush(kindTombstones); err != nil {
		return e.counts, err
	}
	end := binary.AppendUvarint(nil, uint64(e.counts.Objects))
	return e.counts, e.out.block(kindEnd, binary.AppendUvarint(end, uint64(e.counts.Tombstones)))
}

// encoder gathers blocks. What is shared has a number, one more than the place
// at which it came; zero is none.
type encoder struct {
	out    blockWriter
	counts Counts

	tables, payloads, records []byte

	strings map[string]uint64
	labels  map[*store.Labels]uint64
	owners  map[*store.Owners]uint64
	fields  map[*store.Fields]uint64
	codecs  map[store.Codec]uint64

	readings map[*store.Reading]uint64
	alike    map[string]uint64 // readings by what is written of them
}

func (e *encoder) object(o *store.Object) error {
	payload, codec := o.Stored()
	var code uint64
	if codec != nil {
		d, ok := codec.(dictionary)
		if ok {
			code = e.codec(d)
		} else {
			var err error
			if payload, err = o.Payload(); err != nil {
				return fmt.Errorf("checkpoint: %s: %w", o.Key(), err)
			}
		}
	}
	labels, owners, fields := e.labelSet(o.Labels()), e.ownerList(o.Owners()), e.fieldSet(o.Fields())
	b := appendString(e.records, o.Key())
	b = appendString(b, o.UID())
	b = appendString(b, o.RV())
	b = binary.AppendUvarint(b, o.Epoch())
	b = binary.AppendUvarint(b, o.Sequence())
	b = binary.AppendVarint(b, o.Generation())
	b = binary.AppendUvarint(b, labels)
	b = binary.AppendUvarint(b, owners)
	b = binary.AppendUvarint(b, fields)
	b = appendString(b, o.Fault())
	b = binary.AppendUvarint(b, code)
	b = binary.AppendUvarint(b, uint64(o.Size()))
	e.records = binary.AppendUvarint(b, uint64(len(payload)))
	e.payloads = append(e.payloads, payload...)
	e.counts.Objects++
	return e.full(kindObjects)
}

func (e *encoder) tombstone(t *store.Tombstone) error {
	b := appendString(e.records, t.Key)
	b = appendString(b, t.UID)
	b = appendString(b, t.RV)
	b = binary.AppendUvarint(b, t.Epoch)
	b = binary.AppendUvarint(b, t.Sequence)
	b = append(b, byte(t.Reason))
	e.records = appendTime(b, t.At)
	e.counts.Tombstones++
	return e.full(kindTombstones)
}

func (e *encoder) full(kind byte) error {
	if len(e.payloads)+len(e.records)+len(e.tables) < blockBytes {
		return nil
	}
	return e.flush(kind)
}

// flush writes what was gathered, each before what needs it.
func (e *encoder) flush(kind byte) error {
	if len(e.records) == 0 {
		return nil
	}
	for _, b := range []struct {
		kind    byte
		payload *[]byte
	}{{kindTables, &e.tables}, {kindPayloads, &e.payloads}, {kind, &e.records}} {
		if len(*b.payload) == 0 {
			continue
		}
		if err := e.out.block(b.kind, *b.payload); err != nil {
			return err
		}
		*b.payload = (*b.payload)[:0]
	}
	return nil
}

func (e *encoder) text(s string) uint64 {
	n, ok := e.strings[s]
	if !ok {
		n = uint64(len(e.strings)) + 1
		e.strings[s] = n
		e.tables = appendString(append(e.tables, entryString), s)
	}
	return n
}

func (e *encoder) labelSet(l *store.Labels) uint64 {
	n, ok := e.labels[l]
	if l == nil || ok {
		return n
	}
	ids := make([]uint64, 0, 32)
	for _, p := range l.Pairs() {
		ids = append(ids, e.text(p.Name), e.text(p.Value))
	}
	e.tables = append(e.tables, entryLabels)
	e.numbers(ids)
	n = uint64(len(e.labels)) + 1
	e.labels[l] = n
	return n
}

func (e *encoder) ownerList(o *store.Owners) uint64 {
	n, ok := e.owners[o]
	if o == nil || ok {
		return n
	}
	list := o.List()
	kinds := make([]uint64, 0, 4)
	for _, w := range list {
		kinds = append(kinds, e.text(w.Kind))
	}
	e.tables = binary.AppendUvarint(append(e.tables, entryOwners), uint64(len(list)))
	for i, w := range list {
		controller := byte(0)
		if w.Controller {
			controller = 1
		}
		e.tables = append(binary.AppendUvarint(e.tables, kinds[i]), controller)
		e.tables = appendString(appendString(e.tables, w.Name), w.UID)
	}
	n = uint64(len(e.owners)) + 1
	e.owners[o] = n
	return n
}

func (e *encoder) fieldSet(f *store.Fields) uint64 {
	n, ok := e.fields[f]
	if f == nil || ok {
		return n
	}
	list := f.Readings()
	ids := make([]uint64, len(list))
	for i, r := range list {
		ids[i] = e.reading(r)
	}
	e.tables = append(e.tables, entryFields)
	e.numbers(ids)
	n = uint64(len(e.fields)) + 1
	e.fields[f] = n
	return n
}

// reading writes a field, of which each is written once.
func (e *encoder) reading(r *store.Reading) uint64 {
	if n, ok := e.readings[r]; ok {
		return n
	}
	f := r.Field()
	ids := append(make([]uint64, 0, 8), e.text(f.Name))
	for _, v := range f.Values {
		ids = append(ids, e.text(v))
	}
	fault := ""
	if f.Err != nil {
		fault = f.Err.Error()
	}
	from := len(e.tables)
	e.tables = appendString(append(e.tables, entryReading), fault)
	e.numbers(ids)
	n, ok := e.alike[string(e.tables[from:])]
	if ok {
		e.tables = e.tables[:from]
	} else {
		n = uint64(len(e.alike)) + 1
		e.alike[string(e.tables[from:])] = n
	}
	e.readings[r] = n
	return n
}

func (e *encoder) codec(d dictionary) uint64 {
	n, ok := e.codecs[d]
	if !ok {
		n = uint64(len(e.codecs)) + 1
		e.codecs[d] = n
		e.tables = appendString(append(e.tables, entryDictionary), string(d.Bytes()))
	}
	return n
}

func (e *encoder) numbers(list []uint64) {
	e.tables = binary.AppendUvarint(e.tables, uint64(len(list)))
	for _, n := range list {
		e.tables = binary.AppendUvarint(e.tables, n)
	}
}

func appendHeader(b []byte, h Header) []byte {
	b = appendString(b, h.Collection)
	b = appendTime(b, h.Created)
	b = appendString(b, h.Facts)
	for _, n := range []uint64{h.Mark.Position.Epoch, h.Mark.Position.Sequence, h.Mark.Position.Term, h.Mark.Claimed.Epoch, h.Mark.FrozenTo, h.Horizon} {
		b = binary.AppendUvarint(b, n)
	}
	b = appendString(b, h.Mark.Watermark)
	b = appendString(b, h.Mark.Claimed.RV)
	b = appendString(b, h.Mark.Upper)
	b = appendTime(b, h.Fresh)
	b = binary.AppendUvarint(b, uint64(len(h.Terms)))
	for _, t := range h.Terms {
		b = binary.AppendUvarint(binary.AppendUvarint(b, t.Term), t.First)
	}
	return b
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// appendTime writes nanoseconds since 1970; the zero time is zero.
func appendTime(b []byte, t time.Time) []byte {
	if t.IsZero() {
		return binary.AppendVarint(b, 0)
	}
	return binary.AppendVarint(b, t.UnixNano())
}
