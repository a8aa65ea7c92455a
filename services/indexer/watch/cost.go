package watch

import (
	"strings"

	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

const (
	// termCost is about what a term of a selector takes once it was read, knownCost
	// what an entry of a map of strings does beside them.
	termCost, knownCost = 160, 72
)

// watchCost is about what a watch holds for as long as it is open: its request,
// the selection made from it, and the name of its group.
func watchCost(req *indexv1.WatchRequest) int {
	n := selectorCost(req.GetLabelSelector()) + selectorCost(req.GetFieldSelector())
	for _, list := range [...][]string{req.GetNamespaces(), req.GetIndexValues(), req.GetFieldMask().GetPaths()} {
		for _, text := range list {
			n += 3*len(text) + knownCost
		}
	}
	return n + 3*(len(req.GetCollection())+len(req.GetNamespace())+len(req.GetIndex())+len(req.GetIndexValue()))
}

func selectorCost(text string) int {
	if text == "" {
		return 0
	}
	return 3*len(text) + termCost*(strings.Count(text, ",")+1)
}

// knownSize is about what a reader's knowledge takes.
func knownSize(known map[string]string) int {
	n := 0
	for key, rv := range known {
		n += knownCost + len(key) + len(rv)
	}
	return n
}
