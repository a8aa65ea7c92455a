package store

import (
	"sync/atomic"
	"unsafe"

	"github.com/deltaplane/deltaplane/core/delta"
)

// shared counts the live objects that have a set of facts, so that its memory
// is counted once.
type shared struct {
	refs atomic.Int32
	size int32 // about what the set takes
}

// count returns by how much memory grows when an object comes or goes.
func (s *shared) count(sign int) int {
	switch n := s.refs.Add(int32(sign)); {
	case sign > 0 && n == 1:
		return int(s.size)
	case sign < 0 && n == 0:
		return -int(s.size)
	}
	return 0
}

// sums are kept up with every object that comes or goes.
type sums struct {
	served, stored int // lengths of payloads
	keys, facts    int // memory of keys and of labels, owners and fields
	digest         delta.Digest
}

func (s *sums) add(o *Object, sign int) {
	s.digest += delta.Digest(sign) * o.digest()
	s.served += sign * o.Size()
	s.stored += sign * o.StoredSize()
	s.keys += sign * (keyHead + int(o.key.n) + 4) // 4 is about what size classes waste
	if o.labels != nil {
		s.facts += o.labels.count(sign)
	}
	if o.owners != nil {
		s.facts += o.owners.count(sign)
	}
	if o.fields != nil {
		s.facts += o.fields.count(sign)
	}
}

// Memory is about how many bytes the snapshot takes, the stored payloads
// included: within a tenth or so. What other snapshots and the ring of changes
// hold beside it is not counted.
func (s *Snapshot) Memory() int {
	n := s.sums.stored + s.sums.keys + s.sums.facts + s.keys.len()*int(unsafe.Sizeof(Object{})) + s.keys.bytes() + s.faulty.bytes() +
		s.keyring.bytes(s.keys.len()) + s.objects.bytes(s.keys.len()) + s.tombs.n*250
	for _, x := range s.indexes {
		n += x.memory()
	}
	return n
}
