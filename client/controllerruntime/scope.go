package controllerruntime

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// scope is one selection of the objects of a kind, as cache.Options ask for it.
type scope struct {
	namespace string // "" for all of them
	labels    labels.Selector
	fields    fields.Selector // also leaves out namespaces that have a scope of their own
	transform toolscache.TransformFunc
	resync    time.Duration
}

// defaultResync is controller-runtime's.
const defaultResync = 10 * time.Hour

// settings are cache.Options by kind.
type settings struct {
	defaults   cache.Config
	namespaces map[string]cache.Config
	byKind     map[schema.GroupVersionKind]cache.ByObject
}

// newSettings checks options as controller-runtime does.
func newSettings(o cache.Options) (settings, error) {
	s := settings{
		defaults: cache.Config{
			LabelSelector: o.DefaultLabelSelector, FieldSelector: o.DefaultFieldSelector, Transform: o.DefaultTransform, SyncPeriod: o.SyncPeriod,
		},
		namespaces: o.DefaultNamespaces, byKind: map[schema.GroupVersionKind]cache.ByObject{},
	}
	for obj, by := range o.ByObject {
		gvk, err := apiutil.GVKForObject(obj, o.Scheme)
		if err != nil {
			return s, fmt.Errorf("failed to get GVK for type %T: %w", obj, err)
		}
		namespaced, err := apiutil.IsObjectNamespaced(obj, o.Scheme, o.Mapper)
		if err != nil {
			return s, fmt.Errorf("failed to determine if %T is namespaced: %w", obj, err)
		}
		if !namespaced && by.Namespaces != nil {
			return s, fmt.Errorf("type %T is not namespaced, but its ByObject.Namespaces setting is not nil", obj)
		}
		s.byKind[gvk] = by
	}
	return s, nil
}

// scopes are those of a kind. What is not set falls through from the namespace of the kind to the
// kind, the namespace's default and the default of all.
func (s settings) scopes(gvk schema.GroupVersionKind, namespaced bool) []scope {
	kind, own := s.byKind[gvk]
	namespaces := s.namespaces
	if own && kind.Namespaces != nil {
		namespaces = kind.Namespaces
	}
	of := cache.Config{LabelSelector: kind.Label, FieldSelector: kind.Field, Transform: kind.Transform, SyncPeriod: kind.SyncPeriod}
	if !namespaced || len(namespaces) == 0 {
		return []scope{newScope("", merge(of, s.defaults), nil)}
	}
	var all []scope
	for _, namespace := range slices.Sorted(maps.Keys(namespaces)) {
		c := merge(namespaces[namespace], of, s.namespaces[namespace], s.defaults)
		all = append(all, newScope(namespace, c, namespaces))
	}
	return all
}

// merge takes each setting from the first that has it.
func merge(c cache.Config, others ...cache.Config) cache.Config {
	for _, o := range others {
		if c.LabelSelector == nil {
			c.LabelSelector = o.LabelSelector
		}
		if c.FieldSelector == nil {
			c.FieldSelector = o.FieldSelector
		}
		if c.Transform == nil {
			c.Transform = o.Transform
		}
		if c.SyncPeriod == nil {
			c.SyncPeriod = o.SyncPeriod
		}
	}
	return c
}

func newScope(namespace string, c cache.Config, namespaces map[string]cache.Config) scope {
	s := scope{namespace: namespace, labels: c.LabelSelector, fields: c.FieldSelector, transform: c.Transform, resync: defaultResync}
	if c.SyncPeriod != nil {
		s.resync = *c.SyncPeriod
	}
	if s.labels == nil {
		s.labels = labels.Everything()
	}
	if s.fields == nil {
		s.fields = fields.Everything()
	}
	if namespace == cache.AllNamespaces {
		all := []fields.Selector{s.fields}
		for _, other := range slices.Sorted(maps.Keys(namespaces)) {
			if other != cache.AllNamespaces {
				all = append(all, fields.OneTermNotEqualSelector("metadata.namespace", other))
			}
		}
		s.fields = fields.AndSelectors(all...)
	}
	return s
}

// empty reports whether no object can be in the scope.
func (s scope) empty() bool {
	_, selects := s.labels.Requirements()
	return !selects || s.fields.String() == "" && !s.fields.Empty()
}

// id is the same for equal selections.
func (s scope) id() string {
	return strings.Join([]string{s.namespace, s.labels.String(), s.fields.String()}, ";")
}

// join makes one selector of several as they are written.
func join(selectors ...string) string {
	return strings.Join(slices.DeleteFunc(selectors, func(s string) bool { return s == "" }), ",")
}
