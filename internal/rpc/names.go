package rpc

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Bounds of what [ThereAre] lists.
const (
	mostNames = 20
	nameBytes = 700
)

// ThereAre ends the message about an unknown name with those there are, in order:
// "there are: a, b". Of more than 20 names it lists those most like the one meant and
// says how many are left out; long names make it fewer, so that the text stays below
// 1 KiB and fits a status.
func ThereAre(names []string, meant string) string {
	names = slices.Sorted(slices.Values(names))
	all := len(names)
	if all > mostNames {
		meant = meant[:min(len(meant), 100)]
		lacks := make(map[string]int, all)
		for _, name := range names {
			lacks[name] = unlike(name, meant)
		}
		slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(lacks[a], lacks[b]) })
		names = names[:mostNames]
	}
	size := 0
	for i, name := range names {
		if size += len(name); size > nameBytes {
			names = names[:i]
			break
		}
	}
	text := cmp.Or(strings.Join(names, ", "), "none yet")
	switch more := all - len(names); {
	case len(names) == 0 && more > 0:
		text = fmt.Sprintf("%d with long names", more)
	case more > 0:
		text += fmt.Sprintf(" and %d more", more)
	}
	return "there are: " + text
}

// unlike is how many pairs of letters of meant a name lacks.
func unlike(name, meant string) (lacks int) {
	for i := range len(meant) - 1 {
		if !strings.Contains(name, meant[i:i+2]) {
			lacks++
		}
	}
	return lacks
}
