package delta

import (
	"errors"
	"fmt"
	"strings"
)

// ErrSubject is wrapped by every error about a subject that is not one of ours.
var ErrSubject = errors.New("delta: malformed subject")

const (
	deltaPrefix   = "d"
	controlPrefix = "c"
	coreGroup     = "core"
	noNamespace   = "_"
	upperHex      = "0123456789ABCDEF"
)

// EscapeToken writes s as one token of a subject: "%" and whatever a subject token must not hold
// (dots, wildcards, spaces, control characters, bytes outside ASCII) become %XX; ordinary names
// stay as they are. "%" is the one printable character no Kubernetes name can hold, so
// [UnescapeToken] restores every name.
func EscapeToken(s string) string {
	n := 0
	for i := range len(s) {
		if mustEscape(s[i]) {
			n++
		}
	}
	if n == 0 {
		return s
	}
	b := make([]byte, 0, len(s)+2*n)
	for i := range len(s) {
		if c := s[i]; mustEscape(c) {
			b = append(b, '%', upperHex[c>>4], upperHex[c&15])
		} else {
			b = append(b, c)
		}
	}
	return string(b)
}

func mustEscape(c byte) bool {
	return c <= ' ' || c >= 0x7f || c == '.' || c == '*' || c == '>' || c == '%'
}

// UnescapeToken restores what [EscapeToken] wrote. Errors wrap [ErrSubject]: an escape is
// incomplete, or the token is not the form EscapeToken writes.
func UnescapeToken(s string) (string, error) {
	if strings.IndexByte(s, '%') < 0 {
		for i := range len(s) {
			if mustEscape(s[i]) {
				return "", fmt.Errorf("%w: %q holds an unescaped character", ErrSubject, s)
			}
		}
		return s, nil
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c != '%' {
			if mustEscape(c) {
				return "", fmt.Errorf("%w: %q holds an unescaped character", ErrSubject, s)
			}
			b = append(b, c)
			continue
		}
		if i+2 >= len(s) {
			return "", fmt.Errorf("%w: %q ends inside an escape", ErrSubject, s)
		}
		hi, lo := strings.IndexByte(upperHex, s[i+1]), strings.IndexByte(upperHex, s[i+2])
		if hi < 0 || lo < 0 || !mustEscape(byte(hi<<4|lo)) {
			return "", fmt.Errorf("%w: %q holds the invalid escape %q", ErrSubject, s, s[i:i+3])
		}
		b = append(b, byte(hi<<4|lo))
		i += 2
	}
	return string(b), nil
}

func (c Collection) tokens() string {
	group := c.Group
	if group == "" {
		group = coreGroup
	}
	return EscapeToken(c.Cluster) + "." + EscapeToken(group) + "." + EscapeToken(c.Version) + "." + EscapeToken(c.Resource)
}

// Subject is the subject of a key's records:
// d.<cluster>.<group|core>.<version>.<resource>.<namespace|_>.<name>. The collection and the key
// must be valid.
func (c Collection) Subject(key Key) string {
	namespace := noNamespace
	if ns := key.Namespace(); ns != "" {
		namespace = escapeNamespace(ns)
	}
	return deltaPrefix + "." + c.tokens() + "." + namespace + "." + EscapeToken(key.Name())
}

// A namespace called "_" is not legal in Kubernetes, but a key must never change its identity on
// the way.
func escapeNamespace(ns string) string {
	if ns == noNamespace {
		return "%5F"
	}
	return EscapeToken(ns)
}

// ControlSubject is the subject of a collection's control records of kind:
// c.<cluster>.<group|core>.<version>.<resource>.<kind>. Kind must not be KindDelta.
func (c Collection) ControlSubject(kind Kind) string {
	return controlPrefix + "." + c.tokens() + "." + kind.String()
}

// Subjects are the two wildcards that match every record of the collection: its deltas and its
// control records.
func (c Collection) Subjects() []string {
	return []string{deltaPrefix + "." + c.tokens() + ".*.*", controlPrefix + "." + c.tokens() + ".*"}
}

// Subject is the subject r is published on.
func (r *Record) Subject() string {
	if r.Kind == KindDelta {
		return r.Collection.Subject(r.Key)
	}
	return r.Collection.ControlSubject(r.Kind)
}

// ParseSubject reads a subject: the collection, the record kind, and the key of a delta. Errors
// wrap [ErrSubject]; that of a control subject of an unknown kind wraps an [UnknownError] too.
func ParseSubject(subject string) (Collection, Kind, Key, error) {
	tokens := strings.Split(subject, ".")
	isDelta := tokens[0] == deltaPrefix && len(tokens) == 7
	if !isDelta && (tokens[0] != controlPrefix || len(tokens) != 6) {
		return Collection{}, 0, "", fmt.Errorf("%w: %q", ErrSubject, subject)
	}
	for i, t := range tokens[1:5] {
		s, err := UnescapeToken(t)
		if err != nil {
			return Collection{}, 0, "", fmt.Errorf("%w (in %q)", err, subject)
		}
		tokens[i+1] = s
	}
	c := Collection{Cluster: tokens[1], Group: tokens[2], Version: tokens[3], Resource: tokens[4]}
	switch c.Group {
	case coreGroup:
		c.Group = ""
	case "":
		return Collection{}, 0, "", fmt.Errorf("%w: %q has no group", ErrSubject, subject)
	}
	if err := c.Validate(); err != nil {
		return Collection{}, 0, "", fmt.Errorf("%w: %q: %w", ErrSubject, subject, err)
	}
	if !isDelta {
		kind, err := parseKind(tokens[5])
		switch {
		case err != nil:
			return Collection{}, 0, "", fmt.Errorf("%w: %q: %w", ErrSubject, subject, err)
		case kind == KindDelta:
			return Collection{}, 0, "", fmt.Errorf("%w: %q is of no control kind", ErrSubject, subject)
		}
		return c, kind, "", nil
	}
	key, err := keyOfTokens(tokens[5], tokens[6])
	if err != nil {
		return Collection{}, 0, "", fmt.Errorf("%w: %q: %w", ErrSubject, subject, err)
	}
	return c, KindDelta, key, nil
}

func keyOfTokens(namespace, name string) (Key, error) {
	name, err := UnescapeToken(name)
	if err != nil {
		return "", err
	}
	switch namespace {
	case noNamespace:
		namespace = ""
	case "%5F":
		namespace = noNamespace
	default:
		if namespace, err = UnescapeToken(namespace); err != nil {
			return "", err
		}
		if namespace == "" {
			return "", fmt.Errorf("%w: empty namespace", ErrKey)
		}
	}
	return ParseKey(string(NewKey(namespace, name)))
}

// StreamName is the name of the stream that holds the collection's log. It is unique per collection
// and legal as a stream's name and as a file's: letters, digits, "-" and "_"; everything else is
// written as "_" with two hex digits.
func (c Collection) StreamName() string {
	var b strings.Builder
	b.WriteString("dp")
	for _, part := range [...]string{c.Cluster, c.Resource, c.Version, c.Group} {
		b.WriteByte('-')
		b.WriteByte('-')
		for i := range len(part) {
			ch := part[i]
			switch {
			case ch >= 'a' && ch <= 'z', ch >= 'A' && ch <= 'Z', ch >= '0' && ch <= '9':
				b.WriteByte(ch)
			default:
				b.WriteByte('_')
				b.WriteByte(upperHex[ch>>4])
				b.WriteByte(upperHex[ch&15])
			}
		}
	}
	return b.String()
}
