package controller

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/deltaplane/deltaplane/client"
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
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %t %s", w.role, o.ClusterScoped, what))
	w.id = full + "#" + hex.EncodeToString(sum[:4])
	return nil
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

// PanicError is a panic of a [Mapper].
type PanicError struct {
	// Collection and Key are of the change.
	Collection, Key string
	Value           any
	Stack           []byte
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("controller: mapper of %s panicked at %s: %v", e.Collection, e.Key, e.Value)
}
