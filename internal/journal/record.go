// Package journal keeps append-only logs of records in files.
//
// A record is four bytes that name the format, the length of its body, the
// CRC-32C of the body, and the body. A file is written aside and renamed, so
// it always begins with a whole record. Reading ends at the first record that
// is not whole. When no whole record follows, a crash tore the end off in the
// middle of an append: nobody was notified that it succeeded, and it does not
// count. When one does follow, the file is damaged, and [End] says so.
package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
)

var (
	// ErrFormat says that a file does not begin with a record of the format.
	ErrFormat = errors.New("not a log of this format")
	// ErrDamaged says that a whole record follows one that cannot be read.
	ErrDamaged = errors.New("log is damaged")
)

// Format names what a file holds, and its version: four bytes, of which the
// first should be in no text. They begin every record, so that no file is
// taken for one of another format and the next record is found behind a
// damaged one.
type Format string

const (
	formatLen = 4
	headLen   = formatLen + 8
	maxBody   = math.MaxInt32
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Append appends a record to b whose body is what body appends. Without a body,
// or with one of 2 GiB or more, b stays as it was.
func (f Format) Append(b []byte, body func([]byte) []byte) ([]byte, error) {
	start := len(b)
	b = append(b, f...)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0)
	b = body(b)
	rec := b[start:]
	n := len(rec) - headLen
	if n < 1 || n > maxBody {
		return b[:start], fmt.Errorf("a record cannot have %d bytes", n)
	}
	binary.LittleEndian.PutUint32(rec[formatLen:], uint32(n))
	binary.LittleEndian.PutUint32(rec[formatLen+4:], crc32.Checksum(rec[headLen:], castagnoli))
	return b, nil
}

// length is that of the body behind a head, zero when the head is none.
func (f Format) length(head []byte) int64 {
	n := binary.LittleEndian.Uint32(head[formatLen:])
	if string(head[:formatLen]) != string(f) || n > maxBody {
		return 0
	}
	return int64(n)
}

// fits says whether a body has the checksum in a head.
func fits(head, body []byte) bool {
	return crc32.Checksum(body, castagnoli) == binary.LittleEndian.Uint32(head[formatLen+4:])
}
