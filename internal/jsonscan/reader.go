package jsonscan

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// Reader goes through JSON while it arrives. It accepts and refuses what a [Scanner] that is not
// strict does with the whole text in hand. It holds one value at a time.
//
//	buf: |.. forgotten ..|mark .. value under way .. pos|.. read ahead ..|
type Reader struct {
	r         io.Reader
	buf       []byte
	mark, pos int
	gone      int64 // bytes that were in front of buf
	nesting   nesting
	err       error // why there is no more, io.EOF after a clean end
}

// NewReader returns a reader whose buffer has size bytes, and grows to fit the largest value.
func NewReader(r io.Reader, size int) *Reader { return &Reader{r: r, buf: make([]byte, 0, size)} }

// Err is why nothing more could be read; nil while that was not tried, io.EOF after a clean end.
func (r *Reader) Err() error { return r.err }

// more reads on, and moves or enlarges the buffer only when it is full.
func (r *Reader) more() bool {
	if r.err != nil {
		return false
	}
	if len(r.buf) == cap(r.buf) {
		kept := r.buf[r.mark:]
		if r.gone += int64(r.mark); len(kept) > cap(r.buf)/2 {
			r.buf = append(make([]byte, 0, 2*cap(r.buf)), kept...)
		} else {
			r.buf = r.buf[:copy(r.buf, kept)]
		}
		r.pos, r.mark = r.pos-r.mark, 0
	}
	for range 100 {
		n, err := r.r.Read(r.buf[len(r.buf):cap(r.buf)])
		r.buf, r.err = r.buf[:len(r.buf)+n], err
		if n > 0 || err != nil {
			return n > 0
		}
	}
	r.err = io.ErrNoProgress
	return false
}

// fault is an error at pos; one of the connection comes first.
func (r *Reader) fault(err error) error {
	if r.err != nil && !errors.Is(r.err, io.EOF) {
		return r.err
	}
	return fmt.Errorf("%w at %d", err, r.gone+int64(r.pos))
}

func (r *Reader) syntax(format string, args ...any) error {
	return r.fault(fmt.Errorf("%w: %s", ErrSyntax, fmt.Sprintf(format, args...)))
}

// Peek skips white space, forgets what lies behind, and returns the next byte; 0 at the end.
func (r *Reader) Peek() byte {
	for {
		for ; r.pos < len(r.buf); r.pos++ {
			if c := r.buf[r.pos]; c != ' ' && c != '\n' && c != '\t' && c != '\r' {
				r.mark = r.pos
				return c
			}
		}
		if r.mark = r.pos; !r.more() {
			return 0
		}
	}
}

func (r *Reader) expect(c byte) error {
	if r.Peek() != c {
		return r.syntax("no %q", c)
	}
	r.pos++
	return nil
}

// next is called behind an element; it reports whether another follows or closing ends the list.
func (r *Reader) next(closing byte) (bool, error) {
	switch r.Peek() {
	case ',':
		r.pos++
		return true, nil
	case closing:
		r.pos++
		return false, nil
	}
	return false, r.syntax("neither a comma nor %q", closing)
}

// Object calls fn behind the colon of each member, in order, with the key as it is written between
// its quotes; fn must consume the value.
func (r *Reader) Object(fn func(key []byte) error) error {
	if err := r.expect('{'); err != nil {
		return err
	}
	if r.Peek() == '}' {
		r.pos++
		return nil
	}
	for {
		if r.Peek() != '"' {
			return r.syntax("no key")
		}
		quoted, err := r.Value()
		if err != nil {
			return err
		}
		key := bytes.Clone(quoted[1 : len(quoted)-1])
		if err := r.expect(':'); err != nil {
			return err
		}
		if err := fn(key); err != nil {
			return err
		}
		if more, err := r.next('}'); !more || err != nil {
			return err
		}
	}
}

// Array calls fn with each element, valid until fn returns.
func (r *Reader) Array(fn func(element []byte) error) error {
	if err := r.expect('['); err != nil {
		return err
	}
	if r.Peek() == ']' {
		r.pos++
		return nil
	}
	for {
		element, err := r.Value()
		if err != nil {
			return err
		}
		if err := fn(element); err != nil {
			return err
		}
		if more, err := r.next(']'); !more || err != nil {
			return err
		}
	}
}

// Value consumes the next value and returns its text, valid until the reader is used again.
func (r *Reader) Value() ([]byte, error) {
	var err error
	switch r.Peek() {
	case '"', '{', '[':
		err = r.nested()
	default:
		err = r.literal()
	}
	if err != nil {
		return nil, err
	}
	return r.buf[r.mark:r.pos], nil
}

// End checks that nothing but white space follows, up to the end of the text.
func (r *Reader) End() error {
	if r.Peek() != 0 || r.pos < len(r.buf) || !errors.Is(r.err, io.EOF) {
		return r.syntax("text after the end")
	}
	return nil
}

func (r *Reader) literal() error {
	for {
		if r.pos += untilDelimiter(r.buf[r.pos:]); r.pos < len(r.buf) || !r.more() {
			break
		}
	}
	s := Scanner{b: r.buf[r.mark:r.pos]}
	if len(s.b) == 0 || s.literal(s.b[0]) != nil || s.i < len(s.b) {
		return r.syntax("no value")
	}
	return nil
}

// untilDelimiter is how many bytes come before one that ends a number or a word.
func untilDelimiter(b []byte) int {
	for i, c := range b {
		if c <= ' ' || c == ',' || c == '}' || c == ']' {
			return i
		}
	}
	return len(b)
}

// nested moves pos behind the string, object or array that opens there.
func (r *Reader) nested() error {
	r.nesting.begin(unbounded)
	for {
		end, err := r.nesting.follow(r.buf, r.pos)
		r.pos = end
		switch {
		case err != nil:
			return r.fault(err)
		case !r.nesting.open():
			return nil
		case !r.more():
			return r.syntax("value is not closed")
		}
	}
}
