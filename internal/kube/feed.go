package kube

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// feed scans JSON while it arrives. It accepts and refuses what a [walker] that is not strict does with the whole text in hand. It
// holds one value at a time.
//
//	buf: |.. forgotten ..|mark .. value under way .. pos|.. read ahead ..|
type feed struct {
	r         io.Reader
	buf       []byte
	mark, pos int
	gone      int64 // bytes that were in front of buf
	nesting   nesting
	err       error // why there is no more, io.EOF after a clean end
}

// feedSize fits most objects; a larger one makes the buffer grow.
const feedSize = 64 << 10

func newFeed(r io.Reader, size int) *feed { return &feed{r: r, buf: make([]byte, 0, size)} }

// more reads on, and moves or enlarges the buffer only when it is full.
func (f *feed) more() bool {
	if f.err != nil {
		return false
	}
	if len(f.buf) == cap(f.buf) {
		kept := f.buf[f.mark:]
		if f.gone += int64(f.mark); len(kept) > cap(f.buf)/2 {
			f.buf = append(make([]byte, 0, 2*cap(f.buf)), kept...)
		} else {
			f.buf = f.buf[:copy(f.buf, kept)]
		}
		f.pos, f.mark = f.pos-f.mark, 0
	}
	for range 100 {
		n, err := f.r.Read(f.buf[len(f.buf):cap(f.buf)])
		f.buf, f.err = f.buf[:len(f.buf)+n], err
		if n > 0 || err != nil {
			return n > 0
		}
	}
	f.err = io.ErrNoProgress
	return false
}

// fault is an error at pos; one of the connection comes first.
func (f *feed) fault(format string, args ...any) error {
	if f.err != nil && !errors.Is(f.err, io.EOF) {
		return f.err
	}
	return fmt.Errorf("%w: %s at %d", errJSON, fmt.Sprintf(format, args...), f.gone+int64(f.pos))
}

// peek skips white space, forgets what lies behind, and returns the next byte; 0 at the end.
func (f *feed) peek() byte {
	for {
		f.pos = space(f.buf, f.pos)
		f.mark = f.pos
		if f.pos < len(f.buf) {
			return f.buf[f.pos]
		}
		if !f.more() {
			return 0
		}
	}
}

func (f *feed) expect(c byte) error {
	if f.peek() != c {
		return f.fault("no %q", c)
	}
	f.pos++
	return nil
}

// next is called behind an element; it reports whether another follows, or whether closing closes the list.
func (f *feed) next(closing byte) (bool, error) {
	switch f.peek() {
	case ',':
		f.pos++
		return true, nil
	case closing:
		f.pos++
		return false, nil
	}
	return false, f.fault("neither a comma nor %q", closing)
}

// object calls fn behind the colon of each member; fn must consume the value. Key is valid until then.
func (f *feed) object(fn func(key []byte) error) error {
	if err := f.expect('{'); err != nil {
		return err
	}
	if f.peek() == '}' {
		f.pos++
		return nil
	}
	for {
		if f.peek() != '"' {
			return f.fault("no string")
		}
		quoted, err := f.value()
		if err != nil {
			return err
		}
		key := bytes.Clone(quoted[1 : len(quoted)-1])
		if err := f.expect(':'); err != nil {
			return err
		}
		if err := fn(key); err != nil {
			return err
		}
		if more, err := f.next('}'); !more || err != nil {
			return err
		}
	}
}

// array calls fn with each element, valid until fn returns.
func (f *feed) array(fn func(element []byte) error) error {
	if err := f.expect('['); err != nil {
		return err
	}
	if f.peek() == ']' {
		f.pos++
		return nil
	}
	for {
		element, err := f.value()
		if err != nil {
			return err
		}
		if err := fn(element); err != nil {
			return err
		}
		if more, err := f.next(']'); !more || err != nil {
			return err
		}
	}
}

// end checks that nothing but white space follows, up to the end of the text.
func (f *feed) end() error {
	if f.peek() != 0 || f.pos < len(f.buf) || !errors.Is(f.err, io.EOF) {
		return f.fault("text after the end")
	}
	return nil
}

// value consumes the next value and returns it, valid until the feed is used again.
func (f *feed) value() ([]byte, error) {
	var err error
	switch f.peek() {
	case '"', '{', '[':
		err = f.nested()
	default:
		err = f.literal()
	}
	return f.buf[f.mark:f.pos], err
}

func (f *feed) literal() error {
	for {
		if f.pos += literal(f.buf[f.pos:]); f.pos < len(f.buf) || !f.more() {
			break
		}
	}
	if !json.Valid(f.buf[f.mark:f.pos]) {
		return f.fault("no value")
	}
	return nil
}

// nested moves pos behind the string, object or array that opens there.
func (f *feed) nested() error {
	f.nesting.begin()
	for {
		ok := false
		f.pos, ok = f.nesting.follow(f.buf, f.pos)
		switch {
		case !ok:
			return f.fault("unexpected %q", f.buf[f.pos])
		case !f.nesting.open():
			return nil
		case !f.more():
			return f.fault("value is not closed")
		}
	}
}
