package kube_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/kube"
)

var podResource = kube.Resource{Version: "v1", Name: "pods", Kind: "Pod", Namespaced: true}

func TestNormalizeStripsAndKeepsEverythingElseByteForByte(t *testing.T) {
	t.Parallel()
	const head = `"name":"a","namespace":"d","resourceVersion":"7"`
	for _, row := range []struct{ name, in, want string }{
		{
			"from a list", `{"metadata":{` + head + `},"spec":{"x":1.0}}`,
			`{"kind":"Pod","apiVersion":"v1","metadata":{` + head + `},"spec":{"x":1.0}}`,
		},
		{"from a watch", `{"kind":"Pod","apiVersion":"v1","metadata":{` + head + `}}`, `{"kind":"Pod","apiVersion":"v1","metadata":{` + head + `}}`},
		{
			"managed fields last", `{"kind":"Pod","apiVersion":"v1","metadata":{` + head + `,"managedFields":[{"f":{"}":"]"}}]}}`,
			`{"kind":"Pod","apiVersion":"v1","metadata":{` + head + `}}`,
		},
		{
			"managed fields first", `{"kind":"Pod","apiVersion":"v1","metadata":{"managedFields":[],` + head + `}}`,
			`{"kind":"Pod","apiVersion":"v1","metadata":{` + head + `}}`,
		},
		{
			"both, annotation in the middle",
			`{"kind":"Pod","apiVersion":"v1","metadata":{` + head + `,"annotations":{"a":"1","kubectl.kubernetes.io/last-applied-configuration":"{\"a\":\"}\"}","z":"2"},"managedFields":[1]},"s":0}`,
			`{"kind":"Pod","apiVersion":"v1","metadata":{` + head + `,"annotations":{"a":"1","z":"2"}},"s":0}`,
		},
		{
			"the only annotation", `{"kind":"Pod","apiVersion":"v1","metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"x"},` + head + `}}`,
			`{"kind":"Pod","apiVersion":"v1","metadata":{"annotations":{},` + head + `}}`,
		},
		{
			"white space", " { \"metadata\" : { " + head + " , \"managedFields\" : [ ] } }\r\n",
			"{\"kind\":\"Pod\",\"apiVersion\":\"v1\", \"metadata\" : { " + head + " } }",
		},
	} {
		tr := kube.Transform{DropLastApplied: true}
		raw := []byte(row.in)
		got, err := tr.Normalize(raw, podResource)
		if err != nil || string(got.Payload) != row.want {
			t.Errorf("%s:\n got %s (%v)\nwant %s", row.name, got.Payload, err, row.want)
		}
		clear(raw)
		if string(got.Payload) != row.want {
			t.Errorf("%s: the payload shares memory with its source", row.name)
		}
	}
}

func TestNormalizeReadsWhatHeadersCarry(t *testing.T) {
	t.Parallel()
	tr := kube.Transform{Hints: map[string]string{"node": "spec.nodeName", "none": "spec.none"}, Labels: []string{"app"}, Drop: []string{"status"}}
	o, err := tr.Normalize([]byte(`{"metadata":{"name":"a","namespace":"d","uid":"u","resourceVersion":"007","generation":3,"labels":{"app":"x","b":"y"},
		"ownerReferences":[{"kind":"Job","name":"j","uid":"ju","controller":true},{"kind":"Other","name":"o","uid":"ou"}]},"spec":{"nodeName":"n"},"status":{"p":1}}`), podResource)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(o.Payload, []byte("status")) || !json.Valid(o.Payload) {
		t.Errorf("payload %s, want status dropped", o.Payload)
	}
	o.Payload, o.Hash = nil, 0
	want := delta.Object{
		Key: "d/a", UID: "u", RV: "7", Generation: 3, Encoding: delta.EncodingJSON,
		Owners: []delta.Owner{{Kind: "Job", Name: "j", UID: "ju", Controller: true}, {Kind: "Other", Name: "o", UID: "ou"}},
		Hints:  map[string][]string{"node": {"n"}}, Labels: map[string][]string{"app": {"x"}},
	}
	if diff := cmp.Diff(want, o); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestObjectsThatCannotBeReadAreNamedAsFarAsPossible(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		in  string
		key delta.Key
	}{
		{`nope`, ""},
		{``, ""},
		{`"text"`, ""},
		{`null`, ""},
		{`{}`, ""},
		{`{"metadata":{"name":"a"}}`, "a"},
		{`{"metadata":{"name":"a","resourceVersion":"x"}}`, "a"},
		{`{"metadata":{"name":"a","resourceVersion":7}}`, "a"},
		{`{"metadata":{"name":"a","resourceVersion":"7"},"spec":{]}`, "a"},
		{`{"metadata":{"name":"a","resourceVersion":"7"},"spec":{"a":nonsense}}`, "a"},
		{`{"metadata":{"name":"a","resourceVersion":"7"}} trailing`, "a"},
		{`{"metadata":{"name":"a","resourceVersion":"7"}`, "a"},
		{`{"kind":"Service","metadata":{"name":"a","resourceVersion":"7"}}`, "a"},
		{`{"metadata":{"name":"a/b/c","resourceVersion":"7"}}`, ""},
	} {
		var tr kube.Transform
		o, err := tr.Normalize([]byte(row.in), podResource)
		if !errors.Is(err, kube.ErrPoison) || o.Key != row.key || o.Payload != nil {
			t.Errorf("%s: key %q, payload %q, %v; want ErrPoison with key %q", row.in, o.Key, o.Payload, err, row.key)
		}
	}
}

func TestWhatIsReadMayBeWrittenBackByDefault(t *testing.T) {
	t.Parallel()
	const head = `"name":"a","namespace":"default","uid":"u","resourceVersion":"7","annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{}"}`
	raw := `{"kind":"Pod","apiVersion":"v1","metadata":{` + head + `,"managedFields":[{"manager":"m"}]},"spec":{"x":1}}`
	for _, row := range []struct {
		tr      kube.Transform
		want    string
		dropped []string
	}{
		{kube.Transform{}, `{"kind":"Pod","apiVersion":"v1","metadata":{` + head + `},"spec":{"x":1}}`, []string{delta.ManagedFields}},
		{kube.Transform{KeepManagedFields: true}, raw, []string{}},
		{kube.Transform{KeepManagedFields: true, Drop: []string{"spec.x"}}, strings.Replace(raw, `{"x":1}`, `{}`, 1), []string{"spec.x"}},
		{
			kube.Transform{DropLastApplied: true, Drop: []string{"spec"}},
			`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","namespace":"default","uid":"u","resourceVersion":"7","annotations":{}}}`,
			[]string{delta.LastApplied, delta.ManagedFields, "spec"},
		},
	} {
		got, err := row.tr.Normalize([]byte(raw), podResource)
		if err != nil || string(got.Payload) != row.want {
			t.Errorf("%+v:\n got %s (%v)\nwant %s", row.tr, got.Payload, err, row.want)
		}
		if got := row.tr.Dropped(); got == nil || !slices.Equal(got, row.dropped) {
			t.Errorf("%+v says that it drops %q, want %q", row.tr, got, row.dropped)
		}
	}
}

// Whatever is taken in is valid JSON that means the same as what came, less what was stripped.
func FuzzNormalize(f *testing.F) {
	f.Add([]byte(`{"metadata":{"name":"a","resourceVersion":"7","managedFields":[{}],"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"\\"}},"a":[1,"]"]}`))
	f.Add([]byte(`{"metadata":{"annotations":{},"name":"a","resourceVersion":"1"},"metadata":{"name":"b","resourceVersion":"2"}}`))
	f.Add([]byte("{\"kind\":\"Pod\",\"metadata\":{\"name\":\"\\u0061\",\"resourceVersion\":\"1\"}}\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		tr := kube.Transform{DropLastApplied: true}
		o, err := tr.Normalize(raw, podResource)
		if err != nil {
			return
		}
		var before, after map[string]any
		if err := json.Unmarshal(o.Payload, &after); err != nil {
			t.Fatalf("%q became %q: %v", raw, o.Payload, err)
		}
		if json.Unmarshal(raw, &before) != nil {
			return // broken only in what was stripped
		}
		if strings.Count(string(raw), `"metadata"`) > 1 || strings.Count(string(raw), `"managedFields"`) > 1 || strings.Count(string(raw), "last-applied") > 1 {
			return // duplicate members: JSON does not say which counts
		}
		if m, ok := before["metadata"].(map[string]any); ok {
			delete(m, "managedFields")
			if a, ok := m["annotations"].(map[string]any); ok {
				delete(a, "kubectl.kubernetes.io/last-applied-configuration")
			}
		}
		for _, name := range []string{"kind", "apiVersion"} {
			if _, ok := before[name]; !ok {
				delete(after, name)
			}
		}
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("%q became %q:\n%s", raw, o.Payload, diff)
		}
	})
}

func BenchmarkNormalize(b *testing.B) {
	var env strings.Builder
	for i := range 60 {
		fmt.Fprintf(&env, `{"name":"VAR_%d","value":"some value %d"},`, i, i)
	}
	raw := []byte(`{"metadata":{"name":"a","namespace":"d","uid":"u","resourceVersion":"7","labels":{"app":"x"},"managedFields":[` +
		strings.Repeat(`{"manager":"kubelet","fieldsV1":{"f:status":{"f:conditions":{}}}},`, 20) + `{}]},"spec":{"nodeName":"n","containers":[{"env":[` + env.String() + `{}]}]}}`)
	tr := kube.Transform{Hints: map[string]string{"node": "spec.nodeName"}, Labels: []string{"app"}}
	b.SetBytes(int64(len(raw)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := tr.Normalize(raw, podResource); err != nil {
			b.Fatal(err)
		}
	}
}

func TestAnObjectNestedTooDeepIsQuarantinedAndDoesNotEndTheProcess(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", 8<<20)
	raw := []byte(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","namespace":"d","resourceVersion":"7"},"spec":` + deep + strings.Repeat("]", 8<<20) + `}`)
	o, err := new(kube.Transform).Normalize(raw, podResource)
	if !errors.Is(err, kube.ErrPoison) || o.Key != "d/a" || o.RV != "7" {
		t.Errorf("Normalize() = %q at %q, %v; want the key, the version and poison", string(o.Key), o.RV, err)
	}
}
