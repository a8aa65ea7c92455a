package kube

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/bits"

	"github.com/deltaplane/deltaplane/core/delta"
)

// walker goes through JSON and looks at each byte once. A strict one accepts exactly what [json.Valid] does, down to [delta.MaxDepth]; one that
// is not only asks for balanced brackets and closed strings in the values it passes.
type walker struct {
	b      []byte
	i      int
	strict bool
	depth  int    // of the objects that are walked through
	stack  []byte // closing brackets due, kept for its memory
}

func (w *walker) fault(format string, args ...any) error {
	return fmt.Errorf("%w: %s at %d", errJSON, fmt.Sprintf(format, args...), w.i)
}

// peek skips white space and returns the next byte; 0 at the end.
func (w *walker) peek() byte {
	for ; w.i < len(w.b); w.i++ {
		if c := w.b[w.i]; c > ' ' || c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			return c
		}
	}
	return 0
}

// object calls fn with the offset and text of each key, in order, behind its colon; fn must consume the value. Keys are without their
// quotes and not unescaped.
func (w *walker) object(fn func(begin int, key []byte) error) error {
	if w.peek() != '{' {
		return w.fault("no object")
	}
	w.i++
	if w.peek() == '}' {
		w.i++
		return nil
	}
	w.depth++
	defer func() { w.depth-- }()
	for {
		if w.peek() != '"' {
			return w.fault("no key")
		}
		begin := w.i
		if err := w.text(); err != nil {
			return err
		}
		key := w.b[begin+1 : w.i-1]
		if w.peek() != ':' {
			return w.fault("no colon")
		}
		w.i++
		if err := fn(begin, key); err != nil {
			return err
		}
		switch w.peek() {
		case ',':
			w.i++
		case '}':
			w.i++
			return nil
		default:
			return w.fault("object is not closed")
		}
	}
}

// end checks that nothing but white space follows.
func (w *walker) end() error {
	if w.peek(); w.i < len(w.b) {
		return w.fault("text after the end")
	}
	return nil
}

// value consumes the next value and returns it.
func (w *walker) value() ([]byte, error) {
	if !w.strict {
		return w.loose()
	}
	w.peek()
	begin := w.i
	err := w.check()
	return w.b[begin:w.i], err
}

// loose consumes the next value, of which it only sees where it ends.
func (w *walker) loose() ([]byte, error) {
	c := w.peek()
	begin := w.i
	if c != '"' && c != '{' && c != '[' {
		w.i += literal(w.b[begin:])
		if !json.Valid(w.b[begin:w.i]) {
			return nil, w.fault("no value")
		}
		return w.b[begin:w.i], nil
	}
	n, ok := nesting{due: w.stack[:0]}, false
	w.i, ok = n.follow(w.b, begin)
	w.stack = n.due
	switch {
	case !ok:
		return nil, w.fault("unexpected %q", w.b[w.i])
	case n.open():
		return nil, w.fault("value is not closed")
	}
	return w.b[begin:w.i], nil
}

// check consumes a valid value.
func (w *walker) check() error {
	w.stack = w.stack[:0]
	for {
		// A value is due.
		var err error
		switch c := w.peek(); c {
		case '{', '[':
			if w.depth+len(w.stack) == delta.MaxDepth {
				return w.fault("nested too deep")
			}
			w.i++
			closing := c + 2 // in ASCII, the closing one
			if w.peek() == closing {
				w.i++
				break
			}
			w.stack = append(w.stack, closing)
			if c == '{' {
				if err := w.key(); err != nil {
					return err
				}
			}
			continue
		case '"':
			err = w.text()
		case 't':
			err = w.word("true")
		case 'f':
			err = w.word("false")
		case 'n':
			err = w.word("null")
		default:
			err = w.number()
		}
		if err != nil {
			return err
		}
		// A value is complete.
		for {
			last := len(w.stack) - 1
			if last < 0 {
				return nil
			}
			c := w.peek()
			if c == w.stack[last] {
				w.i++
				w.stack = w.stack[:last]
				continue
			}
			if c != ',' {
				return w.fault("neither a comma nor %q", w.stack[last])
			}
			w.i++
			if w.stack[last] == '}' {
				if err := w.key(); err != nil {
					return err
				}
			}
			break
		}
	}
}

func (w *walker) key() error {
	if w.peek() != '"' {
		return w.fault("no key")
	}
	if err := w.text(); err != nil {
		return err
	}
	if w.peek() != ':' {
		return w.fault("no colon")
	}
	w.i++
	return nil
}

func (w *walker) word(want string) error {
	if end := w.i + len(want); end > len(w.b) || string(w.b[w.i:end]) != want {
		return w.fault("no value")
	}
	w.i += len(want)
	return nil
}

func (w *walker) number() error {
	if w.i < len(w.b) && w.b[w.i] == '-' {
		w.i++
	}
	if w.i < len(w.b) && w.b[w.i] == '0' {
		w.i++
	} else if !w.digits() {
		return w.fault("no value")
	}
	if w.i < len(w.b) && w.b[w.i] == '.' {
		w.i++
		if !w.digits() {
			return w.fault("no digit")
		}
	}
	if w.i < len(w.b) && w.b[w.i]|0x20 == 'e' {
		w.i++
		if w.i < len(w.b) && (w.b[w.i] == '+' || w.b[w.i] == '-') {
			w.i++
		}
		if !w.digits() {
			return w.fault("no digit")
		}
	}
	return nil
}

func (w *walker) digits() bool {
	begin := w.i
	for w.i < len(w.b) && w.b[w.i]-'0' <= 9 {
		w.i++
	}
	return w.i > begin
}

// text consumes the string that opens here.
func (w *walker) text() error {
	i := w.i + 1
	for {
		i += plain(w.b[min(i, len(w.b)):]) // an escape may have been cut off
		if i >= len(w.b) {
			return w.fault("string is not closed")
		}
		switch c := w.b[i]; {
		case c == '"':
			w.i = i + 1
			return nil
		case c == '\\':
			n := 2
			if w.strict {
				n = escape(w.b[i:])
			}
			if n == 0 {
				return w.fault("string holds a bad escape")
			}
			i += n
		case w.strict: // a control character
			return w.fault("string holds a control character")
		default:
			i++
		}
	}
}

// escape is the length of the escape that begins b; 0 when it is none.
func escape(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		for i := 2; i < 6; i++ {
			if i >= len(b) || !hexDigit(b[i]) {
				return 0
			}
		}
		return 6
	}
	return 0
}

func hexDigit(c byte) bool {
	return c-'0' <= 9 || (c|0x20)-'a' <= 5
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// plain is how many bytes come before the first quote, backslash or control character. It looks at eight at a time: the lowest bit
// found is exact, those above it may be borrowed.
func plain(b []byte) int {
	i := 0
	for ; i+8 <= len(b); i += 8 {
		x := binary.LittleEndian.Uint64(b[i:])
		quote, slash := x^(ones*'"'), x^(ones*'\\')
		found := ((x - ones*' ') &^ x) | ((quote - ones) &^ quote) | ((slash - ones) &^ slash)
		if found &= highs; found != 0 {
			return i + bits.TrailingZeros64(found)/8
		}
	}
	for ; i < len(b); i++ {
		if c := b[i]; c < ' ' || c == '"' || c == '\\' {
			break
		}
	}
	return i
}
