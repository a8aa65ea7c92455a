package kinds

import (
	stdjson "encoding/json"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/json"
)

// FieldCheck says what becomes of fields a type does not know: the fieldValidation parameter.
type FieldCheck string

// The values of fieldValidation.
const (
	IgnoreFields FieldCheck = "Ignore"
	WarnFields   FieldCheck = "Warn"
	StrictFields FieldCheck = "Strict"
)

// Decode turns a request body into an object of r with its defaults set. Errors are
// Status errors; warnings are the problems that check downgraded.
func Decode(r *Resource, data []byte, check FieldCheck) (APIObject, []string, error) {
	var probe struct {
		Kind       string `json:"kind"`
		APIVersion string `json:"apiVersion"`
	}
	if err := stdjson.Unmarshal(data, &probe); err != nil {
		return nil, nil, malformed(r, err)
	}
	if (probe.Kind != "" && probe.Kind != r.Kind) || (probe.APIVersion != "" && probe.APIVersion != r.APIVersion()) {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: the body must be of kind %s, version %q",
			probe.Kind, probe.APIVersion, r.Kind, r.Kind, r.APIVersion()))
	}
	var obj APIObject
	var problems []error
	var err error
	if r.Typed() {
		obj = r.New()
		problems, err = json.UnmarshalStrict(data, obj)
	} else {
		var u *unstructured.Unstructured
		u, problems, err = decodeUnstructured(data)
		obj = u
	}
	if err != nil {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", r.Kind, r.Version, r.Kind, err))
	}
	var texts []string
	if check != IgnoreFields {
		for _, c := range problems {
			texts = append(texts, c.Error())
		}
	}
	if check == StrictFields && len(texts) > 0 {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: strict decoding error: %s",
			r.Kind, r.Version, r.Kind, strings.Join(texts, ", ")))
	}
	obj.GetObjectKind().SetGroupVersionKind(r.gvk())
	if r.SetDefaults != nil {
		r.SetDefaults(obj)
	}
	return obj, texts, nil
}

// malformed names where a body stops being JSON.
func malformed(r *Resource, err error) error {
	where := ""
	if syntax, ok := errors.AsType[*stdjson.SyntaxError](err); ok {
		where = fmt.Sprintf(" at offset %d", syntax.Offset)
	}
	return apierrors.NewBadRequest(fmt.Sprintf("the object provided is unrecognized (must be of type %s): couldn't get version/kind; json parse error%s: %v",
		r.Kind, where, err))
}

// decodeUnstructured reads a body whose schema is unknown; its metadata is typed all the same.
func decodeUnstructured(data []byte) (*unstructured.Unstructured, []error, error) {
	var m map[string]any
	problems, err := json.UnmarshalStrict(data, &m)
	if err != nil {
		return nil, nil, err
	}
	if m == nil {
		return nil, nil, errors.New("the body is null")
	}
	u := &unstructured.Unstructured{Object: m}
	raw, ok := m["metadata"]
	if !ok || raw == nil {
		m["metadata"] = map[string]any{}
		return u, problems, nil
	}
	if _, ok := raw.(map[string]any); !ok {
		return nil, nil, errors.New("metadata must be an object")
	}
	metaJSON, err := stdjson.Marshal(raw)
	if err != nil {
		return nil, nil, err
	}
	var meta metav1.ObjectMeta
	more, err := json.UnmarshalStrict(metaJSON, &meta)
	if err != nil {
		return nil, nil, fmt.Errorf("metadata: %w", err)
	}
	m["metadata"], err = runtime.DefaultUnstructuredConverter.ToUnstructured(&meta)
	return u, append(problems, more...), err
}

// DecodeStored reads back an encoding this package wrote.
func DecodeStored(r *Resource, raw []byte) (APIObject, error) {
	if !r.Typed() {
		u, _, err := decodeUnstructured(raw)
		return u, err
	}
	obj := r.New()
	if err := json.UnmarshalCaseSensitivePreserveInts(raw, obj); err != nil {
		return nil, fmt.Errorf("stored %s: %w", r.Kind, err)
	}
	return obj, nil
}
