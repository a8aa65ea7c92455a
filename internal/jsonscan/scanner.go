package jsonscan

import (
	"errors"
	"fmt"
)

var (
	// ErrSyntax is wrapped by every error about text that is not JSON.
	ErrSyntax = errors.New("not valid JSON")
	// ErrDepth is wrapped by the errors about text that nests deeper than is allowed.
	ErrDepth = errors.New("JSON nests too deep")
)

// Scanner goes through one text and looks at each byte once. After an error it is of no further
// use until Reset. It is for one goroutine; it never changes the text.
type Scanner struct {
	// Strict validates what is passed. Otherwise values are only checked for brackets that
	// match and strings that end.
	Strict bool
	// MaxDepth is how deep objects and arrays may nest; zero means that there is no bound.
	MaxDepth int

	b       []byte
	i       int
	depth   int // of the objects and arrays that callbacks are in
	nesting nesting
}

// Over returns a scanner of b that is not strict.
func Over(b []byte) Scanner { return Scanner{b: b} }

// Reset starts over, with another text.
func (s *Scanner) Reset(b []byte) { s.b, s.i, s.depth = b, 0, 0 }

// Text is the text that is scanned.
func (s *Scanner) Text() []byte { return s.b }

// Offset is where the scanner is in its text.
func (s *Scanner) Offset() int { return s.i }

// Peek skips white space and returns the next byte; 0 at the end.
func (s *Scanner) Peek() byte {
	if s.i < len(s.b) && s.b[s.i] > ' ' {
		return s.b[s.i]
	}
	return s.space()
}

func (s *Scanner) space() byte {
	for ; s.i < len(s.b); s.i++ {
		if c := s.b[s.i]; c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			return c
		}
	}
	return 0
}

// Object calls fn behind the colon of each member, in order, with the offset of the key's opening
// quote, and the key as it is written between its quotes. Fn must consume the value, by Value,
// Object or Array. Its errors are returned as they are.
func (s *Scanner) Object(fn func(begin int, key []byte) error) error {
	if empty, err := s.enter('{', '}'); empty || err != nil {
		return err
	}
	for {
		begin, err := s.key()
		if err != nil {
			return err
		}
		end := s.i - 1
		if err := s.colon(); err != nil {
			return err
		}
		if err := fn(begin, s.b[begin+1:end]); err != nil {
			return err
		}
		if more, err := s.next('}'); !more || err != nil {
			return err
		}
	}
}

// Array calls fn before each element, in order. Fn must consume it, as that of Object must.
func (s *Scanner) Array(fn func() error) error {
	if empty, err := s.enter('[', ']'); empty || err != nil {
		return err
	}
	for {
		if err := fn(); err != nil {
			return err
		}
		if more, err := s.next(']'); !more || err != nil {
			return err
		}
	}
}

// Value consumes the next value and returns it as it is written.
func (s *Scanner) Value() ([]byte, error) {
	c := s.Peek()
	begin := s.i
	var err error
	switch {
	case s.Strict:
		err = s.check()
	case c == '"':
		err = s.text()
	case c == '{' || c == '[':
		err = s.skip(s.room())
	default:
		err = s.literal(c)
	}
	if err != nil {
		return nil, err
	}
	return s.b[begin:s.i], nil
}

// Skip consumes the next value as a scanner does that is not strict, however deep it nests.
func (s *Scanner) Skip() error {
	switch c := s.Peek(); c {
	case '"', '{', '[':
		return s.skip(unbounded)
	default:
		return s.literal(c)
	}
}

// End checks that nothing but white space follows.
func (s *Scanner) End() error {
	if s.Peek(); s.i < len(s.b) {
		return s.fault("text after the end")
	}
	return nil
}

// skip goes over the string, object or array that opens here.
func (s *Scanner) skip(room int) error {
	s.nesting.begin(room)
	end, err := s.nesting.follow(s.b, s.i)
	if s.i = end; err != nil {
		return fmt.Errorf("%w at %d", err, s.i)
	}
	if s.nesting.open() {
		return s.fault("value is not closed")
	}
	return nil
}

// room is how many levels may still open.
func (s *Scanner) room() int {
	if s.MaxDepth == 0 {
		return unbounded
	}
	return s.MaxDepth - s.depth
}

// enter goes behind the bracket that opens an object or array; empty is true when it closes at
// once, and was left again.
func (s *Scanner) enter(opening, closing byte) (empty bool, err error) {
	switch {
	case s.Peek() != opening:
		return false, s.fault("no %q", opening)
	case s.room() <= 0:
		return false, s.tooDeep()
	}
	s.i++
	if s.Peek() == closing {
		s.i++
		return true, nil
	}
	s.depth++
	return false, nil
}

// next goes over the comma to the next member or element, or over the end.
func (s *Scanner) next(closing byte) (more bool, err error) {
	switch s.Peek() {
	case ',':
		s.i++
		return true, nil
	case closing:
		s.i++
		s.depth--
		return false, nil
	}
	return false, s.fault("neither a comma nor %q", closing)
}

// key goes over a key and returns where it begins.
func (s *Scanner) key() (begin int, err error) {
	if s.Peek() != '"' {
		return 0, s.fault("no key")
	}
	begin = s.i
	return begin, s.text()
}

func (s *Scanner) colon() error {
	if s.Peek() != ':' {
		return s.fault("no colon")
	}
	s.i++
	return nil
}

func (s *Scanner) fault(format string, args ...any) error {
	return fmt.Errorf("%w: %s at %d", ErrSyntax, fmt.Sprintf(format, args...), s.i)
}

func (s *Scanner) tooDeep() error { return fmt.Errorf("%w at %d", ErrDepth, s.i) }
