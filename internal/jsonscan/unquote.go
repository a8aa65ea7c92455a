package jsonscan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// Members calls fn for each member of the object b, in order: the offsets at which it begins, with
// its key's quote, and ends, its key as it is written between its quotes, and its value. B must be
// validated already, or fn look at what it uses.
func Members(b []byte, fn func(begin, end int, key, value []byte) error) error {
	s := Scanner{b: b}
	err := s.Object(func(begin int, key []byte) error {
		value, err := s.Value()
		if err != nil {
			return err
		}
		return fn(begin, s.i, key, value)
	})
	if err != nil {
		return err
	}
	return s.End()
}

// Elements calls fn with each element of the array b, under the terms of Members.
func Elements(b []byte, fn func(element []byte) error) error {
	s := Scanner{b: b}
	err := s.Array(func() error {
		element, err := s.Value()
		if err != nil {
			return err
		}
		return fn(element)
	})
	if err != nil {
		return err
	}
	return s.End()
}

// Plain reports whether a string is its own content between the quotes: it has neither escapes nor
// bytes that are not UTF-8.
func Plain(quoted []byte) bool { return bytes.IndexByte(quoted, '\\') < 0 && utf8.Valid(quoted) }

// Unquote reads a string, as [json.Unmarshal] does; null is the empty one. Control characters,
// which a strict scanner refuses, are taken.
func Unquote(quoted []byte) (string, error) {
	if n := len(quoted); n >= 2 && quoted[0] == '"' && quoted[n-1] == '"' && Plain(quoted) {
		return string(quoted[1 : n-1]), nil
	}
	var s string
	if err := json.Unmarshal(quoted, &s); err != nil {
		return "", fmt.Errorf("%w: want a string", ErrSyntax)
	}
	return s, nil
}
