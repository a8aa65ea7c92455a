package delta

import (
	"crypto/sha256"
	"encoding/binary"
	"hash/crc32"
)

// Hash is the content hash of a payload: 64 bits that are equal for equal bytes on every machine,
// never 0, and hard to collide on purpose, because an update with the hash of the version before it
// is dropped as a no-op.
func Hash(payload []byte) uint64 {
	sum := sha256.Sum256(payload)
	return max(binary.BigEndian.Uint64(sum[:8]), 1)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum is the CRC-32C of a payload. Readers find out by it that bytes were damaged, in a tenth
// of the time that [Hash] takes. It is 0 for an empty payload and, once in 4 billion, for another
// one: then the hash has to do.
func Checksum(payload []byte) uint32 { return crc32.Checksum(payload, castagnoli) }

// Intact reports whether the payload is the one that was published, by the checksum or, in records
// that have none, by the hash; a record without either says nothing of its payload.
func (r *Record) Intact() bool {
	switch {
	case r.Checksum != 0:
		return Checksum(r.Payload) == r.Checksum
	case r.Hash != 0:
		return Hash(r.Payload) == r.Hash
	}
	return true
}
