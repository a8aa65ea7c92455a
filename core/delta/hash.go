package delta

import (
	"crypto/sha256"
	"encoding/binary"
)

// Hash is the content hash of a payload: 64 bits that are equal for equal bytes on every machine, never 0, and hard to
// collide on purpose, because an update with the hash of the version before it is dropped as a no-op.
func Hash(payload []byte) uint64 {
	sum := sha256.Sum256(payload)
	return max(binary.BigEndian.Uint64(sum[:8]), 1)
}
