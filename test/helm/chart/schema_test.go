package chart

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// A shape is the part of a JSON schema that says which values there are.
type shape struct {
	Ref         string           `json:"$ref"`
	Properties  map[string]shape `json:"properties"`
	Additional  any              `json:"additionalProperties"`
	Definitions map[string]shape `json:"definitions"`
}

var definitions map[string]shape

func readValues(t *testing.T) (map[string]any, map[string]shape) {
	t.Helper()
	var values map[string]any
	var s shape
	read := func(name string, into any) {
		text, err := os.ReadFile(filepath.Join(Dir(root), name))
		if err == nil && strings.HasSuffix(name, ".json") {
			err = json.Unmarshal(text, into)
		} else if err == nil {
			err = yaml.UnmarshalStrict(text, into)
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	read("values.yaml", &values)
	read("values.schema.json", &s)
	definitions = s.Definitions
	return values, s.Properties
}

// checkKnown compares what a value has with what the schema permits: both name the same.
func checkKnown(t *testing.T, path string, value any, s shape) {
	t.Helper()
	if name, is := strings.CutPrefix(s.Ref, "#/definitions/"); is {
		s = definitions[name]
	}
	m, is := value.(map[string]any)
	if !is || len(s.Properties) == 0 {
		return
	}
	if s.Additional != false {
		t.Errorf("%s permits names that nobody knows", path)
	}
	for _, key := range slices.Sorted(maps.Keys(s.Properties)) {
		if _, is := m[key]; !is && key != "claims" {
			t.Errorf("%s.%s is in the schema and not in values.yaml", path, key)
			continue
		}
		checkKnown(t, path+"."+key, m[key], s.Properties[key])
	}
	for key := range m {
		if _, is := s.Properties[key]; !is {
			t.Errorf("%s.%s is in values.yaml and not in the schema", path, key)
		}
	}
}
