// Package wrote notes which objects a run writes to an API server, so that its settlement can name
// them.
//
// In come requests and their answers, by the clients that a run uses. Out come the last few writes.
// The notes travel in the run's context; without them nothing is looked at.
package wrote

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/tidwall/gjson"

	"github.com/deltaplane/deltaplane/core/delta"
)

// Most is how many writes notes keep, the last ones.
const Most = 16

// Write is an object that was written.
type Write struct {
	// Verb is create, update, patch or delete.
	Verb string
	// Cluster is that of the collection; empty where the client does not know it.
	Cluster string
	// Resource is the collection without its cluster, as "pods.v1" or "jobs.v1.batch".
	Resource string
	// Key is the object's; RV its version by the write, empty where the answer has none.
	Key, RV string
}

// Notes are what one run wrote. The zero value is empty. They are safe for concurrent use.
type Notes struct {
	mu  sync.Mutex
	all []Write
}

// Key is the key of the notes in a context.
type Key struct{}

// In is the notes of a context, nil where it has none.
func In(ctx context.Context) *Notes {
	n, _ := ctx.Value(Key{}).(*Notes)
	return n
}

// All are the writes noted, the oldest first.
func (n *Notes) All() []Write {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.all)
}

// Answered notes a request that was carried out, by its answer in JSON, and does nothing for one
// that wrote no object. A path may begin with that of a proxy.
func (n *Notes) Answered(cluster, method, path string, answer []byte) {
	if n == nil {
		return
	}
	w, ok := parse(method, path)
	if !ok {
		return
	}
	w.Cluster = cluster
	if meta := gjson.GetBytes(answer, "metadata"); gjson.GetBytes(answer, "kind").Str != "Status" {
		w.RV = meta.Get("resourceVersion").Str
		if name := meta.Get("name").Str; strings.HasSuffix(w.Key, "/") || w.Key == "" {
			w.Key = string(delta.NewKey(strings.TrimSuffix(w.Key, "/"), name))
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.all) == Most {
		n.all = append(n.all[:0], n.all[1:]...)
	}
	n.all = append(n.all, w)
}

var verbs = map[string]string{
	http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete",
}

// Writes says whether a request of a method writes.
func Writes(method string) bool { return verbs[method] != "" }

// parse reads which object a request writes. The key of one that is created lacks its name.
func parse(method, path string) (w Write, ok bool) {
	if w.Verb = verbs[method]; w.Verb == "" {
		return w, false
	}
	parts := strings.Split(strings.Trim(path, "/"), "/")
	for i, part := range parts {
		rest := parts[i+1:]
		group := ""
		switch {
		case part == "api" && len(rest) >= 2:
		case part == "apis" && len(rest) >= 3:
			group, rest = rest[0], rest[1:]
		default:
			continue
		}
		version, rest := rest[0], rest[1:]
		namespace := ""
		if rest[0] == "namespaces" && len(rest) > 2 && rest[2] != "status" && rest[2] != "finalize" {
			namespace, rest = rest[1], rest[2:]
		}
		w.Resource = strings.TrimSuffix(rest[0]+"."+version+"."+group, ".")
		switch {
		case len(rest) >= 2:
			w.Key = string(delta.NewKey(namespace, rest[1]))
		case w.Verb == "create" && namespace != "":
			w.Key = namespace + "/"
		case w.Verb != "create": // of a whole collection: no object is named
			return w, false
		}
		return w, !strings.HasSuffix(rest[0], "reviews")
	}
	return w, false
}
