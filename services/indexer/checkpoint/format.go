package checkpoint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/seal"
	"github.com/deltaplane/deltaplane/services/indexer/pages"
)

const (
	magic = "DPINDEX\n"
	// Format is the version of what is written. Files of any other are not read:
	// what was in them is in the log.
	Format = 5

	// encrypted is part of the format of a file whose blocks are encrypted.
	encrypted = 1 << 15

	// blockBytes is about how long a block of payloads is made.
	blockBytes = 1 << 20
	frameBytes = 1 + 4
	sumBytes   = 4
)

// The kinds of blocks.
const (
	kindHeader = iota + 1
	kindTables
	kindPayloads
	kindObjects
	kindTombstones
	kindEnd
)

// The entries of a block of tables.
const (
	entryString = iota + 1
	entryLabels
	entryOwners
	entryReading
	entryFields
	entryDictionary
)

// Why a file is not used.
var (
	// ErrDamaged: the file is cut, or its bytes are not those that were written.
	ErrDamaged = errors.New("checkpoint: file is damaged")
	// ErrFormat: the file is of an older or newer format, or is something else.
	ErrFormat = errors.New("checkpoint: file is of another format")
	// ErrPlain: the file is not encrypted, and files must be.
	ErrPlain = errors.New("checkpoint: file is not encrypted")
	// ErrEncrypted: the file is encrypted, with a key that is not there.
	ErrEncrypted = errors.New("checkpoint: file is encrypted")
	// ErrTooLarge: the file is longer than may be read.
	ErrTooLarge = errors.New("checkpoint: file is too large")
	// ErrForeign: the file is of another collection.
	ErrForeign = errors.New("checkpoint: file is of another collection")
)

// Header is what a file says of the collection beside its objects.
type Header struct {
	// Collection is the whole name.
	Collection string
	// Created is when the log was made: a log recreated is another one.
	Created time.Time
	// Facts stands for what was read from each object. Where it differs from what
	// is wanted now, objects are to be read again.
	Facts string
	// Mark is the reader's place in the log. Files are of collections that were
	// readable at it.
	Mark delta.Mark
	// Fresh is when the source was last known to be current.
	Fresh time.Time
	// Horizon is the least sequence since which no delete has been forgotten.
	Horizon uint64
	// Terms are the known terms with the lowest sequence each was seen at.
	Terms []Term
}

// Term is the term of a leading reflector.
type Term struct{ Term, First uint64 }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// blockWriter frames blocks.
type blockWriter struct {
	w      io.Writer
	n      uint64 // number of the next block
	bytes  int64
	keys   *seal.Keys // nil for a file that is not encrypted
	header []byte
}

func (b *blockWriter) start() error {
	format := uint16(Format)
	if b.keys != nil {
		format |= encrypted
	}
	return b.write(binary.LittleEndian.AppendUint16([]byte(magic), format))
}

func (b *blockWriter) block(kind byte, payload []byte) error {
	switch {
	case kind == kindHeader:
		b.header = payload
	case b.keys != nil:
		payload = b.keys.Seal(payload, about(b.header, b.n, kind))
	}
	frame := binary.LittleEndian.AppendUint32([]byte{kind}, uint32(len(payload)))
	sum := crc32.Update(checksum(b.n, frame), castagnoli, payload)
	b.n++
	if err := errors.Join(b.write(frame), b.write(payload)); err != nil {
		return err
	}
	return b.write(binary.LittleEndian.AppendUint32(nil, sum))
}

func (b *blockWriter) write(p []byte) error {
	n, err := b.w.Write(p)
	b.bytes += int64(n)
	return err
}

// about is what a block's encrypted payload belongs to.
func about(header []byte, number uint64, kind byte) []byte {
	return append(binary.LittleEndian.AppendUint64(bytes.Clone(header), number), kind)
}

// checksum begins that of a block.
func checksum(number uint64, frame []byte) uint32 {
	sum := crc32.Update(0, castagnoli, binary.LittleEndian.AppendUint64(nil, number))
	return crc32.Update(sum, castagnoli, frame)
}

// blockReader finds blocks, each behind the one before.
type blockReader struct {
	r    io.ReaderAt
	at   int64 // of the next block
	left int64
	n    uint64 // number of the next block

	keys   *seal.Keys // nil for a file that is not encrypted
	header []byte
}

// block is a block whose place is known.
type block struct {
	kind    byte
	size    int
	payload []byte // room for it, until it was read
	room    []byte // what it was read into

	keys   *seal.Keys // nil where it is not encrypted
	header []byte
	number uint64
	frame  [frameBytes]byte
	at     int64
	err    error
	read   chan struct{} // closed when payload and err are set
}

// start reads what is before the blocks.
func (b *blockReader) start() error {
	head := make([]byte, len(magic)+2)
	if err := b.take(head); err != nil {
		return err
	}
	format := binary.LittleEndian.Uint16(head[len(magic):])
	switch {
	case string(head[:len(magic)]) != magic || format&^encrypted != Format:
		return ErrFormat
	case format&encrypted == 0 && b.keys != nil:
		return ErrPlain
	case format&encrypted != 0 && b.keys == nil:
		return ErrEncrypted
	}
	return nil
}

// next finds the next block. It has still to be filled.
func (b *blockReader) next() (*block, error) {
	x := &block{number: b.n, header: b.header, read: make(chan struct{})}
	if err := b.take(x.frame[:]); err != nil {
		return nil, err
	}
	n := int64(binary.LittleEndian.Uint32(x.frame[1:]))
	x.kind, x.size, x.at = x.frame[0], int(n), b.at
	if x.kind < kindHeader || x.kind > kindEnd || n == 0 || n+sumBytes > b.left {
		return nil, ErrDamaged
	}
	if x.kind != kindHeader {
		x.keys = b.keys
	}
	b.at, b.left = b.at+n+sumBytes, b.left-n-sumBytes
	b.n++
	return x, nil
}

// Every three blocks are about as long as blockBytes, but for the last few.
const (
	shortBlocks  = 64
	blocksInEach = 4
)

// rest finds all blocks that are left. It allocates in proportion to how long
// they are in all, whatever the file says.
func (b *blockReader) rest() ([]*block, error) {
	most := shortBlocks + blocksInEach*int(b.left/blockBytes)
	var list []*block
	for b.left > 0 {
		x, err := b.next()
		if err != nil {
			return nil, err
		}
		if list = append(list, x); len(list) > most {
			return nil, ErrDamaged
		}
	}
	return list, nil
}

// take reads the next bytes.
func (b *blockReader) take(p []byte) error {
	if int64(len(p)) > b.left {
		return ErrDamaged
	}
	err := readAt(b.r, p, b.at)
	b.at, b.left = b.at+int64(len(p)), b.left-int64(len(p))
	return err
}

// pieceBytes is how much is read before it is checked: it is then still in the
// core's own cache.
const pieceBytes = 128 << 10

// fill reads a block's payload and checks it. Blocks may be filled in any order.
func (x *block) fill(r io.ReaderAt) {
	defer close(x.read)
	if cap(x.payload) < x.size {
		x.payload = make([]byte, x.size)
	}
	x.payload = x.payload[:x.size]
	x.room = x.payload
	sum := checksum(x.number, x.frame[:])
	for i := 0; i < x.size; i += pieceBytes {
		piece := x.payload[i:min(i+pieceBytes, x.size)]
		if x.kind == kindPayloads {
			pages.Populate(piece)
		}
		if x.err = readAt(r, piece, x.at+int64(i)); x.err != nil {
			return
		}
		sum = crc32.Update(sum, castagnoli, piece)
	}
	var want [sumBytes]byte
	if x.err = readAt(r, want[:], x.at+int64(x.size)); x.err == nil && binary.LittleEndian.Uint32(want[:]) != sum {
		x.err = ErrDamaged
	}
	if x.err == nil && x.keys != nil {
		x.payload, x.err = x.keys.Open(x.room, about(x.header, x.number, x.kind))
		if _, unknown := errors.AsType[*seal.UnknownKeyError](x.err); unknown {
			x.err = fmt.Errorf("%w: %w", ErrEncrypted, x.err)
		} else if x.err != nil {
			x.err = fmt.Errorf("%w: %w", ErrDamaged, x.err)
		}
	}
}

func readAt(r io.ReaderAt, p []byte, at int64) error {
	n, err := r.ReadAt(p, at)
	switch {
	case n == len(p):
		return nil
	case errors.Is(err, io.EOF):
		return ErrDamaged // it was longer a moment ago
	}
	return err
}
