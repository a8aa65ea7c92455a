// Package wrote notes which objects a run writes to an API server, so that its settlement can name
// them.
//
// In come requests and their answers, by the clients that a run uses. Out come the last few writes.
// The notes travel in the run's context. A write of a run that is traced has a span; where there is
// neither nothing is looked at.
package wrote

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

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
	// Began is when it was sent, Ended when it was answered.
	Began, Ended time.Time
	// Refused says why it was not carried out; empty where it was.
	Refused string
}

// Collection is the name of the collection, without a cluster that is not known.
func (w *Write) Collection() string { return strings.TrimPrefix(w.Cluster+"/"+w.Resource, "/") }

// Notes are what one run wrote. The zero value is empty. They are safe for concurrent use.
type Notes struct {
	// Cluster is that of clients that do not know theirs. It is set before the run.
	Cluster string

	mu      sync.Mutex // guards the rest
	all     []Write
	refused []Write
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

var verbs = map[string]string{
	http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete",
}

// Writes says whether a request of a method writes.
func Writes(method string) bool { return verbs[method] != "" }

// Refused are the last writes that were not carried out.
func (n *Notes) Refused() []Write {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.refused)
}

func (n *Notes) note(w Write) {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := &n.all
	if w.Refused != "" {
		list = &n.refused
	}
	if len(*list) == Most {
		*list = append((*list)[:0], (*list)[1:]...)
	}
	*list = append(*list, w)
}

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
