package kube

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// errJSON is wrapped by every error of the scanner.
var errJSON = errors.New("not valid JSON")

// object calls fn for each member of the object b, in order. Key is without its quotes and not unescaped; value is a slice of b.
// Members' values are only checked for balanced brackets and closed strings, except what fn looks at.
func object(b []byte, fn func(key, value []byte) error) error {
	return members(b, func(_ int, key, value []byte, _ int) error { return fn(key, value) })
}

// members is object with the offsets at which each member begins (its key's quote) and ends.
func members(b []byte, fn func(begin int, key, value []byte, end int) error) error {
	w := walker{b: b}
	err := w.object(func(begin int, key []byte) error {
		value, err := w.value()
		if err != nil {
			return err
		}
		return fn(begin, key, value, w.i)
	})
	if err != nil {
		return err
	}
	return w.end()
}

// nesting finds the end of a string, object or array by its brackets and quotes alone, also when the text comes in pieces. It looks at
// every byte once and does not recurse, however deep the text nests.
type nesting struct {
	due    []byte // closing brackets, kept for its memory
	quoted bool   // inside a string
}

func (n *nesting) begin() { n.due, n.quoted = n.due[:0], false }

func (n *nesting) open() bool { return n.quoted || len(n.due) > 0 }

// follow goes on at b[i:] and returns how far it came: behind the end of the value, when it is no longer open, or as far as b goes. It
// reports false at a bracket that closes another kind than is open. An escape of which b holds only the backslash is left for more.
func (n *nesting) follow(b []byte, i int) (int, bool) {
	for i < len(b) {
		if n.quoted {
			if i += plain(b[i:]); i == len(b) {
				break
			}
			switch {
			case b[i] == '"':
				i, n.quoted = i+1, false
			case b[i] != '\\':
				i++ // a control character, which is not looked at here
			case i+1 < len(b):
				i += 2
			default:
				return i, true
			}
		} else {
			switch c := b[i]; c {
			case '"':
				n.quoted = true
			case '{', '[':
				n.due = append(n.due, c+2) // in ASCII, the closing one
			case '}', ']':
				last := len(n.due) - 1
				if n.due[last] != c {
					return i, false
				}
				n.due = n.due[:last]
			}
			i++
		}
		if !n.open() {
			break
		}
	}
	return i, true
}

func space(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// literal is how many bytes come before one that ends a number or a word.
func literal(b []byte) int {
	for i, c := range b {
		if c <= ' ' || c == ',' || c == '}' || c == ']' {
			return i
		}
	}
	return len(b)
}

// unquote reads a JSON string.
func unquote(v []byte) (string, error) {
	if len(v) >= 2 && v[0] == '"' && v[len(v)-1] == '"' && bytes.IndexByte(v, '\\') < 0 {
		return string(v[1 : len(v)-1]), nil
	}
	var s string
	if err := json.Unmarshal(v, &s); err != nil {
		return "", fmt.Errorf("%w: want a string", errJSON)
	}
	return s, nil
}
