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
	i := space(b, 0)
	if i >= len(b) || b[i] != '{' {
		return fmt.Errorf("%w: want an object", errJSON)
	}
	i = space(b, i+1)
	if i < len(b) && b[i] == '}' {
		return trailing(b, i+1)
	}
	for {
		begin := i
		end, err := skipString(b, i)
		if err != nil {
			return err
		}
		key := b[begin+1 : end-1]
		if i = space(b, end); i >= len(b) || b[i] != ':' {
			return fmt.Errorf("%w: no colon at %d", errJSON, i)
		}
		i = space(b, i+1)
		end, err = skip(b, i)
		if err != nil {
			return err
		}
		if err := fn(begin, key, b[i:end], end); err != nil {
			return err
		}
		if i = space(b, end); i >= len(b) {
			return fmt.Errorf("%w: object is not closed", errJSON)
		}
		switch b[i] {
		case ',':
			i = space(b, i+1)
		case '}':
			return trailing(b, i+1)
		default:
			return fmt.Errorf("%w: unexpected %q at %d", errJSON, b[i], i)
		}
	}
}

// array calls fn for each element of the array b, a slice of b.
func array(b []byte, fn func(element []byte) error) error {
	i := space(b, 0)
	if i >= len(b) || b[i] != '[' {
		return fmt.Errorf("%w: want an array", errJSON)
	}
	i = space(b, i+1)
	if i < len(b) && b[i] == ']' {
		return trailing(b, i+1)
	}
	for {
		end, err := skip(b, i)
		if err != nil {
			return err
		}
		if err := fn(b[i:end]); err != nil {
			return err
		}
		if i = space(b, end); i >= len(b) {
			return fmt.Errorf("%w: array is not closed", errJSON)
		}
		switch b[i] {
		case ',':
			i = space(b, i+1)
		case ']':
			return trailing(b, i+1)
		default:
			return fmt.Errorf("%w: unexpected %q at %d", errJSON, b[i], i)
		}
	}
}

func trailing(b []byte, i int) error {
	if i = space(b, i); i != len(b) {
		return fmt.Errorf("%w: unexpected %q after the end", errJSON, b[i])
	}
	return nil
}

func space(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// skip returns the end of the value at i.
func skip(b []byte, i int) (int, error) {
	if i >= len(b) {
		return 0, fmt.Errorf("%w: value is missing", errJSON)
	}
	switch b[i] {
	case '"':
		return skipString(b, i)
	case '{', '[':
		return skipNested(b, i)
	}
	end := i
	for end < len(b) && b[end] != ',' && b[end] != '}' && b[end] != ']' && b[end] > ' ' {
		end++
	}
	if !json.Valid(b[i:end]) {
		return 0, fmt.Errorf("%w: unexpected %q at %d", errJSON, b[i], i)
	}
	return end, nil
}

func skipString(b []byte, i int) (int, error) {
	if i >= len(b) || b[i] != '"' {
		return 0, fmt.Errorf("%w: no string at %d", errJSON, i)
	}
	for j := i + 1; j < len(b); j++ {
		n := bytes.IndexByte(b[j:], '"')
		if n < 0 {
			break
		}
		j += n
		back := j - 1
		for b[back] == '\\' {
			back--
		}
		if (j-1-back)%2 == 0 {
			return j + 1, nil
		}
	}
	return 0, fmt.Errorf("%w: string at %d is not closed", errJSON, i)
}

func skipNested(b []byte, i int) (int, error) {
	var open [64]byte
	stack := open[:0]
	for j := i; j < len(b); j++ {
		switch b[j] {
		case '"':
			end, err := skipString(b, j)
			if err != nil {
				return 0, err
			}
			j = end - 1
		case '{':
			stack = append(stack, '}')
		case '[':
			stack = append(stack, ']')
		case '}', ']':
			if stack[len(stack)-1] != b[j] {
				return 0, fmt.Errorf("%w: unexpected %q at %d", errJSON, b[j], j)
			}
			if stack = stack[:len(stack)-1]; len(stack) == 0 {
				return j + 1, nil
			}
		}
	}
	return 0, fmt.Errorf("%w: value at %d is not closed", errJSON, i)
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
