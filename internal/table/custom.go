package table

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/util/jsonpath"
)

// Column is one of a custom resource, behind its name.
type Column struct {
	Name, Type, JSONPath string
	Priority             int32 // above 0: only wide tables have it
}

// OfDefinition are the columns of a CustomResourceDefinition for a version, empty where it names
// none; found is false where it has no such version.
func OfDefinition(definition []byte, version string) (columns []Column, found bool, err error) {
	var d struct {
		Spec struct {
			Versions []struct {
				Name                     string
				AdditionalPrinterColumns []Column
			}
		}
	}
	if err := json.Unmarshal(definition, &d); err != nil {
		return nil, false, fmt.Errorf("table: definition: %w", err)
	}
	for _, v := range d.Spec.Versions {
		if v.Name == version {
			return append([]Column{}, v.AdditionalPrinterColumns...), true, nil
		}
	}
	return nil, false, nil
}

// ageColumn is what a custom resource without columns has.
var ageColumn = []Column{{Name: "Age", Type: "date", JSONPath: ".metadata.creationTimestamp"}}

// customRows is the rower of a custom resource; nil where the API server has other columns.
func customRows(columns []metav1.TableColumnDefinition, custom []Column) (rower, error) {
	if len(custom) == 0 {
		custom = ageColumn
	}
	if len(columns) != len(custom)+1 || columns[0].Name != "Name" {
		return nil, nil //nolint:nilnil // they are not known
	}
	for i, c := range custom {
		if have := columns[i+1]; have.Name != c.Name || have.Type != c.Type {
			return nil, nil //nolint:nilnil // as above
		}
	}
	return pathRows(custom)
}

// pathRows makes the cells of custom columns, behind the name.
func pathRows(custom []Column) (rower, error) {
	if _, err := parsePaths(custom); err != nil {
		return nil, err
	}
	// A path remembers what it found last, so one row at a time has it.
	pool := sync.Pool{New: func() any {
		paths, _ := parsePaths(custom) // they were parsed before
		return &paths
	}}
	return func(object []byte, now time.Time) ([]any, []metav1.TableRowCondition, error) {
		var content map[string]any
		if err := utiljson.Unmarshal(object, &content); err != nil {
			return nil, nil, err
		}
		meta, _ := content["metadata"].(map[string]any)
		cells := []any{meta["name"]}
		paths := pool.Get().(*[]*jsonpath.JSONPath) //nolint:forcetypeassert // it has no others
		defer pool.Put(paths)
		for i, c := range custom {
			cells = append(cells, cell((*paths)[i], c.Type, content, now))
		}
		return cells, nil, nil
	}, nil
}

func parsePaths(custom []Column) ([]*jsonpath.JSONPath, error) {
	paths := make([]*jsonpath.JSONPath, len(custom))
	for i, c := range custom {
		paths[i] = jsonpath.New(c.Name).AllowMissingKeys(true)
		if err := paths[i].Parse("{" + c.JSONPath + "}"); err != nil {
			return nil, fmt.Errorf("table: column %q: %w", c.Name, err)
		}
	}
	return paths, nil
}

// cell is what is at a path, as the type of its column has it; nil where that is nothing.
func cell(path *jsonpath.JSONPath, kind string, content map[string]any, now time.Time) any {
	found, err := path.FindResults(content)
	if err != nil || len(found) == 0 || len(found[0]) == 0 {
		return nil
	}
	value := found[0][0].Interface()
	if kind == "string" {
		var text bytes.Buffer
		if path.PrintResults(&text, []reflect.Value{reflect.ValueOf(value)}) != nil {
			return nil
		}
		return text.String()
	}
	switch v := value.(type) {
	case int64:
		switch kind {
		case "integer":
			return v
		case "number":
			return float64(v)
		}
	case float64:
		switch kind {
		case "integer":
			return int64(v)
		case "number":
			return v
		}
	case bool:
		if kind == "boolean" {
			return v
		}
	case string:
		if kind == "date" {
			return date(v, now)
		}
	}
	return nil
}

func date(text string, now time.Time) string {
	var t metav1.Time
	if t.UnmarshalQueryParameter(text) != nil {
		return "<invalid>"
	}
	return since(t.Time, now)
}
