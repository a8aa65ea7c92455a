// Package series bounds how many series a service shows for names that its users choose: queues,
// collections, indexes, namespaces. The first so many names have series of their own, and
// the others share those of [Rest].
package series

import "sync"

// Rest is the value of a label for all names beyond the bound. A name that is spelled like it
// has no series of its own either.
const Rest = "other"

// Bounds of the names that services show. A queue has about 80 series on each of its servers, a
// collection about 70 in a reflector and 40 in an indexer.
const (
	MaxQueues      = 200
	MaxCollections = 500
	MaxIndexes     = 2000 // of all collections of an indexer, together
	MaxNamespaces  = 200
	MaxZones       = 100
	MaxManagers    = 50 // of Jobs, by their spec.managedBy
)

// Names gives names their label values. It is safe for concurrent use.
type Names struct {
	most int

	mu    sync.Mutex
	shown map[string]struct{} // guarded by mu
}

// NewNames bounds names to the first most.
func NewNames(most int) *Names { return &Names{most: most, shown: map[string]struct{}{}} }

// Of is the label value of a name: the name, or [Rest] while as many others are shown as may be.
// A name that is shown stays so until it is forgotten. A name of the rest is shown by a later
// call, if there is room by then: who needs one value for long keeps it.
func (n *Names) Of(name string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ok := n.shown[name]; ok {
		return name
	}
	if name == Rest || len(n.shown) >= n.most {
		return Rest
	}
	n.shown[name] = struct{}{}
	return name
}

// Forget makes room for another name. The series of this one are to be deleted, unless it is
// [Rest].
func (n *Names) Forget(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.shown, name)
}
