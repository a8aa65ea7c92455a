package extract

import (
	"encoding/binary"
	"errors"
	"math/bits"

	"github.com/deltaplane/deltaplane/core/delta"
)

var (
	errCut   = errors.New("payload ends or breaks off inside a value")
	errTwice = errors.New("a key comes twice") // internal: such a payload is decoded instead
)

// span is a part of the payload.
type span struct{ from, to int }

// scan walks the payload once, from the beginning of the root object, and notes
// where the plan's values are. It goes into what the plan wants and skips the
// rest by its quotes and brackets alone, so only a payload that is known to be
// JSON is understood for certain; no other makes it read outside or panic.
type scan struct {
	b     []byte
	i     int
	depth int
	spans [][]span
	errs  []error
	marks [marks]span
	paths []path
}

// space is how many bytes at i are white space.
func (s *scan) space() {
	for s.i < len(s.b) && s.b[s.i] <= ' ' {
		s.i++
	}
}

// visit walks the value at i, which belongs to n.
func (s *scan) visit(n *node, depth int) error {
	if s.i >= len(s.b) {
		return errCut
	}
	from := s.i
	var err error
	switch c := s.b[s.i]; c {
	case '{':
		s.mismatch(n.each, depth, "an object")
		if len(n.keys) == 0 {
			err = s.skip()
		} else {
			err = s.object(n, depth)
		}
	case '[':
		s.fail(n.leaves, depth, "a list")
		for _, k := range n.keys {
			s.mismatch(k.node, depth, "a list")
		}
		if n.each == nil {
			err = s.skip()
		} else {
			err = s.list(n, depth)
		}
	default:
		if err = s.skip(); err != nil || c == 'n' {
			break
		}
		for _, slot := range n.leaves {
			s.spans[slot] = append(s.spans[slot], span{from, s.i})
		}
		if n.each != nil || len(n.keys) > 0 {
			s.scalar(n, depth, c)
		}
	}
	if n.mark != 0 {
		s.marks[n.mark] = span{from, s.i}
	}
	return err
}

func (s *scan) scalar(n *node, depth int, c byte) {
	kind := "a number"
	switch c {
	case '"':
		kind = "a string"
	case 't', 'f':
		kind = "a boolean"
	}
	s.mismatch(n.each, depth, kind)
	for _, k := range n.keys {
		s.mismatch(k.node, depth, kind)
	}
}

// mismatch fails every path through n.
func (s *scan) mismatch(n *node, depth int, kind string) {
	if n != nil {
		s.fail(n.through, depth, kind)
	}
}

func (s *scan) fail(slots []int, depth int, kind string) {
	for _, slot := range slots {
		if s.errs[slot] == nil {
			s.errs[slot] = s.paths[slot].Mismatch(depth, kind)
		}
	}
}

// object walks the object at i.
func (s *scan) object(n *node, depth int) error {
	if s.depth++; s.depth > delta.MaxDepth {
		return errTooDeep
	}
	s.i++
	s.space()
	if s.i < len(s.b) && s.b[s.i] == '}' {
		s.i++
		s.depth--
		return nil
	}
	var seen [maxKeys / 64]uint64
	for {
		if s.i >= len(s.b) || s.b[s.i] != '"' {
			return errCut
		}
		from := s.i
		escaped, ok := s.str()
		if !ok {
			return errCut
		}
		k := n.key(s.b[from:s.i], escaped)
		s.space()
		if s.i >= len(s.b) || s.b[s.i] != ':' {
			return errCut
		}
		s.i++
		s.space()
		var err error
		if k == nil {
			err = s.skip()
		} else {
			word, bit := k.at/64, uint64(1)<<(k.at%64)
			if seen[word]&bit != 0 {
				return errTwice
			}
			seen[word] |= bit
			err = s.visit(k.node, depth+1)
		}
		if err != nil {
			return err
		}
		more, err := s.next('}')
		if err != nil || !more {
			return err
		}
	}
}

// list walks the list at i.
func (s *scan) list(n *node, depth int) error {
	if s.depth++; s.depth > delta.MaxDepth {
		return errTooDeep
	}
	s.i++
	s.space()
	if s.i < len(s.b) && s.b[s.i] == ']' {
		s.i++
		s.depth--
		return nil
	}
	for {
		if err := s.visit(n.each, depth+1); err != nil {
			return err
		}
		more, err := s.next(']')
		if err != nil || !more {
			return err
		}
	}
}

// next goes over the comma to the next element, or over the end.
func (s *scan) next(end byte) (more bool, err error) {
	s.space()
	if s.i >= len(s.b) {
		return false, errCut
	}
	c := s.b[s.i]
	s.i++
	switch c {
	case ',':
		s.space()
		return true, nil
	case end:
		s.depth--
		return false, nil
	}
	return false, errCut
}

const (
	ones   = 0x0101010101010101
	highs  = 0x8080808080808080
	quotes = '"' * ones
	slants = '\\' * ones
)

// str goes over the string at i and tells whether it holds a backslash.
func (s *scan) str() (escaped, ok bool) {
	end, escaped := stringEnd(s.b, s.i)
	if end < 0 {
		return false, false
	}
	s.i = end
	return escaped, true
}

// stringEnd is where the string that begins at i ends, -1 if it does not.
func stringEnd(b []byte, i int) (end int, escaped bool) {
	i++
	for {
		for i+8 <= len(b) {
			w := binary.LittleEndian.Uint64(b[i:])
			q, e := w^quotes, w^slants
			// The lowest byte that is zero in q or e is found exactly.
			if m := ((q-ones)&^q | (e-ones)&^e) & highs; m != 0 {
				i += bits.TrailingZeros64(m) >> 3
				break
			}
			i += 8
		}
		if i >= len(b) {
			return -1, false
		}
		switch b[i] {
		case '"':
			return i + 1, escaped
		case '\\':
			escaped = true
			i++
		}
		i++
	}
}

// structural marks the bytes at which skip does something.
var structural = [256]bool{'"': true, '{': true, '[': true, '}': true, ']': true}

// skip goes over the value at i.
func (s *scan) skip() error {
	if s.i >= len(s.b) {
		return errCut
	}
	switch s.b[s.i] {
	case '"':
		if _, ok := s.str(); !ok {
			return errCut
		}
		return nil
	case '{', '[':
		return s.skipNested()
	}
	from := s.i
	for s.i < len(s.b) {
		if c := s.b[s.i]; c <= ' ' || c == ',' || c == '}' || c == ']' {
			break
		}
		s.i++
	}
	if s.i == from {
		return errCut
	}
	return nil
}

func (s *scan) skipNested() error {
	b, i, depth := s.b, s.i, s.depth
	for i < len(b) {
		c := b[i]
		if !structural[c] {
			i++
			continue
		}
		switch c {
		case '"':
			if i, _ = stringEnd(b, i); i < 0 {
				return errCut
			}
			continue
		case '{', '[':
			if depth++; depth > delta.MaxDepth {
				return errTooDeep
			}
		default:
			depth--
		}
		i++
		if depth == s.depth {
			s.i = i
			return nil
		}
	}
	return errCut
}
