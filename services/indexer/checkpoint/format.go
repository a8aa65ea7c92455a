package checkpoint

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
)

const (
	magic = "DPINDEX\n"
	// Format is the version of what is written. Files of any other are not read:
	// what was in them is in the log.
	Format = 1

	// blockBytes is about how long a block of payloads is made.
	blockBytes = 1 << 20
	frameBytes = 1 + 4 + 4
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
	entryFields
	entryDictionary
)

// Why a file is not used.
var (
	// ErrDamaged: the file is cut, or its bytes are not those that were written.
	ErrDamaged = errors.New("checkpoint: file is damaged")
	// ErrFormat: the file is of an older or newer format, or is something else.
	ErrFormat = errors.New("checkpoint: file is of another format")
	// ErrTooLarge: the file is longer than may be read.
	ErrTooLarge = errors.New("checkpoint: file is too large")
	// ErrForeign: the file is of another collection.
	ErrForeign = errors.New("checkpoint: file is of another collection")
)

// Header is what a file says of the collection beside its objects.
type Header struct {
	// Collection is the whole name.
	Collection string
	// Created is when the log was made: a log made anew is another one.
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

// Term is a reign of a leading reflector.
type Term struct{ Term, First uint64 }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// blockWriter frames blocks.
type blockWriter struct {
	w     io.Writer
	n     uint64 // number of the next block
	bytes int64
}

func (b *blockWriter) start() error {
	return b.write(binary.LittleEndian.AppendUint16([]byte(magic), Format))
}

func (b *blockWriter) block(kind byte, payload []byte) error {
	frame := binary.LittleEndian.AppendUint32([]byte{kind}, uint32(len(payload)))
	sum := checksum(b.n, frame, payload)
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

func checksum(number uint64, frame, payload []byte) uint32 {
	sum := crc32.Update(0, castagnoli, binary.LittleEndian.AppendUint64(nil, number))
	return crc32.Update(crc32.Update(sum, castagnoli, frame), castagnoli, payload)
}

// blockReader reads blocks and their checksums. It allocates no more than is
// left of the file.
type blockReader struct {
	r    io.Reader
	left int64
	n    uint64
}

// start reads what is before the blocks.
func (b *blockReader) start() error {
	head := make([]byte, len(magic)+2)
	if err := b.read(head); err != nil {
		return err
	}
	if string(head[:len(magic)]) != magic || binary.LittleEndian.Uint16(head[len(magic):]) != Format {
		return ErrFormat
	}
	return nil
}

func (b *blockReader) next() (kind byte, payload []byte, err error) {
	frame := make([]byte, 5, frameBytes)
	if err := b.read(frame); err != nil {
		return 0, nil, err
	}
	n := int64(binary.LittleEndian.Uint32(frame[1:]))
	if n+4 > b.left {
		return 0, nil, ErrDamaged
	}
	payload = make([]byte, n+4)
	if err := b.read(payload); err != nil {
		return 0, nil, err
	}
	sum := binary.LittleEndian.Uint32(payload[n:])
	payload = payload[:n:n]
	if checksum(b.n, frame, payload) != sum {
		return 0, nil, ErrDamaged
	}
	b.n++
	return frame[0], payload, nil
}

func (b *blockReader) read(p []byte) error {
	if int64(len(p)) > b.left {
		return ErrDamaged
	}
	n, err := io.ReadFull(b.r, p)
	b.left -= int64(n)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return ErrDamaged // it was longer a moment ago
	}
	return err
}
