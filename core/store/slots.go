package store

import "math/bits"

// slots gives out slot ids, the lowest free one first, so that what is kept by
// id stays dense after a burst. It is the writer's own.
type slots struct {
	used bitset
	hint int // no word before it has a free id
	n    int
}

func (s *slots) take() uint32 {
	for s.hint < len(s.used) && s.used[s.hint] == ^uint64(0) {
		s.hint++
	}
	id := uint32(s.hint) << 6
	if s.hint < len(s.used) {
		id += uint32(bits.TrailingZeros64(^s.used[s.hint]))
	}
	s.used.add(id)
	s.n++
	return id
}

func (s *slots) give(id uint32) {
	s.used.del(id)
	s.n--
	s.hint = min(s.hint, int(id>>6))
	n := len(s.used)
	for n > 0 && s.used[n-1] == 0 {
		n--
	}
	if s.used = s.used[:n]; cap(s.used) > 4*n+1024 {
		s.used = append(make(bitset, 0, n), s.used...)
	}
}
