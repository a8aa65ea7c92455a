// Package logs reads the logs that container runtimes write, in the CRI's format: a
// record a line, TIME STREAM TAGS TEXT.
package logs

import (
	"bytes"
	"time"
)

// Line is one record.
type Line struct {
	At time.Time
	// Stream is stdout or stderr.
	Stream string
	// Partial says that the line of text goes on in the next record of its stream.
	Partial bool
	Text    []byte
}

// Parse reads a record without its newline; ok is false for what is not one.
func Parse(raw []byte) (l Line, ok bool) {
	at, rest, ok := bytes.Cut(raw, []byte{' '})
	if !ok {
		return l, false
	}
	var err error
	if l.At, err = time.Parse(time.RFC3339Nano, string(at)); err != nil {
		return l, false
	}
	stream, rest, ok := bytes.Cut(rest, []byte{' '})
	if l.Stream = string(stream); !ok || l.Stream != "stdout" && l.Stream != "stderr" {
		return l, false
	}
	tags, text, ok := bytes.Cut(rest, []byte{' '})
	if !ok {
		return l, false
	}
	first, _, _ := bytes.Cut(tags, []byte{':'})
	switch string(first) {
	case "P":
		l.Partial = true
	case "F":
	default:
		return l, false
	}
	l.Text = text
	return l, true
}
