package checkpoint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"runtime"
	"testing"

	"github.com/deltaplane/deltaplane/core/store"
)

type opened struct{ by []byte }

func (o *opened) Bytes() []byte { return o.by }

func (*opened) Decode(dst, stored []byte) ([]byte, error) { return append(dst, stored...), nil }

// FuzzRead gives the reader files whose checksums are right and whose contents are anything: kind,
// length, payload of each block.
func FuzzRead(f *testing.F) {
	codec := &opened{by: []byte("d")}
	s := store.New(store.Options{})
	labels := store.NewLabels([]store.Pair{{Name: "a", Value: "b"}})
	s.Apply(store.Batch{Ops: []store.Op{
		{Put: store.NewObject(store.ObjectConfig{
			Key: "a/b", UID: "u", RV: "5", Labels: labels, Owners: store.NewOwners([]store.Owner{{Kind: "Job", Name: "j", UID: "x"}}),
			Fields:  store.NewFields([]store.Field{{Name: "f", Values: []string{"v"}}, {Name: "g", Err: errors.New("bad")}}),
			Payload: []byte("{}"), Codec: codec, Size: 2,
		})},
		{Put: store.NewObject(store.ObjectConfig{Key: "a/c", RV: "6", Labels: labels, Payload: []byte("{}")})},
		{Put: store.NewObject(store.ObjectConfig{Key: "a/f", RV: "9", Payload: []byte("{}"), Fault: "odd"})},
		{Delete: &store.Tombstone{Key: "a/d", RV: "7"}},
	}}, s.Snapshot().State().Fresh)
	var whole bytes.Buffer
	if _, err := Write(&whole, Header{Collection: "dev/pods.v1", Terms: []Term{{1, 1}}}, s.Snapshot(), nil); err != nil {
		f.Fatal(err)
	}
	in := &blockReader{r: bytes.NewReader(whole.Bytes()), left: int64(whole.Len())}
	if err := in.start(); err != nil {
		f.Fatal(err)
	}
	var seed []byte
	for in.left > 0 {
		b, err := in.next()
		if err != nil {
			f.Fatal(err)
		}
		b.fill(in.r)
		seed = append(binary.LittleEndian.AppendUint16(append(seed, b.kind), uint16(len(b.payload))), b.payload...)
	}
	f.Add(seed)
	f.Add([]byte{kindHeader, 0, 0, kindEnd, 2, 0, 0, 0})
	f.Fuzz(func(t *testing.T, script []byte) {
		var file bytes.Buffer
		out := blockWriter{w: &file}
		_ = out.start()
		for rest := script; len(rest) >= 3; {
			kind, n := rest[0], min(int(binary.LittleEndian.Uint16(rest[1:])), len(rest)-3)
			_ = out.block(kind, rest[3:3+n])
			rest = rest[3+n:]
		}
		open := func(b []byte) (store.Codec, error) { return &opened{by: b}, nil }
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		image, err := Read(bytes.NewReader(file.Bytes()), int64(file.Len()), Options{Open: open})
		runtime.ReadMemStats(&after)
		if got, most := after.TotalAlloc-before.TotalAlloc, uint64(1<<20+400*len(script)); got > most {
			t.Fatalf("%d bytes allocated for %d read", got, len(script))
		}
		if err != nil {
			if image != nil || !errors.Is(err, ErrDamaged) {
				t.Fatalf("Read = %v, %v", image, err)
			}
			return
		}
		// What is read is what can be written, and reads the same again.
		for _, o := range image.Objects {
			p, err := o.Payload()
			if err != nil {
				t.Fatal(err)
			}
			if _, codec := o.Stored(); codec == nil && len(p) != o.Size() {
				t.Fatalf("%q, size %d, fault %q", p, o.Size(), o.Fault())
			}
		}
		s := store.New(store.Options{})
		for _, o := range image.Objects {
			s.Apply(store.Batch{Ops: []store.Op{{Put: o}}}, image.Fresh)
		}
		if s.Snapshot().Len() != len(image.Objects) {
			t.Fatalf("%d objects, of which %d are different", len(image.Objects), s.Snapshot().Len())
		}
		var again bytes.Buffer
		if _, err := Write(&again, image.Header, s.Snapshot(), nil); err != nil {
			t.Fatal(err)
		}
		second, err := Read(bytes.NewReader(again.Bytes()), int64(again.Len()), Options{Open: open})
		if err != nil || len(second.Objects) != len(image.Objects) || second.Mark != image.Mark {
			t.Fatalf("written again: %v", err)
		}
	})
}

// A length of a payload that disagrees with what is stored of it is damage: without
// a codec it is the whole.
func TestLengthsOfPayloadsThatDisagreeAreDamage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		stored, size uint64
		bad          bool
	}{
		{stored: 0, size: 0},
		{stored: 10, size: 10},
		{stored: 10, size: 8, bad: true}, // as format 4 wrote an object of 8 bytes in its frame
		{stored: 10, size: 0, bad: true},
		{stored: 1, size: 0, bad: true},
		{stored: 10, size: 9, bad: true},
		{stored: 10, size: 11, bad: true},
		{stored: 0, size: 1, bad: true},
		{stored: 0, size: 2, bad: true},
		{stored: 10, size: maxServed, bad: true},
		{stored: 10, size: 1<<64 - 1, bad: true},
		{stored: 10, size: 1<<64 - 2, bad: true},
		{stored: 1<<64 - 1, size: 1<<64 - 3, bad: true},
	} {
		file := fileOfOne(t, bytes.Repeat([]byte("p"), int(min(c.stored, 10))), c.stored, c.size)
		image, err := Read(bytes.NewReader(file), int64(len(file)), Options{})
		if c.bad {
			if !errors.Is(err, ErrDamaged) {
				t.Errorf("%d stored of %d: %v, want damage", c.stored, c.size, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%d stored of %d: %v", c.stored, c.size, err)
			continue
		}
		o := image.Objects[0]
		if p, err := o.Payload(); err != nil || uint64(len(p)) != c.size || o.Size() != len(p) || uint64(o.StoredSize()) != c.stored {
			t.Errorf("%d stored of %d: payload %q, %v", c.stored, c.size, p, err)
		}
	}
}

// fileOfOne is a file of one object, whose record says that so many bytes are stored
// of so many.
func fileOfOne(t *testing.T, held []byte, stored, size uint64) []byte {
	t.Helper()
	var file bytes.Buffer
	out := blockWriter{w: &file}
	record := appendString(appendString(appendString(nil, "a/b"), "u"), "5")
	record = append(record, 1, 1, 2, 0, 0, 0, 0, 0) // epoch, sequence, generation; neither facts, fault nor codec
	record = binary.AppendUvarint(binary.AppendUvarint(record, size), stored)
	err := errors.Join(out.start(), out.block(kindHeader, appendHeader(nil, Header{Collection: "x"})))
	if len(held) > 0 {
		err = errors.Join(err, out.block(kindPayloads, held))
	}
	if err = errors.Join(err, out.block(kindObjects, record), out.block(kindEnd, []byte{1, 0})); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

// Format 4 stored objects in the frame in which answers held them: head, payload, and
// two bytes more. Its blocks are those of this format, and their checksums are right.
func TestAFileOfTheFormatWithFramesIsNotUsed(t *testing.T) {
	t.Parallel()
	const payload = `{"kind":"Pod"}`
	file := fileOfOne(t, []byte("\x0a\x1d\x0a\x03a/b\x12\x01u\x1a\x015\x22\x0e"+payload+"\x28\x01"), 31, uint64(len(payload)))
	binary.LittleEndian.PutUint16(file[len(magic):], 4)
	if image, err := Read(bytes.NewReader(file), int64(len(file)), Options{}); !errors.Is(err, ErrFormat) || image != nil {
		t.Errorf("Read = %v, %v, want ErrFormat", image, err)
	}
	binary.LittleEndian.PutUint16(file[len(magic):], Format)
	if image, err := Read(bytes.NewReader(file), int64(len(file)), Options{}); !errors.Is(err, ErrDamaged) || image != nil {
		t.Errorf("called one of this format: Read = %v, %v, want ErrDamaged", image, err)
	}
}

// FuzzReadBytes gives the reader anything at all.
func FuzzReadBytes(f *testing.F) {
	for _, rest := range []string{"", "\x01\xff\xff\xff\x7f"} {
		f.Add(append(binary.LittleEndian.AppendUint16([]byte(magic), Format), rest...))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		image, err := Read(bytes.NewReader(data), int64(len(data)), Options{})
		if (image == nil) == (err == nil) {
			t.Fatalf("Read = %v, %v", image, err)
		}
	})
}

func BenchmarkCheckpoint(b *testing.B) {
	const n, size = 100_000, 5000
	s := store.New(store.Options{})
	labels := store.NewLabels([]store.Pair{{Name: "app", Value: "web"}, {Name: "tier", Value: "x"}})
	payload := bytes.Repeat([]byte(`{"kind":"Pod"}`), size/14)
	var batch store.Batch
	for i := range n {
		batch.Ops = append(batch.Ops, store.Op{Put: store.NewObject(store.ObjectConfig{
			Key: "ns-" + string(rune('a'+i%26)) + "/pod-" + string(binary.AppendUvarint(nil, uint64(i))), UID: "01234567-89ab-4def-8123-456789abcdef",
			RV: "12345", Epoch: 1, Sequence: uint64(i), Labels: labels, Payload: bytes.Clone(payload),
		})})
	}
	s.Apply(batch, s.Snapshot().State().Fresh)
	d, err := Open(b.TempDir(), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	b.Run("save", func(b *testing.B) {
		for b.Loop() {
			if _, err := d.Save(b.Context(), Header{Collection: "x"}, s.Snapshot(), 0); err != nil {
				b.Fatal(err)
			}
		}
		b.SetBytes(n * size)
	})
	b.Run("load", func(b *testing.B) {
		if _, err := d.Save(b.Context(), Header{Collection: "x"}, s.Snapshot(), 0); err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		for b.Loop() {
			image, _, err := d.Load("x", Options{})
			if err != nil || len(image.Objects) != s.Snapshot().Len() {
				b.Fatal(err)
			}
		}
		b.SetBytes(n * size)
	})
}
