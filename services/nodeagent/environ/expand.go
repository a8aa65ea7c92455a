package environ

import "strings"

// Expand replaces $(NAME) by what lookup knows of NAME. $$ is a literal dollar, so
// $$(NAME) stands for "$(NAME)"; a reference nobody knows, or one without its closing
// parenthesis, stays as it is. Values are not expanded again.
func Expand(s string, lookup func(name string) (string, bool)) string {
	at := strings.IndexByte(s, '$')
	if at < 0 {
		return s
	}
	var b strings.Builder
	for at >= 0 {
		b.WriteString(s[:at])
		s = s[at+1:]
		switch {
		case s == "":
			b.WriteByte('$')
		case s[0] == '$':
			b.WriteByte('$')
			s = s[1:]
		case s[0] == '(':
			end := strings.IndexByte(s, ')')
			if end < 0 {
				b.WriteString("$(") // incomplete: what follows is text again
				s = s[1:]
				break
			}
			if value, ok := lookup(s[1:end]); ok {
				b.WriteString(value)
			} else {
				b.WriteString("$" + s[:end+1])
			}
			s = s[end+1:]
		default:
			b.WriteByte('$')
			b.WriteByte(s[0])
			s = s[1:]
		}
		at = strings.IndexByte(s, '$')
	}
	b.WriteString(s)
	return b.String()
}

// ExpandAll expands every one of in, a container's command or arguments, by an
// environment that [Make] made.
func ExpandAll(in []string, env []Var) []string {
	if len(in) == 0 {
		return nil
	}
	known := make(map[string]string, len(env))
	for _, v := range env {
		known[v.Name] = v.Value
	}
	out := make([]string, len(in))
	for i, s := range in {
		out[i] = Expand(s, func(name string) (string, bool) { v, ok := known[name]; return v, ok })
	}
	return out
}
