package define

import (
	"fmt"
	"strings"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/services/indexer/definition"
	"github.com/deltaplane/deltaplane/services/indexer/extract"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
)

// The built-in indexes.
const (
	// NamespaceIndex files namespaced objects under their namespace.
	NamespaceIndex = "namespace"
	// NodeIndex files pods under spec.nodeName.
	NodeIndex = "node"
	// ownerIndex files objects under the UID of each owner reference.
	ownerIndex = "owner"
	// LabelIndex files objects under "name" and "name=value" of each label.
	LabelIndex = "label"

	NodeField = "spec.nodeName"
	// selectorField tells the Jobs that may adopt pods they have not made.
	selectorField = "spec.manualSelector"
)

// descriptions say how each built-in index finds its values.
var descriptions = map[string]string{
	NamespaceIndex: "metadata.namespace",
	NodeIndex:      "field " + NodeField,
	ownerIndex:     "owner uid",
	LabelIndex:     "label: name, and name=value",
}

// The fields that every object has.
const (
	NameField      = "metadata.name"
	NamespaceField = "metadata.namespace"
)

// MetadataIndexes are the built-in indexes of any collection, whose values are metadata.
var MetadataIndexes = []string{NamespaceIndex, ownerIndex, LabelIndex}

// MetadataFields are the fields of metadata among those that selectors can name.
var MetadataFields = []string{NameField, NamespaceField}

// BuiltIn returns the indexes of a collection.
func BuiltIn(c delta.Collection) map[string]store.IndexFunc {
	fns := map[string]store.IndexFunc{
		NamespaceIndex: byNamespace,
		ownerIndex:     byOwner,
		LabelIndex:     func(o *store.Object) ([]string, error) { return o.Labels().Terms(), nil },
	}
	if isPods(c) {
		fns[NodeIndex] = byNode
	}
	return fns
}

// BuiltInOf describes a built-in index of a collection; false if it has none of
// the name.
func BuiltInOf(c delta.Collection, name string) (string, bool) {
	text, ok := descriptions[name]
	return text, ok && (name != NodeIndex || isPods(c))
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
	values, _ := o.Field(NodeField)
	if len(values) == 1 && values[0] == "" {
		return nil, nil
	}
	return values, o.FieldErr(NodeField)
}

func byOwner(o *store.Object) ([]string, error) { return o.Owners().UIDs(), nil }

// Paths returns the fields to read from a collection's objects. Those that are
// configured have been checked.
func Paths(c delta.Collection, configured map[string][]string) []definition.Path {
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
		add(NodeField)
	case c.Group == "batch" && c.Resource == "jobs":
		add(selectorField)
	}
	return list
}

// fieldNames are the fields that selectors may use.
func (c *Indexes) fieldNames() []string {
	names := []string{NameField, NamespaceField}
	for _, p := range c.plan.Load().Paths() {
		names = append(names, p.String())
	}
	return names
}

// Field returns the name under which objects have the field of a selector: a
// path may be written in several ways. A field of a declared index can be used
// once every object has been read by it.
func (c *Indexes) Field(name string) (string, error) {
	if name == NameField || name == NamespaceField {
		return name, nil
	}
	plan := c.plan.Load()
	if !plan.Reads(name) {
		p, err := definition.ParsePath(name)
		switch {
		case err == nil && plan.Reads(p.String()):
			name = p.String()
		case !c.Declarations.complete():
			return "", fault.New(fault.ErrIndexBuilding, fmt.Sprintf("field %.100q of %s: which indexes are declared is not known yet", name, c.name), "collection", c.name)
		default:
			return "", rpc.InvalidArgument("field_selector",
				fmt.Sprintf("field %.100q is not indexed in %s; there are %s", name, c.name, strings.Join(c.fieldNames(), ", ")))
		}
	}
	if !c.read.Load().Reads(name) {
		return "", fault.New(fault.ErrIndexBuilding, fmt.Sprintf("field %.100q of %s", name, c.name), "collection", c.name)
	}
	return name, nil
}

// IndexOf returns the index that files objects under the values of a field; ""
// when there is none.
func (c *Indexes) IndexOf(field string) string {
	if field == NodeField && isPods(c.id) {
		return NodeIndex
	}
	for _, d := range *c.declared.Load() {
		if d.program != nil && d.program.Path().String() == field {
			return d.Name
		}
	}
	return ""
}

// PlanOf is what one index needs of an object; without the expressions of the
// others.
func (c *Indexes) PlanOf(index string) *extract.Plan {
	var programs []*definition.Program
	if d := find(*c.declared.Load(), index); d != nil && d.program != nil {
		programs = append(programs, d.program)
	}
	return extract.NewPlan(c.paths, programs)
}
