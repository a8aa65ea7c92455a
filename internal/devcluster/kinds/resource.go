package kinds

import (
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Resource describes one served kind. Every handler is driven by it; a CRD adds
// one at run time. It is immutable once registered.
type Resource struct {
	Group, Version         string
	Plural, Singular, Kind string
	ShortNames, Categories []string
	Namespaced             bool
	Custom                 bool // objects are unstructured and served because of a CRD
	HasStatus              bool // serves the /status sub-resource
	HasGeneration          bool // metadata.generation counts changes of the spec
	CreateOnUpdate         bool // PUT of a missing object creates it
	NeedsVersion           bool // PUT without a resource version is refused
	ReturnsDeleted         bool // the final DELETE answers the object, not a Status
	OrphansByDefault       bool // deletion without a policy orphans the dependents
	Subresources           []string

	New func() APIObject
	// Fields are the selectable fields besides metadata.name and metadata.namespace.
	Fields func(APIObject) map[string]string
	// fieldNames lists the keys fields may return.
	fieldNames []string
	// SetDefaults fills what the API fills on every decode.
	SetDefaults func(APIObject)
	// PrepareCreate runs once identity (uid, names) is set: derived fields, status reset.
	PrepareCreate func(APIObject)
	Validate      func(APIObject) field.ErrorList
	// PrepareUpdate and ValidateUpdate get (new, old). The status is already the old one's.
	PrepareUpdate        func(obj, old APIObject)
	PrepareStatus        func(obj, old APIObject) // the same for a write of the status
	ValidateUpdate       func(obj, old APIObject) field.ErrorList
	ValidateStatusUpdate func(obj, old APIObject) field.ErrorList
	// CopyStatus sets dst's status from src; CopySpec everything that is not metadata or status.
	CopyStatus func(dst, src APIObject)
	CopySpec   func(dst, src APIObject)
	NameFormat func(name string, prefix bool) []string
	Columns    []Column

	head []byte
}

// Column is one column of the Table that kubectl prints.
type Column struct {
	metav1.TableColumnDefinition
	Value func(APIObject) any
}

func (r *Resource) gvk() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: r.Group, Version: r.Version, Kind: r.Kind}
}

// APIVersion is group/version, as objects carry it.
func (r *Resource) APIVersion() string {
	return schema.GroupVersion{Group: r.Group, Version: r.Version}.String()
}

// GroupResource names the resource in errors.
func (r *Resource) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: r.Group, Resource: r.Plural}
}

// GroupKind names the kind in errors.
func (r *Resource) GroupKind() schema.GroupKind {
	return schema.GroupKind{Group: r.Group, Kind: r.Kind}
}

// ID names the resource's table: "jobs.batch", "pods".
func (r *Resource) ID() string { return r.GroupResource().String() }

// Typed reports whether objects are Go structs, which know their fields.
func (r *Resource) Typed() bool { return !r.Custom && r.Kind != "CustomResourceDefinition" }

// Registry is the set of served resources. It is safe for concurrent use.
type Registry struct {
	mu   sync.RWMutex
	byID map[string]*Resource
}

// NewRegistry makes a registry that serves the given kinds.
func NewRegistry(builtin []*Resource) *Registry {
	g := &Registry{byID: make(map[string]*Resource, len(builtin))}
	for _, r := range builtin {
		g.add(r)
	}
	return g
}

func (g *Registry) add(r *Resource) {
	r.head = head(r.APIVersion(), r.Kind)
	r.head = append([]byte(nil), r.head...)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.byID[r.ID()] = r
}

// Remove stops serving the resource of a table's id.
func (g *Registry) Remove(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.byID, id)
}

// Find returns the resource served at group, version and plural, or nil.
func (g *Registry) Find(group, version, plural string) *Resource {
	g.mu.RLock()
	defer g.mu.RUnlock()
	r := g.byID[schema.GroupResource{Group: group, Resource: plural}.String()]
	if r == nil || r.Version != version {
		return nil
	}
	return r
}

// Get returns the resource of a table's id, or nil.
func (g *Registry) Get(id string) *Resource {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.byID[id]
}

// All lists the resources by group, then plural.
func (g *Registry) All() []*Resource {
	g.mu.RLock()
	defer g.mu.RUnlock()
	out := make([]*Resource, 0, len(g.byID))
	for _, r := range g.byID {
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b *Resource) int {
		if c := strings.Compare(a.Group, b.Group); c != 0 {
			return c
		}
		return strings.Compare(a.Plural, b.Plural)
	})
	return out
}

// HasGroup reports whether anything is served in a group and version.
func (g *Registry) HasGroup(group, version string) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	for _, r := range g.byID {
		if r.Group == group && (version == "" || r.Version == version) {
			return true
		}
	}
	return false
}

// Selectable reports whether a field selector on r may name the field.
func (r *Resource) Selectable(name string) bool {
	if name == "metadata.name" || (name == "metadata.namespace" && (r.Namespaced || !r.Custom)) {
		return true
	}
	return slices.Contains(r.fieldNames, name)
}
