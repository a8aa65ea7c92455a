package answer

import (
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/deltaplane/deltaplane/core/access"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/services/gateway/mirror"
	"github.com/deltaplane/deltaplane/services/gateway/request"
)

// chooser is what a request chooses objects by, beside their namespace. A nil one chooses all.
type chooser struct {
	resource request.Resource
	scope    *access.Scope   // nil sees all
	labels   labels.Selector // nil chooses all
	fields   fields.Selector // nil chooses all
}

func choose(r *request.Read) *chooser {
	c := &chooser{resource: r.Resource}
	if r.Labels != nil && !r.Labels.Empty() {
		c.labels = r.Labels
	}
	if r.Fields != nil && !r.Fields.Empty() {
		c.fields = r.Fields
	}
	if r.Scope != nil && !r.Scope.All {
		c.scope = r.Scope
	}
	if c.labels == nil && c.fields == nil && c.scope == nil {
		return nil
	}
	return c
}

// sees reports whether an object is visible. A namespace is within itself.
func (c *chooser) sees(o *store.Object) bool {
	if c.scope == nil {
		return true
	}
	if c.resource.IsNamespaces() {
		return c.scope.Sees(o.Name())
	}
	return c.scope.Sees(o.Namespace())
}

// takes reports whether an object is chosen; a missing one is not.
func (c *chooser) takes(o *store.Object) bool {
	if o == nil {
		return false
	}
	return c == nil || c.sees(o) && (c.labels == nil || c.labels.Matches(o.Labels())) && (c.fields == nil || c.fields.Matches(selectable{c.resource, o}))
}

// selectable is an object as field selectors look at it. It implements fields.Fields.
type selectable struct {
	resource request.Resource
	object   *store.Object
}

// Has reports whether the object's field is one to select by.
func (s selectable) Has(field string) bool {
	_, ok := request.FieldPath(s.resource, field)
	return ok
}

// Get returns the field's value, empty where there is none.
func (s selectable) Get(field string) string {
	switch field {
	case "metadata.name":
		return s.object.Name()
	case "metadata.namespace":
		return s.object.Namespace()
	}
	payload, err := s.object.Payload()
	if err != nil {
		return ""
	}
	path, known := request.FieldPath(s.resource, field)
	if !known { // one of a declared index, whose values are scalars as they are written
		return mirror.Scalar(payload, path...)
	}
	return mirror.Text(payload, path...)
}
