package clientgo

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// What a codec is refused for.
var (
	// ErrNoCodec: a queue of a type that has no built-in codec needs one.
	ErrNoCodec = errors.New("clientgo: the type has no codec")
	// ErrKey: an item has no key, or a key is none that the codec makes. Nothing is lost: see
	// [NewQueue].
	ErrKey = errors.New("clientgo: not a key of this queue")
)

// Codec makes the keys of a queue: equal items must have equal keys, and Decode must return the
// item that Encode made the key of. A key is 1 to 1,024 bytes of UTF-8. Both must be safe for
// concurrent use.
//
// Built in are string, types.NamespacedName and types that convert to it (cache.ObjectName), and
// structs whose only field is an exported one of these, as reconcile.Request is. Their keys are
// those of the index, `namespace/name` or `name`, so that a queue can also be filled by a
// [client.Trigger].
//
// [client.Trigger]: https://pkg.go.dev/github.com/deltaplane/deltaplane/client#Trigger
type Codec[T comparable] interface {
	Encode(item T) (key string, err error)
	Decode(key string) (T, error)
}

// CodecFor is the codec of a type that has one built in; the error is [ErrNoCodec] otherwise.
func CodecFor[T comparable]() (Codec[T], error) {
	if c, ok := any(texts{}).(Codec[T]); ok {
		return c, nil
	}
	t, name := reflect.TypeFor[T](), reflect.TypeFor[types.NamespacedName]()
	switch {
	case t.Kind() != reflect.Struct:
	case t.ConvertibleTo(name):
		return names[T]{t: t}, nil
	case t.NumField() == 1 && t.Field(0).IsExported() && t.Field(0).Type.ConvertibleTo(name):
		return names[T]{t: t, nested: true}, nil
	}
	return nil, fmt.Errorf("%w: %v; set QueueConfig.Codec", ErrNoCodec, t)
}

type texts struct{}

func (texts) Encode(item string) (string, error) { return item, nil }
func (texts) Decode(key string) (string, error)  { return key, nil }

// names is the codec of namespaced names and of structs around one.
type names[T comparable] struct {
	t      reflect.Type
	nested bool
}

func (c names[T]) Encode(item T) (string, error) {
	v := reflect.ValueOf(item)
	if c.nested {
		v = v.Field(0)
	}
	n := v.Convert(reflect.TypeFor[types.NamespacedName]()).Interface().(types.NamespacedName) //nolint:errcheck,forcetypeassert // it was converted
	if strings.Contains(n.Namespace, "/") || strings.Contains(n.Name, "/") {
		return "", fmt.Errorf("%w: a slash in namespace %q or name %q", ErrKey, n.Namespace, n.Name)
	}
	if n.Namespace == "" && n.Name != "" {
		return n.Name, nil
	}
	return n.Namespace + "/" + n.Name, nil // "/" for the zero value, which some controllers use
}

func (c names[T]) Decode(key string) (item T, err error) {
	var n types.NamespacedName
	var ok bool
	if n.Namespace, n.Name, ok = strings.Cut(key, "/"); !ok {
		n = types.NamespacedName{Name: key}
	}
	v := reflect.ValueOf(&item).Elem()
	if c.nested {
		v = v.Field(0)
	}
	v.Set(reflect.ValueOf(n).Convert(v.Type()))
	return item, nil
}

// EncodeKey has a codec make the key of an item. The error wraps [ErrKey].
func EncodeKey[T comparable](c Codec[T], item T) (key string, err error) {
	key, err = c.Encode(item)
	switch {
	case err == nil:
		return key, nil
	case errors.Is(err, ErrKey):
		return "", err
	default:
		return "", fmt.Errorf("%w: %v: %w", ErrKey, item, err)
	}
}

// DecodeKey has a codec decode a key, and refuses one that it would not make ([ErrKey]): Done of
// the item could not name it.
func DecodeKey[T comparable](c Codec[T], key string) (item T, err error) {
	if item, err = c.Decode(key); err != nil {
		return item, fmt.Errorf("%w: %q: %w", ErrKey, key, err)
	}
	again, err := c.Encode(item)
	if err != nil {
		return item, fmt.Errorf("%w: %q: %w", ErrKey, key, err)
	}
	if again != key {
		return item, fmt.Errorf("%w: %q: its item has the key %q", ErrKey, key, again)
	}
	return item, nil
}
