package reflector

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/kube"
)

// The API server can be asked for one namespace, or for all: no selector says "one of". Several are
// read from one list and one watch of all, so that there is one revision and one position; with a
// watch for each, none of them would vouch for the collection. What is in other namespaces is left
// out as it is read: it costs no memory and no record, is counted, and still moves the watermark.

// namespaces are those that r is limited to, in order; none means all.
func (r Resource) namespaces() []string {
	all := r.Namespaces
	if r.Scope.Namespace != "" {
		all = append(slices.Clone(all), r.Scope.Namespace)
	}
	return ordered(all)
}

// narrowed reports whether r is limited to namespaces.
func (r Resource) narrowed() bool { return r.Scope.Namespace != "" || len(r.Namespaces) > 0 }

// placed is r with its namespaces in the one form they have: one alone stands in the scope, and is
// asked of the API server.
func (r Resource) placed() Resource {
	set := r.namespaces()
	if len(set) == 1 {
		r.Scope.Namespace, r.Namespaces = set[0], nil
	} else {
		r.Scope.Namespace, r.Namespaces = "", set
	}
	return r
}

// maxNamespaceFaults bounds the faults of one list that are told: an answer to a call has little
// room.
const maxNamespaceFaults = 10

func (r Resource) namespaceFaults(fault func(field, format string, args ...any)) {
	if ns := r.Scope.Namespace; ns != "" {
		if wrong := validation.IsDNS1123Label(ns); len(wrong) > 0 {
			fault("namespace", "%.100q: %s", ns, strings.Join(wrong, "; "))
		}
	}
	if n := len(r.Namespaces); n > maxNamespaces {
		fault("namespaces", "has %d entries, at most %d", n, maxNamespaces)
		return
	}
	faults := 0
	for i, ns := range r.Namespaces {
		wrong := validation.IsDNS1123Label(ns)
		switch {
		case ns == "":
			fault(fmt.Sprintf("namespaces[%d]", i), "is empty; all namespaces are meant by no list at all")
		case len(wrong) > 0:
			fault(fmt.Sprintf("namespaces[%d]", i), "%.100q: %s", ns, strings.Join(wrong, "; "))
		default:
			continue
		}
		if faults++; faults == maxNamespaceFaults {
			return
		}
	}
	if ns := r.Scope.Namespace; faults == 0 && ns != "" && slices.ContainsFunc(r.Namespaces, func(other string) bool { return other != ns }) {
		fault("namespaces", "%s is not the namespace %.100q; set one of the two", quoted(ordered(r.Namespaces)), ns)
	}
}

// quoted names a few of many.
func quoted(names []string) string {
	const few = 3
	var first []string
	for _, name := range names[:min(len(names), few)] {
		first = append(first, fmt.Sprintf("%.100q", name))
	}
	return Names(first, len(names))
}

// chosen is a set of namespaces; nil holds every one.
type chosen map[string]struct{}

func choose(namespaces []string) chosen {
	if len(namespaces) == 0 {
		return nil
	}
	c := make(chosen, len(namespaces))
	for _, ns := range namespaces {
		c[ns] = struct{}{}
	}
	return c
}

// leaves reports whether an object as the API server sent it is known to be in another namespace.
// Of one that cannot be read it is known when it names its namespace before what is wrong.
func (c chosen) leaves(raw []byte) bool {
	if c == nil {
		return false
	}
	ns, told := kube.Namespace(raw)
	if !told {
		return false
	}
	_, in := c[ns]
	return !in
}

// holds reports whether the key of an object that was read is in the set. One without a namespace
// is in none.
func (c chosen) holds(key delta.Key) bool {
	if c == nil {
		return true
	}
	_, in := c[key.Namespace()]
	return in
}
