package devcluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// apiObject is a decoded API object: a typed struct of k8s.io/api for built-in
// kinds, *unstructured.Unstructured for everything served from a CRD.
type apiObject interface {
	runtime.Object
	metav1.Object
}

// objectKey is the key under which an object is stored.
func objectKey(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}

// head is how every stored encoding of a kind begins.
func head(apiVersion, kind string) []byte {
	return fmt.Appendf(nil, `{"kind":%q,"apiVersion":%q,`, kind, apiVersion)
}

// encode renders obj at resource version rv, setting it in obj, with kind and
// apiVersion first, so that lists can leave them out without decoding.
func encode(r *resource, obj apiObject, rv uint64) ([]byte, error) {
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
			return nil, fmt.Errorf("encode %s: %w", r.kind, err)
		}
		return append(head(r.apiVersion(), r.kind), raw[1:]...), nil
	}
	obj.GetObjectKind().SetGroupVersionKind(r.gvk())
	raw, err := json.Marshal(obj)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", r.kind, err)
	}
	return raw, nil
}

// bare is a stored encoding without kind and apiVersion, the form that typed
// items have inside a JSON list.
func bare(r *resource, raw []byte) []byte {
	if rest, ok := bytes.CutPrefix(raw, r.head); ok {
		return rest
	}
	return raw
}
