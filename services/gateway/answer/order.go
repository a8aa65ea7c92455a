package answer

import (
	"cmp"
	"iter"
	"slices"
	"strings"

	"github.com/deltaplane/deltaplane/core/access"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/services/gateway/mirror"
	"github.com/deltaplane/deltaplane/services/gateway/request"
)

// everywhere walks the objects of all namespaces, or of those that are visible, in the order of
// etcd's keys, in which a list of the API server goes on behind a continue token: namespace, slash
// and name are one text. The namespace a-b is before a in it, since a hyphen is before a slash.
func everywhere(v *mirror.View, r *request.Read) iter.Seq[*store.Object] {
	return func(yield func(*store.Object) bool) {
		after := store.Namespace(r.After)
		for namespace := range ordered(v, r.Scope) {
			from := ""
			switch c := compareNamespaces(namespace, after); {
			case r.After != "" && c < 0:
				continue
			case c == 0:
				from = r.After
			}
			for o := range v.Namespace(namespace, from) {
				if !yield(o) {
					return
				}
			}
		}
	}
}

func compareNamespaces(a, b string) int { return cmp.Compare(a+"/", b+"/") }

// ordered are the namespaces that have objects, or that are visible, in the order of etcd's keys.
func ordered(v *mirror.View, scope *access.Scope) iter.Seq[string] {
	if scope != nil && !scope.All {
		return slices.Values(slices.SortedFunc(slices.Values(scope.Namespaces), compareNamespaces))
	}
	return func(yield func(string) bool) {
		var open []string // each is the beginning of the next, which comes before it
		for namespace, ok := behind(v, ""); ok; namespace, ok = behind(v, namespace+"/\xff") {
			for n := len(open) - 1; n >= 0 && !strings.HasPrefix(namespace, open[n]+"-"); n-- {
				if !yield(open[n]) {
					return
				}
				open = open[:n]
			}
			open = append(open, namespace)
		}
		for _, namespace := range slices.Backward(open) {
			if !yield(namespace) {
				return
			}
		}
	}
}

// behind is the namespace of the first object behind a key.
func behind(v *mirror.View, key string) (namespace string, ok bool) {
	for o := range v.All(key) {
		return o.Namespace(), true
	}
	return "", false
}
