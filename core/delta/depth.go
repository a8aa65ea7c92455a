package delta

import "bytes"

// MaxDepth is how deep a payload may nest, the API server's own limit.
const MaxDepth = 10_000

// TooDeep reports whether a JSON payload nests deeper than MaxDepth: readers of JSON recurse, and a
// stack that runs out ends the process. It need not be valid JSON.
func TooDeep(payload []byte) bool {
	if bytes.Count(payload, []byte{'{'})+bytes.Count(payload, []byte{'['}) <= MaxDepth {
		return false
	}
	depth, quoted := 0, false
	for i := 0; i < len(payload); i++ {
		switch c := payload[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			if depth++; depth > MaxDepth {
				return true
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return false
}
