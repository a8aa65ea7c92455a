package reflector

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/rpc"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// ParseResource reads "name[/namespace[+namespace...]]", with the name as in [Resource].
func ParseResource(s string) (Resource, error) {
	name, namespaces, scoped := strings.Cut(s, "/")
	r := Resource{Name: name}
	switch {
	case scoped && namespaces == "", strings.Contains(namespaces, "/"):
		return Resource{}, fmt.Errorf("reflector: resource %q: want name[.version][.group][/namespace[+namespace...]]", s)
	case strings.Contains(namespaces, "+"):
		r.Namespaces = strings.Split(namespaces, "+")
	default:
		r.Scope = kube.Scope{Namespace: namespaces}
	}
	return r, r.validate()
}

// ParseSpec reads a resource from the JSON form of a ReflectionSpec, such as {"resource": "pods",
// "metadata_only": true}, and checks it. It returns all faults together, each under the name of its
// field; a fault of the whole has none.
func ParseSpec(text []byte) (Resource, []*rpc.FieldError) {
	var given map[string]json.RawMessage
	if err := json.Unmarshal(text, &given); err != nil {
		return Resource{}, []*rpc.FieldError{{Description: fmt.Sprintf("%.200s: %v", text, err), Err: err}}
	}
	var faults []*rpc.FieldError
	p, wrong := &reflectorv1.ReflectionSpec{}, map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		for _, f := range readField(name, given[name], p) {
			faults = append(faults, f)
			wrong[strings.ToLower(strings.ReplaceAll(name, "_", ""))] = true
		}
	}
	if len(faults) == 0 { // a field that is there under two names
		if err := protojson.Unmarshal(text, &reflectorv1.ReflectionSpec{}); err != nil {
			faults = append(faults, &rpc.FieldError{Description: because(err), Err: err})
		}
	}
	r := fromProto(p)
	for _, f := range r.faults() {
		field, _, _ := strings.Cut(f.Field, "[")
		if !wrong[strings.ReplaceAll(field, "_", "")] { // it was given, and is told already
			faults = append(faults, f)
		}
	}
	return r, faults
}

// readField adds one field of a spec to p. The parser itself names a place in the text, and stops
// at the first fault.
func readField(name string, value json.RawMessage, p *reflectorv1.ReflectionSpec) []*rpc.FieldError {
	read := func(value json.RawMessage) error {
		text, err := json.Marshal(map[string]json.RawMessage{name: value})
		if err != nil {
			return err
		}
		one := &reflectorv1.ReflectionSpec{}
		if err := protojson.Unmarshal(text, one); err != nil {
			return err
		}
		proto.Merge(p, one)
		return nil
	}
	err := read(value)
	if err == nil {
		return nil
	}
	var faults []*rpc.FieldError
	var items []json.RawMessage
	if json.Unmarshal(value, &items) == nil && isList(name) {
		for i, item := range items {
			if err := read(json.RawMessage("[" + string(item) + "]")); err != nil {
				faults = append(faults, &rpc.FieldError{Field: fmt.Sprintf("%s[%d]", name, i), Description: because(err), Err: err})
			}
		}
	}
	if len(faults) == 0 {
		faults = append(faults, &rpc.FieldError{Field: name, Description: because(err), Err: err})
	}
	return faults
}

// isList reports whether a spec's field of that name, in either of its spellings, is a list.
func isList(name string) bool {
	fields := (&reflectorv1.ReflectionSpec{}).ProtoReflect().Descriptor().Fields()
	d := cmp.Or(fields.ByTextName(name), fields.ByJSONName(name))
	return d != nil && d.IsList()
}

// because is what the parser says, without its name and without the place in a text that nobody
// wrote.
func because(err error) string {
	text := strings.ReplaceAll(strings.TrimPrefix(err.Error(), "proto:"), "\u00a0", " ")
	text = strings.TrimSpace(text)
	if strings.HasPrefix(text, "(line ") || strings.HasPrefix(text, "syntax error (line ") {
		if _, rest, ok := strings.Cut(text, "): "); ok {
			text = rest
		}
	}
	return text
}
