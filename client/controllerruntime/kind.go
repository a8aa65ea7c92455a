package controllerruntime

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	toolscache "k8s.io/client-go/tools/cache"
	crclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/deltaplane/deltaplane/client"
)

// form is how objects of a kind are decoded. Each has informers of its own.
type form uint8

const (
	structured form = iota
	schemaless
	metadata
)

func formOf(obj runtime.Object) form {
	switch obj.(type) {
	case runtime.Unstructured:
		return schemaless
	case *metav1.PartialObjectMetadata, *metav1.PartialObjectMetadataList:
		return metadata
	default:
		return structured
	}
}

// kind is a type of objects in one form.
type kind struct {
	gvk        schema.GroupVersionKind
	form       form
	typ        reflect.Type // of structured objects, without the pointer
	resource   schema.GroupVersionResource
	namespaced bool
	scopes     []scope
}

// kindKey tells kinds apart.
type kindKey struct {
	gvk  schema.GroupVersionKind
	form form
}

// keyOf is the kind of an object or a list.
func (c *remote) keyOf(obj runtime.Object) (kindKey, error) {
	gvk, err := apiutil.GVKForObject(obj, c.scheme)
	if err != nil {
		return kindKey{}, err
	}
	if meta.IsListType(obj) {
		gvk.Kind = strings.TrimSuffix(gvk.Kind, "List")
	}
	return kindKey{gvk, formOf(obj)}, nil
}

// kind is what it takes to read a kind. The first call may ask the API server.
func (c *remote) kind(key kindKey) (kind, error) {
	if k, ok := c.kinds.Load(key); ok {
		return k.(kind), nil //nolint:forcetypeassert // it has no others
	}
	k, err := c.newKind(key)
	if err == nil {
		c.kinds.Store(key, k)
	}
	return k, err
}

func (c *remote) newKind(key kindKey) (kind, error) {
	k := kind{gvk: key.gvk, form: key.form}
	if key.form == structured {
		example, err := c.scheme.New(key.gvk)
		if err != nil {
			return k, err
		}
		if _, ok := example.(crclient.Object); !ok {
			return k, fmt.Errorf("controllerruntime: %T is no object", example)
		}
		k.typ = reflect.TypeOf(example).Elem()
	}
	mapping, err := c.mapper.RESTMapping(key.gvk.GroupKind(), key.gvk.Version)
	if err != nil {
		return k, err
	}
	k.resource, k.namespaced = mapping.Resource, mapping.Scope.Name() == meta.RESTScopeNameNamespace
	k.scopes = c.settings.scopes(key.gvk, k.namespaced)
	return k, nil
}

// view is what is asked of the index: metadata-only objects are sent without the rest.
func (k kind) view() client.View {
	if k.form == metadata {
		return client.ViewMetadata
	}
	return client.ViewFull
}

// blank is a new object of the kind without content. Structured ones have no kind and apiVersion,
// as client-go's.
func (k kind) blank() crclient.Object {
	switch k.form {
	case schemaless:
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(k.gvk)
		return u
	case metadata:
		m := &metav1.PartialObjectMetadata{}
		m.SetGroupVersionKind(k.gvk)
		return m
	default:
		return reflect.New(k.typ).Interface().(crclient.Object) //nolint:forcetypeassert // newKind looked
	}
}

var errNoContent = errors.New("controllerruntime: the index has no content of the object")

// decode makes an object of what the index has, and passes it through the scope's transform.
func (k kind) decode(o client.Object, transform toolscache.TransformFunc) (crclient.Object, error) {
	if o.Quarantined {
		return nil, fmt.Errorf("%w: %w", errNoContent, client.ErrKeyQuarantined)
	}
	if len(o.Payload) == 0 {
		return nil, errNoContent
	}
	obj := k.blank()
	var err error
	if u, ok := obj.(*unstructured.Unstructured); ok {
		err = u.UnmarshalJSON(o.Payload)
	} else {
		err = json.Unmarshal(o.Payload, obj)
	}
	if err != nil {
		return nil, fmt.Errorf("controllerruntime: decode %s %s: %w", k.gvk.Kind, o.Key, err)
	}
	if gvk := k.gvk; k.form != schemaless {
		if k.form == structured {
			gvk = schema.GroupVersionKind{}
		}
		obj.GetObjectKind().SetGroupVersionKind(gvk)
	}
	if transform == nil {
		return obj, nil
	}
	changed, err := transform(obj)
	if err != nil {
		return nil, fmt.Errorf("controllerruntime: transform %s %s: %w", k.gvk.Kind, o.Key, err)
	}
	obj, ok := changed.(crclient.Object)
	if !ok {
		return nil, fmt.Errorf("controllerruntime: transform %s %s: it returned a %T", k.gvk.Kind, o.Key, changed)
	}
	return obj, nil
}

// shell is an object of which no more than its key is known.
func (k kind) shell(o client.Object) crclient.Object {
	obj := k.blank()
	namespace, name := split(o.Key)
	obj.SetNamespace(namespace)
	obj.SetName(name)
	obj.SetUID(uidOf(o))
	obj.SetResourceVersion(o.ResourceVersion)
	return obj
}

// set copies an object to where a caller wants it.
func (k kind) set(out crclient.Object, obj crclient.Object) error {
	to, from := reflect.ValueOf(out), reflect.ValueOf(obj)
	if !from.Type().AssignableTo(to.Type()) {
		return fmt.Errorf("cache had type %s, but %s was asked for", from.Type(), to.Type())
	}
	reflect.Indirect(to).Set(reflect.Indirect(from))
	out.GetObjectKind().SetGroupVersionKind(k.gvk)
	return nil
}
