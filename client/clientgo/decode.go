package clientgo

import (
	"errors"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/deltaplane/deltaplane/client"
)

// What an example object is refused for.
var (
	// ErrUnknownType: the scheme does not have the type.
	ErrUnknownType = errors.New("clientgo: the scheme does not have the type")
	// ErrNoResource: neither the example nor the configuration says which resource it is.
	ErrNoResource = errors.New("clientgo: the resource is not known")
)

// decode makes an object of a payload.
type decodeFunc func(client.Object) (runtime.Object, error)

// decoder decodes objects of the type of an example. As those of client-go, typed objects have no
// kind and apiVersion; unstructured ones and metadata have.
func decoder(example runtime.Object, scheme *runtime.Scheme) (decodeFunc, error) {
	if _, err := conversion.EnforcePtr(example); err != nil {
		return nil, fmt.Errorf("%w: %T: %w", ErrUnknownType, example, err)
	}
	switch example.(type) {
	case *unstructured.Unstructured:
		return func(o client.Object) (runtime.Object, error) {
			u := &unstructured.Unstructured{}
			return u, u.UnmarshalJSON(o.Payload)
		}, nil
	case *metav1.PartialObjectMetadata:
		return func(o client.Object) (runtime.Object, error) {
			m := &metav1.PartialObjectMetadata{}
			return m, utiljson.Unmarshal(o.Payload, m)
		}, nil
	}
	if _, _, err := scheme.ObjectKinds(example); err != nil {
		return nil, fmt.Errorf("%w: %T: %w", ErrUnknownType, example, err)
	}
	typ := reflect.TypeOf(example).Elem()
	s := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{})
	return func(o client.Object) (runtime.Object, error) {
		into := reflect.New(typ).Interface().(runtime.Object) //nolint:errcheck,forcetypeassert // as the example
		obj, _, err := s.Decode(o.Payload, nil, into)
		if err != nil {
			return nil, err
		}
		if obj != into {
			return nil, fmt.Errorf("a %T where a %T was expected", obj, into)
		}
		obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
		return obj, nil
	}, nil
}

// resourceOf guesses the resource of an example, by the plural of its kind.
func resourceOf(example runtime.Object, scheme *runtime.Scheme) (schema.GroupVersionResource, error) {
	kind := example.GetObjectKind().GroupVersionKind()
	if kind.Kind == "" || kind.Version == "" {
		kinds, _, err := scheme.ObjectKinds(example)
		if _, free := example.(*metav1.PartialObjectMetadata); free || err != nil || len(kinds) != 1 {
			return schema.GroupVersionResource{}, fmt.Errorf("%w: a %T; set its kind and apiVersion, or Resource", ErrNoResource, example)
		}
		kind = kinds[0]
	}
	resource, _ := meta.UnsafeGuessKindToResource(kind)
	return resource, nil
}
