package checkpoint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/seal"
)

// maxServed is more than any object takes as it is served.
const maxServed = 64 << 20

// Options say how a file is read.
type Options struct {
	// MaxBytes is the longest file that is read; zero is any.
	MaxBytes int64
	// Collection must be the file's; empty is any.
	Collection string
	// Keys decrypt files; without them those that are encrypted are not read, with them
	// those that are not.
	Keys *seal.Keys
	// Open makes the codec of a dictionary. Without it files with dictionaries
	// cannot be read.
	Open func(dictionary []byte) (store.Codec, error)
}

// Image is a file that was read whole.
type Image struct {
	Header
	// Objects are in key order. Their stored bytes are parts of buffers of about
	// a megabyte.
	Objects    []*store.Object
	Tombstones []*store.Tombstone
	// Blocks are those buffers.
	Blocks [][]byte
}

// Read reads a file of the given length. Whatever the bytes are it gives an
// image that was written by [Write], or an error and nothing: one that wraps
// [ErrDamaged], [ErrFormat], [ErrPlain], [ErrEncrypted], [ErrForeign] or
// [ErrTooLarge], or the reader's. It allocates in proportion to the length. Parts
// of the file are read side by side.
func Read(r io.ReaderAt, size int64, o Options) (*Image, error) {
	if o.MaxBytes > 0 && size > o.MaxBytes {
		return nil, fmt.Errorf("%w: %d bytes, at most %d may be read", ErrTooLarge, size, o.MaxBytes)
	}
	in := &blockReader{r: r, left: size, keys: o.Keys}
	if err := in.start(); err != nil {
		return nil, err
	}
	d := &decoder{open: o.Open, image: &Image{}}
	first, err := in.next()
	if err != nil {
		return nil, err
	}
	first.fill(r)
	if err := d.block(first); err != nil {
		return nil, err
	}
	if first.kind != kindHeader {
		return nil, ErrDamaged
	}
	if o.Collection != "" && d.image.Collection != o.Collection {
		return nil, fmt.Errorf("%w: %q", ErrForeign, d.image.Collection)
	}
	in.header = first.payload
	if err := d.blocks(in); err != nil {
		return nil, err
	}
	if !d.ended {
		return nil, ErrDamaged
	}
	return d.image, nil
}

// Reading and checking is most of the work, and bound by the copying of
// memory: a core each, and one reader more, since a reader that comes back from
// the system may have to wait for its turn.
const mostReaders = 4

// blocks decodes the blocks up to the last in their order, while those behind
// are read.
func (d *decoder) blocks(in *blockReader) error {
	list, err := in.rest()
	if err != nil {
		return err
	}
	// Room for all payloads is made first: a heap that has nearly its final size
	// is not collected again and again while the objects come.
	for _, b := range list {
		if b.kind == kindPayloads && b.keys == nil {
			b.payload = make([]byte, b.size)
		}
	}
	front := newAhead(list)
	var readers sync.WaitGroup
	defer readers.Wait()
	defer front.stop()
	for range min(mostReaders, runtime.GOMAXPROCS(0)+1) {
		readers.Go(func() {
			for b := front.take(); b != nil; b = front.take() {
				b.fill(in.r)
			}
		})
	}
	for i, b := range list {
		<-b.read
		if err := d.block(b); err != nil {
			return err
		}
		if b.kind != kindPayloads {
			front.give(b.room)
		}
		list[i] = nil
	}
	return nil
}

// decoder builds an image of blocks. Their checksums were right, so what it
// finds wrong was written wrong; it still must not trust it.
type decoder struct {
	open  func([]byte) (store.Codec, error)
	image *Image
	begun bool
	ended bool

	payloads []byte // of the next objects
	strings  []string
	labels   []*store.Labels
	owners   []*store.Owners
	fields   []*store.Fields
	readings []*store.Reading
	codecs   []store.Codec
	list     []*store.Reading // scratch
}

func (d *decoder) block(b *block) error {
	if b.err != nil {
		return b.err
	}
	kind, payload := b.kind, b.payload
	c := &cursor{b: payload}
	if d.ended || d.begun == (kind == kindHeader) {
		return ErrDamaged
	}
	var err error
	switch kind {
	case kindHeader:
		d.begun = true
		c.header(&d.image.Header)
	case kindTables:
		err = d.tables(c)
	case kindPayloads:
		if len(d.payloads) > 0 {
			return ErrDamaged
		}
		d.payloads, c.b = payload, nil
		d.image.Blocks = append(d.image.Blocks, payload)
	case kindObjects:
		d.objects(c)
	case kindTombstones:
		d.tombstones(c)
	case kindEnd:
		d.ended = true
		if c.uvarint() != uint64(len(d.image.Objects)) || c.uvarint() != uint64(len(d.image.Tombstones)) || len(d.payloads) > 0 {
			c.bad = true
		}
	default:
		c.bad = true
	}
	if err == nil && (c.bad || len(c.b) > 0) {
		err = ErrDamaged
	}
	return err
}

func (d *decoder) tables(c *cursor) error {
	for len(c.b) > 0 && !c.bad {
		switch c.byte() {
		case entryString:
			d.strings = append(d.strings, c.string())
		case entryLabels:
			ids := c.list(1)
			if ids%2 != 0 {
				return ErrDamaged
			}
			pairs := make([]store.Pair, ids/2)
			for i := range pairs {
				pairs[i] = store.Pair{Name: d.text(c), Value: d.text(c)}
			}
			d.labels = append(d.labels, store.NewLabels(pairs))
		case entryOwners:
			list := make([]store.Owner, c.list(4))
			for i := range list {
				list[i] = store.Owner{Kind: d.text(c), Controller: c.byte() == 1, Name: c.string(), UID: c.string()}
			}
			d.owners = append(d.owners, store.NewOwners(list))
		case entryReading:
			d.reading(c)
		case entryFields:
			d.list = d.list[:0]
			for range c.list(1) {
				r := entry(c, d.readings)
				if r == nil {
					return ErrDamaged
				}
				d.list = append(d.list, r)
			}
			d.fields = append(d.fields, store.JoinFields(d.list))
		case entryDictionary:
			content := c.bytes()
			if c.bad || d.open == nil {
				return ErrDamaged
			}
			codec, err := d.open(bytes.Clone(content))
			if err != nil {
				return fmt.Errorf("%w: %w", ErrDamaged, err)
			}
			d.codecs = append(d.codecs, codec)
		default:
			return ErrDamaged
		}
	}
	return nil
}

// reading reads a field.
func (d *decoder) reading(c *cursor) {
	fault, n := c.string(), c.list(1)
	if n == 0 {
		c.fail()
		return
	}
	f := store.Field{Name: d.text(c)}
	if fault != "" {
		f.Err = errors.New(fault)
	}
	if n > 1 {
		f.Values = make([]string, n-1)
		for i := range f.Values {
			f.Values[i] = d.text(c)
		}
	}
	d.readings = append(d.readings, store.NewReading(f))
}

func (d *decoder) objects(c *cursor) {
	for len(c.b) > 0 && !c.bad {
		o := store.ObjectConfig{
			Key: c.view(), UID: c.view(), RV: c.view(), Epoch: c.uvarint(), Sequence: c.uvarint(), Generation: c.varint(),
			Labels: entry(c, d.labels), Owners: entry(c, d.owners), Fields: entry(c, d.fields), Fault: c.view(),
			Codec: entry(c, d.codecs),
		}
		size, n := c.uvarint(), c.uvarint()
		if n > uint64(len(d.payloads)) || size > maxServed || o.Key == "" || c.bad {
			c.bad = true
			return
		}
		if n > 0 {
			o.Payload, d.payloads = d.payloads[:n:n], d.payloads[n:]
		}
		if o.Codec == nil && n != size {
			c.bad = true
			return
		}
		o.Size = int(size)
		if last := len(d.image.Objects); last > 0 && !before(d.image.Objects[last-1].Key(), o.Key) {
			c.bad = true
			return
		}
		d.image.Objects = append(d.image.Objects, store.NewObject(o))
	}
	c.bad = c.bad || len(d.payloads) > 0
}

// before reports whether one key comes before another in a store.
func before(a, b string) bool {
	x, y := store.Namespace(a), store.Namespace(b)
	return x < y || x == y && a < b
}

func (d *decoder) tombstones(c *cursor) {
	for len(c.b) > 0 && !c.bad {
		t := &store.Tombstone{
			Key: c.string(), UID: c.string(), RV: c.string(), Epoch: c.uvarint(), Sequence: c.uvarint(),
			Reason: store.Reason(c.byte()), At: c.time(),
		}
		if c.bad || t.Key == "" {
			c.bad = true
			return
		}
		d.image.Tombstones = append(d.image.Tombstones, t)
	}
}

// text reads a string by its number.
func (d *decoder) text(c *cursor) string {
	n := c.uvarint()
	if n == 0 || n > uint64(len(d.strings)) {
		c.bad = true
		return ""
	}
	return d.strings[n-1]
}

// entry reads a part that objects share by its number; zero is none.
func entry[T any](c *cursor, table []T) (v T) {
	n := c.uvarint()
	if n == 0 {
		return v
	}
	if n > uint64(len(table)) {
		c.bad = true
		return v
	}
	return table[n-1]
}

// cursor reads a block. After something it cannot read it is bad, and gives
// nothing more.
type cursor struct {
	b   []byte
	bad bool
}

func (c *cursor) header(h *Header) {
	h.Collection, h.Created, h.Facts = c.string(), c.time(), c.string()
	for _, n := range []*uint64{&h.Mark.Position.Epoch, &h.Mark.Position.Sequence, &h.Mark.Position.Term, &h.Mark.Claimed.Epoch, &h.Mark.FrozenTo, &h.Horizon} {
		*n = c.uvarint()
	}
	for _, rv := range []*delta.RV{&h.Mark.Watermark, &h.Mark.Claimed.RV, &h.Mark.Upper} {
		text := c.string()
		if text == "" {
			continue
		}
		v, err := delta.ParseRV(text)
		*rv, c.bad = v, c.bad || err != nil
	}
	h.Fresh = c.time()
	h.Terms = make([]Term, c.list(2))
	for i := range h.Terms {
		h.Terms[i] = Term{Term: c.uvarint(), First: c.uvarint()}
	}
}

func (c *cursor) fail() {
	c.b, c.bad = nil, true
}

func (c *cursor) byte() byte {
	if len(c.b) == 0 {
		c.fail()
		return 0
	}
	v := c.b[0]
	c.b = c.b[1:]
	return v
}

func (c *cursor) uvarint() uint64 {
	v, n := binary.Uvarint(c.b)
	if n <= 0 {
		c.fail()
		return 0
	}
	c.b = c.b[n:]
	return v
}

func (c *cursor) varint() int64 {
	v, n := binary.Varint(c.b)
	if n <= 0 {
		c.fail()
		return 0
	}
	c.b = c.b[n:]
	return v
}

// list reads the length of a list whose entries take at least so many bytes
// each.
func (c *cursor) list(least uint64) int {
	n := c.uvarint()
	if n > uint64(len(c.b))/least {
		c.fail()
		return 0
	}
	return int(n)
}

func (c *cursor) bytes() []byte {
	n := c.uvarint()
	if n > uint64(len(c.b)) {
		c.fail()
		return nil
	}
	v := c.b[:n:n]
	c.b = c.b[n:]
	return v
}

func (c *cursor) string() string { return string(c.bytes()) }

// view is string for who keeps nothing of it: the block is used again.
func (c *cursor) view() string {
	b := c.bytes()
	return unsafe.String(unsafe.SliceData(b), len(b))
}

func (c *cursor) time() time.Time {
	if v := c.varint(); v != 0 {
		return time.Unix(0, v)
	}
	return time.Time{}
}
