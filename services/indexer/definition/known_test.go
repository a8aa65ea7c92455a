package definition_test

import (
	"strings"
	"testing"

	"github.com/deltaplane/deltaplane/services/indexer/definition"
)

func TestExpressionsThatNoObjectCanBeFiledByAreRefused(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		// What the types of metadata show.
		"object.metadata.labels":                          "want string or list(string)",
		"object.metadata.generation":                      "want string or list(string)",
		"has(object.metadata.labels)":                     "want string or list(string)",
		"object.metadata.ownerReferences.map(o, size(o))": "want string or list(string)",
		// What fails, or returns something else, whatever the object is.
		"object.metadata.nam":                      "fails on every object",
		"string(1 / 0)":                            "fails on every object",
		"'abc'.substring(5)":                       "fails on every object",
		"true ? object.metadata.nam : object.kind": "fails on every object",
		"false ? object.kind : dyn(7)":             "on every object, it returned int",
		"[1, 2, 3].map(i, dyn(i))":                 "on every object, it returned a list that holds int",
		"dyn(object.metadata.nosuch.deeper)":       "fails on every object",
	} {
		_, err := definition.Compile(definition.Definition{Name: "x", CEL: text})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want it refused: %s", text, err, want)
		}
	}
	for _, text := range []string{
		"object.metadata.name", "object.metadata['name']", "object['metadata'].namespace", "object.kind + '/' + object.metadata.name",
		"object.spec.nodeName", "object.?spec.?nodeName", "object.?spec.?nodeName.orValue('none')", "object.spec.containers.map(c, c.image)",
		"has(object.spec) ? object.spec.x : string(1 / 0)", "has(object.metadata.nam) ? 'a' : 'b'", "object.metadata.?nam", "object.map(k, k)",
		"object.exists(k, k == 'data') ? 'config' : string(1 / 0)", "size(object) > 3 ? 'large' : string(1 / 0)", "object == object ? 'x' : string(1 / 0)",
		"'spec' in object ? 'x' : string(1 / 0)", "object.metadata.labels.map(k, k + '=' + object.metadata.labels[k])", "object.metadata.finalizers",
		"object.metadata.ownerReferences.filter(o, o.controller).map(o, o.uid)", "type(object) == map ? 'm' : string(1/0)", "'fixed'",
		"size(object.metadata.labels) > 1 ? 'many' : 'few'", "object.metadata.labels == {} ? 'none' : 'some'", "object.data['x']",
	} {
		if _, err := definition.Compile(definition.Definition{Name: "x", CEL: text}); err != nil {
			t.Errorf("%s: %v, want it taken", text, err)
		}
	}
}
