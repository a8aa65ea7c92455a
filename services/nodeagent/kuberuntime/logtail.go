package kuberuntime

import (
	"bytes"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// logLine is one line of a container's log in the CRI's format: TIME STREAM TAGS TEXT.
type logLine struct {
	At     time.Time
	Stream string
	// Partial says that the line of text goes on in the next one of its stream.
	Partial bool
	Text    []byte
}

// parseLogLine reads a line without its newline; ok is false for what is not one.
func parseLogLine(raw []byte) (l logLine, ok bool) {
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

// logTail is the text of the last lines of a log, at most so many lines and bytes; its first and
// last line may be cut, and are then left out when they cannot be read. It is valid UTF-8, and ends
// where the log ends.
func logTail(raw []byte, lines, limit int) string {
	var parts []string
	size := 0
	for len(raw) > 0 && len(parts) < lines && size < limit {
		raw = bytes.TrimSuffix(raw, []byte{'\n'})
		at := bytes.LastIndexByte(raw, '\n') + 1
		if l, ok := parseLogLine(raw[at:]); ok {
			text := string(l.Text)
			if !l.Partial {
				text += "\n"
			}
			parts = append(parts, text)
			size += len(text)
		}
		raw = raw[:at]
	}
	slices.Reverse(parts)
	out := strings.ToValidUTF8(strings.Join(parts, ""), "\uFFFD")
	if len(out) > limit {
		out = out[len(out)-limit:]
		for len(out) > 0 && !utf8.RuneStart(out[0]) {
			out = out[1:]
		}
	}
	return out
}
