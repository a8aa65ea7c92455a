package delta

import (
	"slices"
	"strings"
)

// The bounds of what a resource is called beside its plural; Kubernetes has a label of DNS for each
// name.
const (
	maxNames      = 16
	maxNameLength = 63
)

// OtherNames are what a resource is called beside its plural, such as po and pod of pods: the words
// in lower case and in their order, each once. Words that are not a label of at most 63 letters,
// digits and dashes are left out, and so are all behind the first 16 names.
func OtherNames(plural string, words ...string) []string {
	var names []string
	for _, word := range words {
		if len(names) == maxNames {
			break
		}
		if name := strings.ToLower(word); label(name) && name != plural && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

func label(s string) bool {
	if s == "" || len(s) > maxNameLength {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}
