package devcluster

import (
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// resource describes one served kind. Every handler is driven by it; a CRD adds
// one at run time. It is immutable once registered.
type resource struct {
	group, version         string
	plural, singular, kind string
	shortNames, categories []string
	namespaced             bool
	custom                 bool // objects are unstructured and served because of a CRD
	hasStatus              bool // serves the /status sub-resource
	hasGeneration          bool // metadata.generation counts changes of the spec
	createOnUpdate         bool // PUT of a missing object creates it
	needsVersion           bool // PUT without a resource version is refused
	returnsDeleted         bool // the final DELETE answers the object, not a Status
	orphansByDefault       bool // deletion without a policy orphans the dependents
	subresources           []string

	make func() apiObject
	// fields are the selectable fields besides metadata.name and metadata.namespace.
	fields func(apiObject) map[string]string
	// fieldNames lists the keys fields may return.
	fieldNames []string
	// setDefaults fills what the API fills on every decode.
	setDefaults func(apiObject)
	// prepareCreate runs once identity (uid, names) is set: derived fields, status reset.
	prepareCreate func(apiObject)
	validate      func(apiObject) field.ErrorList
	// prepareUpdate and validateUpdate get (new, old). The status is already the old one's.
	prepareUpdate        func(obj, old apiObject)
	prepareStatus        func(obj, old apiObject) // the same for a write of the status
	validateUpdate       func(obj, old apiObject) field.ErrorList
	validateStatusUpdate func(obj, old apiObject) field.ErrorList
	// copyStatus sets dst's status from src; copySpec everything that is not metadata or status.
	copyStatus func(dst, src apiObject)
	copySpec   func(dst, src apiObject)
	nameFormat func(name string, prefix bool) []string
	columns    []column

	head []byte
}

// column is one column of the Table that kubectl prints.
type column struct {
	metav1.TableColumnDefinition
	value func(apiObject) any
}

func (r *resource) gvk() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: r.group, Version: r.version, Kind: r.kind}
}

func (r *resource) apiVersion() string {
	return schema.GroupVersion{Group: r.group, Version: r.version}.String()
}

func (r *resource) groupResource() schema.GroupResource {
	return schema.GroupResource{Group: r.group, Resource: r.plural}
}

func (r *resource) groupKind() schema.GroupKind {
	return schema.GroupKind{Group: r.group, Kind: r.kind}
}

// id names the resource's table: "jobs.batch", "pods".
func (r *resource) id() string { return r.groupResource().String() }

// typed reports whether objects are Go structs, which know their fields.
func (r *resource) typed() bool { return !r.custom && r.kind != "CustomResourceDefinition" }

// registry is the set of served resources. It is safe for concurrent use.
type registry struct {
	mu   sync.RWMutex
	byID map[string]*resource
}

func newRegistry(builtin []*resource) *registry {
	g := &registry{byID: make(map[string]*resource, len(builtin))}
	for _, r := range builtin {
		g.add(r)
	}
	return g
}

func (g *registry) add(r *resource) {
	r.head = head(r.apiVersion(), r.kind)
	r.head = append([]byte(nil), r.head...)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.byID[r.id()] = r
}

func (g *registry) remove(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.byID, id)
}

// find returns the resource served at group, version and plural, or nil.
func (g *registry) find(group, version, plural string) *resource {
	g.mu.RLock()
	defer g.mu.RUnlock()
	r := g.byID[schema.GroupResource{Group: group, Resource: plural}.String()]
	if r == nil || r.version != version {
		return nil
	}
	return r
}

// get returns the resource of a table's id, or nil.
func (g *registry) get(id string) *resource {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.byID[id]
}

// all lists the resources by group, then plural.
func (g *registry) all() []*resource {
	g.mu.RLock()
	defer g.mu.RUnlock()
	out := make([]*resource, 0, len(g.byID))
	for _, r := range g.byID {
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b *resource) int {
		if c := strings.Compare(a.group, b.group); c != 0 {
			return c
		}
		return strings.Compare(a.plural, b.plural)
	})
	return out
}

// hasGroup reports whether anything is served in a group and version.
func (g *registry) hasGroup(group, version string) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	for _, r := range g.byID {
		if r.group == group && (version == "" || r.version == version) {
			return true
		}
	}
	return false
}

// selectable reports whether a field selector on r may name the field.
func (r *resource) selectable(name string) bool {
	if name == "metadata.name" || (name == "metadata.namespace" && (r.namespaced || !r.custom)) {
		return true
	}
	return slices.Contains(r.fieldNames, name)
}
