package indexer

import (
	"slices"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/services/indexer/definition"
)

// The built-in indexes.
const (
	// namespaceIndex files namespaced objects under their namespace.
	namespaceIndex = "namespace"
	// nodeIndex files pods under spec.nodeName.
	nodeIndex = "node"
	// ownerIndex files objects under the UID of each owner reference.
	ownerIndex = "owner"
	// labelIndex files objects under "name" and "name=value" of each label.
	labelIndex = "label"

	nodeField = "spec.nodeName"
	// selectorField tells the Jobs that may adopt pods they have not made.
	selectorField = "spec.manualSelector"
)

// descriptions say how each built-in index finds its values.
var descriptions = map[string]string{
	namespaceIndex: "metadata.namespace",
	nodeIndex:      "field " + nodeField,
	ownerIndex:     "owner uid",
	labelIndex:     "label: name, and name=value",
}

// builtIn returns the indexes of a collection.
func builtIn(c delta.Collection) map[string]store.IndexFunc {
	fns := map[string]store.IndexFunc{
		namespaceIndex: byNamespace,
		ownerIndex:     byOwner,
		labelIndex:     func(o *store.Object) ([]string, error) { return o.Labels().Terms(), nil },
	}
	if isPods(c) {
		fns[nodeIndex] = byNode
	}
	return fns
}

func isPods(c delta.Collection) bool { return c.Group == "" && c.Resource == "pods" }

func byNamespace(o *store.Object) ([]string, error) {
	if ns := o.Namespace(); ns != "" {
		return []string{ns}, nil
	}
	return nil, nil
}

// byNode gives one value, or several for a faulty pod whose record names the
// nodes it has had.
func byNode(o *store.Object) ([]string, error) {
	values, _ := o.Field(nodeField)
	if len(values) == 1 && values[0] == "" {
		return nil, nil
	}
	return values, o.FieldErr(nodeField)
}

func byOwner(o *store.Object) ([]string, error) { return o.Owners().UIDs(), nil }

// paths returns the fields to read from a collection's objects. Those that are
// configured have been checked.
func paths(c delta.Collection, configured map[string][]string) []definition.Path {
	var list []definition.Path
	add := func(field string) {
		if p, err := definition.ParsePath(field); err == nil {
			list = append(list, p)
		}
	}
	for _, field := range configured[c.Resource] {
		add(field)
	}
	switch {
	case isPods(c):
		add(nodeField)
	case c.Group == "batch" && c.Resource == "jobs":
		add(selectorField)
	}
	return list
}

// fieldNames are the fields that selectors may use.
func (c *collection) fieldNames() []string {
	names := []string{nameField, namespaceField}
	for _, p := range c.plan.Load().Paths() {
		names = append(names, p.String())
	}
	return names
}

// field returns the name under which objects have the field of a selector, and
// whether they do: a path may be written in several ways.
func (c *collection) field(name string) (string, bool) {
	if name == nameField || name == namespaceField {
		return name, true
	}
	known := c.plan.Load().Paths()
	named := func(name string) bool {
		return slices.ContainsFunc(known, func(p definition.Path) bool { return p.String() == name })
	}
	if named(name) {
		return name, true
	}
	p, err := definition.ParsePath(name)
	return p.String(), err == nil && named(p.String())
}
