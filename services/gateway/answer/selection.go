package answer

import (
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/services/gateway/mirror"
	"github.com/deltaplane/deltaplane/services/gateway/request"
)

// chooser is what a request chooses objects by, beside their namespace. A nil one chooses all.
type chooser struct {
	labels labels.Selector
	fields []term
}

// term is one field and what it must be.
type term struct {
	path  []string
	value string
	not   bool
}

func choose(r *request.Read) *chooser {
	c := &chooser{}
	if r.Labels != nil && !r.Labels.Empty() {
		c.labels = r.Labels
	}
	if r.Fields != nil {
		for _, one := range r.Fields.Requirements() {
			path, _ := request.FieldPath(r.Resource, one.Field) // the request was parsed by it
			c.fields = append(c.fields, term{path, one.Value, one.Operator == selection.NotEquals})
		}
	}
	if c.labels == nil && len(c.fields) == 0 {
		return nil
	}
	return c
}

// takes reports whether an object is chosen; a missing one is not.
func (c *chooser) takes(o *store.Object) bool {
	if o == nil {
		return false
	}
	if c == nil {
		return true
	}
	if c.labels != nil && !c.labels.Matches(o.Labels()) {
		return false
	}
	for _, t := range c.fields {
		if (t.of(o) == t.value) == t.not {
			return false
		}
	}
	return true
}

func (t *term) of(o *store.Object) string {
	if t.path[0] == "metadata" {
		if t.path[1] == "name" {
			return o.Name()
		}
		return o.Namespace()
	}
	payload, err := o.Payload()
	if err != nil {
		return ""
	}
	return mirror.Text(payload, t.path...)
}
