package definition

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Bounds of a path.
const (
	// MaxPathBytes is how long the text of a path may be.
	MaxPathBytes = 512
	// MaxPathSteps is how many keys and lists a path may go through.
	MaxPathSteps = 32
)

// Bounds of what an index files one object under. Beyond them the object is an
// error of that index.
const (
	// MaxValues is how many different values one object may have.
	MaxValues = 1000
	// MaxValueBytes is how long a value may be.
	MaxValueBytes = 2048
)

var (
	// ErrPath is wrapped by every error about the text of a path.
	ErrPath = errors.New("malformed path")
	// ErrValue is wrapped by every error about an object in which a path or an
	// expression cannot be followed.
	ErrValue = errors.New("no usable value")
)

// Step is one step of a path: into the value of a key, or, when Each, into
// every element of a list.
type Step struct {
	Key  string
	Each bool
}

// Path leads to values inside an object. The zero value leads nowhere. It is
// immutable and safe for concurrent use.
type Path struct {
	steps []Step
	text  string
}

// ParsePath reads a path: keys joined by dots, `['a.b/c']` for a key that holds
// more than letters (a backslash goes before ' and \ there), `[]` or `[*]` for
// every element of a list. Errors wrap [ErrPath] and say where.
func ParsePath(text string) (Path, error) {
	if text == "" {
		return Path{}, fmt.Errorf("%w: it is empty", ErrPath)
	}
	if len(text) > MaxPathBytes {
		return Path{}, fmt.Errorf("%w: it is %d bytes long, at most %d", ErrPath, len(text), MaxPathBytes)
	}
	if !utf8.ValidString(text) {
		return Path{}, fmt.Errorf("%w: it is not UTF-8", ErrPath)
	}
	var p Path
	for i := 0; i < len(text); {
		step, n, err := parseStep(text[i:], i == 0)
		if err != nil {
			return Path{}, fmt.Errorf("%w: %w at byte %d of %q", ErrPath, err, i, text)
		}
		if step.Each && i == 0 {
			return Path{}, fmt.Errorf("%w: it begins with a list, and objects are none", ErrPath)
		}
		p.steps = append(p.steps, step)
		i += n
	}
	if len(p.steps) > MaxPathSteps {
		return Path{}, fmt.Errorf("%w: it has %d steps, at most %d", ErrPath, len(p.steps), MaxPathSteps)
	}
	p.text = canonical(p.steps)
	return p, nil
}

// parseStep reads one step and how long it is.
func parseStep(s string, first bool) (Step, int, error) {
	switch {
	case strings.HasPrefix(s, "[]"):
		return Step{Each: true}, 2, nil
	case strings.HasPrefix(s, "[*]"):
		return Step{Each: true}, 3, nil
	case strings.HasPrefix(s, "['"):
		return parseQuoted(s)
	case s[0] == '[':
		return Step{}, 0, errors.New("want [], [*] or ['key']")
	case s[0] == '.' && first:
		return Step{}, 0, errors.New("a path does not begin with a dot")
	case s[0] != '.' && !first:
		return Step{}, 0, errors.New("want a dot or a bracket")
	}
	n := 0
	if !first {
		n = 1
	}
	end := n
	for end < len(s) && plain(s[end]) {
		end++
	}
	if end < len(s) && s[end] != '.' && s[end] != '[' {
		return Step{}, 0, fmt.Errorf("%q must be in a bracket, as ['key']", s[end:min(end+1, len(s))])
	}
	if end == n {
		return Step{}, 0, errors.New("a key is empty")
	}
	return Step{Key: s[n:end]}, end, nil
}

func parseQuoted(s string) (Step, int, error) {
	var key []byte
	for i := 2; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\' && i+1 < len(s) && (s[i+1] == '\'' || s[i+1] == '\\'):
			key = append(key, s[i+1])
			i++
		case c == '\\':
			return Step{}, 0, errors.New(`only \' and \\ are known`)
		case c != '\'':
			key = append(key, c)
		case i+1 == len(s) || s[i+1] != ']':
			return Step{}, 0, errors.New("a bracket is not closed")
		case len(key) == 0:
			return Step{}, 0, errors.New("a key is empty")
		default:
			return Step{Key: string(key)}, i + 2, nil
		}
	}
	return Step{}, 0, errors.New("a bracket is not closed")
}

// plain reports whether a byte of a key needs no bracket.
func plain(c byte) bool {
	return c > ' ' && c != 0x7f && !strings.ContainsRune(`.[]'"\`, rune(c))
}

func canonical(steps []Step) string {
	var b strings.Builder
	for i, s := range steps {
		switch {
		case s.Each:
			b.WriteString("[]")
			continue
		case strings.ContainsFunc(s.Key, func(r rune) bool { return r < utf8.RuneSelf && !plain(byte(r)) }):
			b.WriteString("['" + quoter.Replace(s.Key) + "']")
			continue
		case i > 0:
			b.WriteByte('.')
		}
		b.WriteString(s.Key)
	}
	return b.String()
}

var quoter = strings.NewReplacer(`\`, `\\`, `'`, `\'`)

// String is the path in its canonical form: two paths with equal steps have
// equal texts. It names the field in selectors.
func (p Path) String() string { return p.text }

// IsZero reports whether p leads nowhere.
func (p Path) IsZero() bool { return len(p.steps) == 0 }

// Steps are the steps from the root. They must not be changed.
func (p Path) Steps() []Step { return p.steps }

// prefix is the text of the first n steps, for errors.
func (p Path) prefix(n int) string { return canonical(p.steps[:n]) }

// Mismatch is the error of a path that meets another kind of value than its
// next step needs, "string" for example; depth is how many steps were taken.
func (p Path) Mismatch(depth int, kind string) error {
	at := p.prefix(depth)
	switch {
	case depth == len(p.steps):
		return fmt.Errorf("%w: %s is a list, which a path goes through with %s[]", ErrValue, at, at)
	case p.steps[depth].Each:
		return fmt.Errorf("%w: %s is %s and not a list", ErrValue, at, kind)
	case kind == "a list":
		return fmt.Errorf("%w: %s is a list, which a path goes through with %s[]", ErrValue, at, at)
	default:
		return fmt.Errorf("%w: %s is %s and has no keys", ErrValue, at, kind)
	}
}

// Values follows the path through a document decoded by encoding/json, numbers
// as [json.Number]. The values come sorted, each once. Errors wrap [ErrValue].
func (p Path) Values(doc any) ([]string, error) {
	var values []string
	if err := p.walk(doc, 0, &values); err != nil {
		return nil, err
	}
	return Bound(values)
}

func (p Path) walk(v any, depth int, out *[]string) error {
	if v == nil {
		return nil
	}
	if depth == len(p.steps) {
		switch v := v.(type) {
		case string:
			*out = append(*out, v)
		case json.Number:
			*out = append(*out, v.String())
		case bool:
			*out = append(*out, fmt.Sprint(v))
		case []any:
			return p.Mismatch(depth, "a list")
		}
		return nil
	}
	step := p.steps[depth]
	switch v := v.(type) {
	case map[string]any:
		if step.Each {
			return p.Mismatch(depth, "an object")
		}
		return p.walk(v[step.Key], depth+1, out)
	case []any:
		if !step.Each {
			return p.Mismatch(depth, "a list")
		}
		for _, e := range v {
			if err := p.walk(e, depth+1, out); err != nil {
				return err
			}
		}
		return nil
	case string:
		return p.Mismatch(depth, "a string")
	case bool:
		return p.Mismatch(depth, "a boolean")
	default:
		return p.Mismatch(depth, "a number")
	}
}

// Bound sorts values and drops repeated ones, in place. The error, which wraps
// [ErrValue], says that there are too many or that one is too long.
func Bound(values []string) ([]string, error) {
	for _, v := range values {
		if len(v) > MaxValueBytes {
			return nil, fmt.Errorf("%w: one is %d bytes long, at most %d", ErrValue, len(v), MaxValueBytes)
		}
	}
	if len(values) > 1 {
		slices.Sort(values)
		values = slices.Compact(values)
	}
	if len(values) > MaxValues {
		return nil, fmt.Errorf("%w: %d different values, at most %d", ErrValue, len(values), MaxValues)
	}
	return values, nil
}
