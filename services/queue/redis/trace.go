package redis

import (
	"encoding/hex"
)

// A trace is stored behind a byte that tells its form: a traceparent of
// version 00 as its 25 bytes, anything else as it is.
const (
	traceText   = 't'
	tracePacked = 'p'
	packedLen   = 1 + 16 + 8 + 1
	parentLen   = len("00-") + 32 + 1 + 16 + 1 + 2
)

// trace writes a trace, an empty one as the empty string.
func (p *packer) trace(s string) {
	if s == "" {
		p.str("")
		return
	}
	packed := [packedLen]byte{tracePacked}
	if packTrace(packed[1:], s) {
		p.str(string(packed[:]))
		return
	}
	p.head(1 + len(s))
	*p = append(append(*p, traceText), s...)
}

// packTrace reports whether s is what unpackTrace makes of the result.
func packTrace(to []byte, s string) bool {
	if len(s) != parentLen || s[:3] != "00-" || s[35] != '-' || s[52] != '-' {
		return false
	}
	at := 0
	for _, part := range []string{s[3:35], s[36:52], s[53:]} {
		for i := 0; i < len(part); i += 2 {
			hi, lo := nibble(part[i]), nibble(part[i+1])
			if hi < 0 || lo < 0 {
				return false
			}
			to[at] = byte(hi<<4 | lo)
			at++
		}
	}
	return true
}

func nibble(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	}
	return -1
}

// trace reads a trace.
func (r *reader) trace() string {
	s := r.str()
	switch {
	case len(s) == packedLen && s[0] == tracePacked:
		x := hex.EncodeToString([]byte(s[1:]))
		return "00-" + x[:32] + "-" + x[32:48] + "-" + x[48:]
	case len(s) > 0 && s[0] == traceText:
		return s[1:]
	}
	r.fail()
	return ""
}
