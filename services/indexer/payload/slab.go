package payload

import (
	"cmp"
	"iter"
	"slices"
	"sync"
	"unsafe"
	"weak"

	"github.com/deltaplane/deltaplane/services/indexer/pages"
)

const (
	// A slab's segments grow from least to most, so that a collection of ten
	// objects does not take a megabyte.
	leastSegment = 16 << 10
	mostSegment  = 1 << 20
	// sparseBelow is the share of a segment that must be in use; with less, the
	// rest is worth moving.
	sparseBelow = 0.5
	// loneAbove is the size from which a payload gets a segment of its own, so
	// that little is left unused at the end of the others.
	loneAbove = mostSegment / 8
)

// Slab stores byte strings side by side. The zero value is ready. It is safe
// for concurrent use, and what it returned may be read at any time.
type Slab struct {
	mu       sync.Mutex // guards the rest
	free     []byte     // of the segment being filled
	next     int        // size of the next segment
	segments []segment  // which the slab does not keep alive, but for the one being filled
	scanned  int        // len(segments) after the last look for dead ones
}

type segment struct {
	first weak.Pointer[byte]
	size  int
}

// Put copies a payload and returns the copy, which must not be changed; it has no
// spare capacity.
func (s *Slab) Put(payload []byte) []byte {
	if len(payload) == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.take(len(payload))
	copy(p, payload)
	return p
}

// take returns n bytes that nobody has.
func (s *Slab) take(n int) []byte {
	if n > loneAbove {
		return s.grow(n)
	}
	if n > len(s.free) {
		s.next = min(max(2*s.next, 4*n, leastSegment), mostSegment)
		s.free = s.grow(s.next)
	}
	p := s.free[:n:n]
	s.free = s.free[n:]
	return p
}

// Adopt makes a buffer that holds nothing but payloads one of the slab's
// segments.
func (s *Slab) Adopt(buf []byte) {
	if len(buf) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.segments = append(s.segments, segment{weak.Make(unsafe.SliceData(buf)), len(buf)})
}

// grow makes a segment.
func (s *Slab) grow(size int) []byte {
	buf := make([]byte, size)
	pages.Large(buf)
	if len(s.segments) >= 2*s.scanned+64 {
		s.reclaim()
	}
	s.segments = append(s.segments, segment{weak.Make(unsafe.SliceData(buf)), size})
	return buf
}

// reclaim forgets segments that nothing points into.
func (s *Slab) reclaim() {
	s.segments = slices.DeleteFunc(s.segments, func(g segment) bool { return g.first.Value() == nil })
	s.scanned = len(s.segments)
}

// Size is how many bytes the segments take that are still pointed into, as of
// the last garbage collection.
func (s *Slab) Size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reclaim()
	n := 0
	for _, g := range s.segments {
		n += g.size
	}
	return n
}

// Sparse returns a function that tells whether a payload should be put again
// because little else is left of its segment, or nil when no segment is
// sparse. Live are all payloads in use; those of other origin are ignored. When
// the payloads it names have been replaced, their segments are free.
func (s *Slab) Sparse(live iter.Seq[[]byte]) func(payload []byte) bool {
	s.mu.Lock()
	s.reclaim()
	spans := make([]span, 0, len(s.segments))
	filling := uintptr(unsafe.Pointer(unsafe.SliceData(s.free)))
	for _, g := range s.segments {
		if p := g.first.Value(); p != nil {
			at := uintptr(unsafe.Pointer(p))
			spans = append(spans, span{first: at, end: at + uintptr(g.size), filling: at <= filling && filling < at+uintptr(g.size)})
		}
	}
	s.mu.Unlock()
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.first, b.first) })
	for p := range live {
		if g := find(spans, p); g != nil {
			g.used += len(p)
		}
	}
	sparse := slices.DeleteFunc(spans, func(g span) bool {
		return g.filling || g.used == 0 || float64(g.used) >= sparseBelow*float64(g.end-g.first)
	})
	if len(sparse) == 0 {
		return nil
	}
	return func(p []byte) bool { return find(sparse, p) != nil }
}

// span is where a segment was when it was looked at. Go does not move what it
// has allocated; should the segment die, its place may hold something else,
// and then that is put again for nothing.
type span struct {
	first, end uintptr
	used       int
	filling    bool
}

func find(spans []span, p []byte) *span {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(p)))
	i, ok := slices.BinarySearchFunc(spans, at, func(g span, at uintptr) int { return cmp.Compare(g.first, at) })
	if !ok {
		i--
	}
	if i < 0 || at >= spans[i].end {
		return nil
	}
	return &spans[i]
}
