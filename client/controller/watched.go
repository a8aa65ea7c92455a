package controller

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/internal/feed"
	"github.com/deltaplane/deltaplane/core/delta"
)

// The roles of collections.
const (
	roleFor    = "for"
	roleOwned  = "owns"
	roleMapped = "watches"
)

// watched is a collection whose changes become keys.
type watched struct {
	name, role string
	selection  Selection
	view       client.View
	fields     []string
	mapper     Mapper    // of roleMapped
	ownedBy    ownerKind // of roleOwned
	onLog      bool      // the delta log tells enough

	collection string // the full name
	id         string // names its position among those of the controller
}

// resolved takes the full name of the collection.
func (w *watched) resolved(full string, o Options) error {
	if _, err := delta.ParseCollection(full); err != nil {
		return fmt.Errorf("controller: the index names %s %q: %w", w.name, full, err)
	}
	w.collection = full
	// A position is worth something only to a watch that asks for the same.
	what, err := json.Marshal(w.selection)
	if err != nil {
		return fmt.Errorf("controller: selection of %s: %w", w.name, err)
	}
	w.onLog = o.Deltas != nil && w.role != roleMapped && w.selection.all()
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %t %s", w.role, o.ClusterScoped, what))
	w.id = feed.Name(full, hex.EncodeToString(sum[:4]))
	if w.onLog { // positions of a log are no positions of a watch
		w.id += "@log"
	}
	return nil
}

// choose sets what is sent of objects. Only mappers and predicates look into them.
func (w *watched) choose() {
	if w.role != roleMapped && w.selection.When == nil {
		return
	}
	if len(w.selection.Fields) == 0 {
		w.view, w.fields = client.ViewMetadata, nil
		return
	}
	w.view, w.fields = 0, w.selection.Fields
	if w.role == roleOwned && !slices.ContainsFunc(w.fields, func(f string) bool { return f == "metadata" || f == ownerFields[0] }) {
		w.fields = slices.Concat(w.fields, ownerFields)
	}
}

// previous: somebody wants to know how an object was before a change.
func (w *watched) previous() bool { return w.role == roleMapped || w.selection.When != nil }

// concerns asks the predicate about a step.
func (w *watched) concerns(s step) (yes bool, err error) {
	if w.selection.When == nil || s.added || s.folded || s.change.Deleted || s.change.Previous == nil {
		return true, nil
	}
	defer func() {
		if v := recover(); v != nil {
			yes, err = true, &PanicError{Collection: w.collection, Key: s.change.Object.Key, Value: v, Stack: debug.Stack()}
		}
	}()
	return w.selection.When(*s.change), nil
}

// part names the collection in [Controller.Ready].
func (w *watched) part() string { return "watch of " + w.collection }

// list chooses what the watch does.
func (w *watched) list(view client.View) client.ListOptions {
	return client.ListOptions{
		ReadOptions: client.ReadOptions{View: view}, Namespaces: w.selection.Namespaces, Labels: w.selection.Labels, FieldSelector: w.selection.FieldSelector,
	}
}

// identify makes the ids of collections differ that are watched twice in the same way.
func identify(all []*watched) {
	n := map[string]int{}
	for _, w := range all {
		n[w.id]++
		if times := n[w.id]; times > 1 {
			w.id = fmt.Sprintf("%s-%d", w.id, times)
		}
	}
}

// PanicError is a panic of a [Mapper] or a [Predicate].
type PanicError struct {
	// Collection and Key are of the change.
	Collection, Key string
	Value           any
	Stack           []byte
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("controller: mapper or predicate of %s panicked at %s: %v", e.Collection, e.Key, e.Value)
}
