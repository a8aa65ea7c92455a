package extract

import (
	"errors"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/jsonscan"
)

var errTwice = errors.New("a key comes twice") // internal: such a payload is decoded instead

// span is a part of the payload.
type span struct{ from, to int }

// scan walks the payload once, from the beginning of the root object, and notes
// where the plan's values are. It goes into what the plan wants and skips the
// rest, so only a payload that is known to be JSON is understood for certain.
type scan struct {
	jsonscan.Scanner
	spans [][]span
	errs  []error
	marks [marks]span
	paths []path
}

// begin prepares for another payload.
func (s *scan) begin(payload []byte) {
	s.MaxDepth = delta.MaxDepth
	s.Reset(payload)
	s.marks = [marks]span{}
	for i := range s.spans {
		s.spans[i], s.errs[i] = s.spans[i][:0], nil
	}
}

// visit walks the value that comes next, which belongs to n.
func (s *scan) visit(n *node, depth int) error {
	c := s.Peek()
	from := s.Offset()
	var err error
	switch c {
	case '{':
		s.mismatch(n.each, depth, "an object")
		if len(n.keys) == 0 {
			_, err = s.Value()
		} else {
			err = s.object(n, depth)
		}
	case '[':
		s.fail(n.leaves, depth, "a list")
		for _, k := range n.keys {
			s.mismatch(k.node, depth, "a list")
		}
		if n.each == nil {
			_, err = s.Value()
		} else {
			err = s.Array(func() error { return s.visit(n.each, depth+1) })
		}
	default:
		if _, err = s.Value(); err != nil || c == 'n' {
			break
		}
		for _, slot := range n.leaves {
			s.spans[slot] = append(s.spans[slot], span{from, s.Offset()})
		}
		if n.each != nil || len(n.keys) > 0 {
			s.scalar(n, depth, c)
		}
	}
	if n.mark != 0 {
		s.marks[n.mark] = span{from, s.Offset()}
	}
	return err
}

// object walks the object that comes next.
func (s *scan) object(n *node, depth int) error {
	var seen [maxKeys / 64]uint64
	return s.Object(func(_ int, key []byte) error {
		k := n.key(key)
		if k == nil {
			_, err := s.Value()
			return err
		}
		word, bit := k.at/64, uint64(1)<<(k.at%64)
		if seen[word]&bit != 0 {
			return errTwice
		}
		seen[word] |= bit
		return s.visit(k.node, depth+1)
	})
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
