package kuberuntime

import (
	"bytes"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/deltaplane/deltaplane/services/nodeagent/logs"
)

// logTail is the text of the last lines of a log, at most so many lines and bytes; its first and
// last line may be cut, and are then left out when they cannot be read. It is valid UTF-8, and ends
// where the log ends.
func logTail(raw []byte, lines, limit int) string {
	var parts []string
	size := 0
	for len(raw) > 0 && len(parts) < lines && size < limit {
		raw = bytes.TrimSuffix(raw, []byte{'\n'})
		at := bytes.LastIndexByte(raw, '\n') + 1
		if l, ok := logs.Parse(raw[at:]); ok {
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
