package jsonscan

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
)

const unbounded = math.MaxInt

// nesting is a stack of the brackets that are open, a bit for each: 1 is an object. It also finds
// the end of a string, object or array by brackets and quotes alone, when the text comes in pieces
// too.
type nesting struct {
	depth  int
	room   int      // the greatest depth
	kinds  uint64   // of the innermost, the last one lowest
	outer  []uint64 // of those around them, 64 in each: most texts need none, and no memory
	quoted bool     // inside a string
}

func (n *nesting) begin(room int) { n.depth, n.room, n.quoted = 0, room, false }

func (n *nesting) open() bool { return n.quoted || n.depth > 0 }

// kind is the bit of a bracket, which in ASCII is that of both its ends.
func kind(bracket byte) uint64 { return uint64(bracket >> 5 & 1) }

// push reports false when there is no room.
func (n *nesting) push(opening byte) bool {
	if n.depth >= n.room {
		return false
	}
	if n.depth&63 == 0 && n.depth > 0 {
		n.outer = append(n.outer[:n.depth>>6-1], n.kinds)
	}
	n.kinds = n.kinds<<1 | kind(opening)
	n.depth++
	return true
}

// pop reports false when another bracket is due than closing; the stack must not be empty.
func (n *nesting) pop(closing byte) bool {
	if n.kinds&1 != kind(closing) {
		return false
	}
	n.kinds >>= 1
	n.depth--
	if n.depth&63 == 0 && n.depth > 0 {
		n.kinds = n.outer[n.depth>>6-1]
	}
	return true
}

// due is the closing bracket that comes next.
func (n *nesting) due() byte {
	if n.kinds&1 == 1 {
		return '}'
	}
	return ']'
}

// structural are the bytes outside of strings that follow does something about.
var structural = [256]bool{'"': true, '{': true, '[': true, '}': true, ']': true}

// follow goes on at b[i:], at an opening quote or bracket or in what it opened. It returns how far
// it came: behind the end of the value, when that is no longer open, or as far as b goes. An escape
// of which b holds only the backslash is left for more.
func (n *nesting) follow(b []byte, i int) (int, error) {
	if n.quoted {
		if i, n.quoted = closing(b, i); n.quoted || n.depth == 0 {
			return i, nil
		}
	}
	for i < len(b) {
		c := b[i]
		if !structural[c] {
			i++
			continue
		}
		switch i++; c {
		case '"':
			if i, n.quoted = closing(b, i); n.quoted || n.depth == 0 {
				return i, nil
			}
		case '{', '[':
			if !n.push(c) {
				return i - 1, ErrDepth
			}
		default:
			if !n.pop(c) {
				return i - 1, fmt.Errorf("%w: unexpected %q", ErrSyntax, c)
			}
			if n.depth == 0 {
				return i, nil
			}
		}
	}
	return i, nil
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// plain is how many bytes come before the first quote, backslash or control character. It looks at
// eight at a time: the lowest bit found is exact, those above it may be borrowed.
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

// closing goes on in a string at b[i:], up to behind its closing quote. When that is not in b, open
// is true, and the string goes on where it stopped: at the end of b, or before a backslash there.
// It looks at less than plain does, and is quicker for it.
func closing(b []byte, i int) (end int, open bool) {
	for {
		for i+8 <= len(b) {
			x := binary.LittleEndian.Uint64(b[i:])
			quote, slash := x^(ones*'"'), x^(ones*'\\')
			if found := (((quote - ones) &^ quote) | ((slash - ones) &^ slash)) & highs; found != 0 {
				i += bits.TrailingZeros64(found) / 8
				break
			}
			i += 8
		}
		if i >= len(b) {
			return i, true
		}
		switch b[i] {
		case '"':
			return i + 1, false
		case '\\':
			if i++; i == len(b) {
				return i - 1, true
			}
		}
		i++
	}
}
