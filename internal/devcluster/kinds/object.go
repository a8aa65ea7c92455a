package kinds

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// APIObject is a decoded API object: a typed struct of k8s.io/api for built-in
// kinds, *unstructured.Unstructured for everything served from a CRD.
type APIObject interface {
	runtime.Object
	metav1.Object
}

// ObjectKey is the key under which an object is stored.
func ObjectKey(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}

// head is how every stored encoding of a kind begins.
func head(apiVersion, kind string) []byte {
	return fmt.Appendf(nil, `{"kind":%q,"apiVersion":%q,`, kind, apiVersion)
}

// Encode renders obj at resource version rv, setting it in obj, with kind and
// APIVersion first, so that lists can leave them out without decoding.
func Encode(r *Resource, obj APIObject, rv uint64) ([]byte, error) {
	obj.SetResourceVersion(strconv.FormatUint(rv, 10))
	if u, ok := obj.(*unstructured.Unstructured); ok {
		body := make(map[string]any, len(u.Object))
		for k, v := range u.Object {
			if k != "kind" && k != "apiVersion" {
				body[k] = v
			}
		}
		raw, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", r.Kind, err)
		}
		return append(head(r.APIVersion(), r.Kind), raw[1:]...), nil
	}
	obj.GetObjectKind().SetGroupVersionKind(r.gvk())
	raw, err := json.Marshal(obj)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", r.Kind, err)
	}
	return raw, nil
}

// Bare is a stored encoding without kind and APIVersion, the form that typed
// items have inside a JSON list.
func Bare(r *Resource, raw []byte) []byte {
	if rest, ok := bytes.CutPrefix(raw, r.head); ok {
		return rest
	}
	return raw
}
