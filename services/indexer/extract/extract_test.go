package extract_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/services/indexer/definition"
	"github.com/deltaplane/deltaplane/services/indexer/extract"
)

var wanted = []string{
	"spec.nodeName", "status.phase", "spec.containers[].image", "spec.containers[].env[].name", "metadata.annotations['a.b/c']",
	"metadata.labels.app", "metadata.ownerReferences[].uid", "spec.nodeName.deep", "spec.containers", "a[][].b", "metadata.name", "metadata",
}

func newExtractor(t testing.TB, texts ...string) *extract.Extractor {
	t.Helper()
	return extract.New(extract.NewPlan(paths(t, texts...), nil))
}

func TestFactsOfAPod(t *testing.T) {
	t.Parallel()
	x := newExtractor(t, "spec.nodeName", "status.phase", "spec.containers[].image", "spec.containers[].nothing", "status.phase")
	for _, hash := range []bool{true, false} {
		r := record(7, hash)
		o := x.Object(t.Context(), &r)
		if o.Faulty() {
			t.Fatal(o.Fault())
		}
		if got, want := o.Labels().Get("app.kubernetes.io/name"), "web-7"; got != want {
			t.Errorf("label = %q, want %q", got, want)
		}
		if got, want := o.Owners().UIDs(), []string{"aaaaaaaa-0000-4000-8000-000000000007"}; !slices.Equal(got, want) {
			t.Errorf("owners = %q, want %q", got, want)
		}
		for field, want := range map[string][]string{
			"spec.nodeName": {"node-7"}, "status.phase": {"Running"}, "spec.containers[].nothing": nil,
			"spec.containers[].image": {"registry.example.com/team/app:v1.0", "registry.example.com/team/proxy:v1.0"},
		} {
			if got, ok := o.Field(field); !slices.Equal(got, want) || !ok {
				t.Errorf("%s = %q, %v, want %q", field, got, ok, want)
			}
		}
	}
	a, b := record(7, true), record(7, true)
	if x.Object(t.Context(), &a).Fields() != x.Object(t.Context(), &b).Fields() {
		t.Error("equal fields are not shared")
	}
}

func TestARecordThatCannotBeUsedIsAFaultOnItsKey(t *testing.T) {
	t.Parallel()
	change := func(f func(*delta.Record)) delta.Record {
		r := record(1, true)
		r.Hints, r.Labels = map[string][]string{"node": {"n1", "n2"}}, map[string][]string{"app": {"a"}}
		r.Owners = []delta.Owner{{Kind: "Job", Name: "j", UID: "u"}}
		f(&r)
		return r
	}
	payload := func(text string, hash bool) func(*delta.Record) {
		return func(r *delta.Record) {
			r.Payload, r.Hash = []byte(text), 0
			if hash {
				r.Hash = delta.Hash(r.Payload)
			}
		}
	}
	for name, run := range map[string]struct {
		r    delta.Record
		want string
	}{
		"unreadable":   {change(func(r *delta.Record) { r.Encoding, r.Payload, r.Hash = delta.EncodingUnreadable, nil, 0 }), "could not read"},
		"encoding":     {change(func(r *delta.Record) { r.Encoding = "cbor" }), `"cbor" is not known`},
		"checksum":     {change(func(r *delta.Record) { r.Hash++ }), "does not match its checksum"},
		"key":          {change(func(r *delta.Record) { r.Key = "ns-1/other" }), `payload is of key "ns-1/web-000001"`},
		"cut":          {change(payload(`{"metadata":{"name":"web`, true)), "breaks off"},
		"not JSON":     {change(payload(`{"metadata":{"name":web}}`, false)), "not a JSON object"},
		"a list":       {change(payload(`[]`, true)), "not a JSON object"},
		"nothing":      {change(payload(``, false)), "not a JSON object"},
		"two":          {change(payload(`{"metadata":{}} {}`, true)), "not a JSON object"},
		"no metadata":  {change(payload(`{"a":1}`, false)), "metadata is not a JSON object"},
		"metadata":     {change(payload(`{"metadata":[]}`, true)), "metadata is not a JSON object"},
		"labels":       {change(payload(`{"metadata":{"labels":{"a":1}}}`, true)), `label "a" is not a string`},
		"owners":       {change(payload(`{"metadata":{"ownerReferences":[3]}}`, false)), "is not a JSON object"},
		"deep":         {change(payload(strings.Repeat(`{"metadata":`, 20_000), true)), "deeper than"},
		"deep, skip":   {change(payload(`{"a":`+strings.Repeat(`[`, 20_000), true)), "deeper than"},
		"deep, no sum": {change(payload(`{"a":`+strings.Repeat(`[`, 20_000), false)), "deeper than"},
	} {
		x := newExtractor(t, "spec.nodeName")
		o := x.Object(t.Context(), &run.r)
		if !strings.Contains(o.Fault(), run.want) {
			t.Errorf("%s: fault = %q, want one with %q", name, o.Fault(), run.want)
		}
		nodes, _ := o.Field("spec.nodeName")
		if !o.Labels().Has("app") || !slices.Equal(nodes, []string{"n1", "n2"}) || !slices.Equal(o.Owners().UIDs(), []string{"u"}) {
			t.Errorf("%s: the hints of the record are not used", name)
		}
	}
}

func TestAPathThatDoesNotFitIsAnErrorOfItsFieldAlone(t *testing.T) {
	t.Parallel()
	x := newExtractor(t, "spec.nodeName", "spec.nodeName.deep", "spec.containers.image", "spec[].x", "spec.containers", "status.phase")
	r := record(1, true)
	o := x.Object(t.Context(), &r)
	for field, want := range map[string]string{
		"spec.nodeName": "", "status.phase": "",
		"spec.nodeName.deep":    "spec.nodeName is a string and has no keys",
		"spec.containers.image": "spec.containers is a list, which a path goes through with spec.containers[]",
		"spec.containers":       "spec.containers is a list, which a path goes through with spec.containers[]",
		"spec[].x":              "spec is an object and not a list",
	} {
		err := o.FieldErr(field)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", field, err, want)
		}
	}
}

func TestAPlanWithMoreKeysThanTheScanLooksForReadsTheSame(t *testing.T) {
	t.Parallel()
	texts := []string{"spec.nodeName", "spec.containers[].image"}
	for i := range 400 {
		texts = append(texts, fmt.Sprintf("spec.key-%d", i))
	}
	r := record(3, true)
	wide, narrow := newExtractor(t, texts...).Object(t.Context(), &r), newExtractor(t, texts[:2]...).Object(t.Context(), &r)
	for _, f := range narrow.Fields().List() {
		if got, _ := wide.Field(f.Name); !slices.Equal(got, f.Values) {
			t.Errorf("%s = %q, want %q", f.Name, got, f.Values)
		}
	}
	if !cmp.Equal(wide.Labels().Pairs(), narrow.Labels().Pairs()) || !cmp.Equal(wide.Owners().List(), narrow.Owners().List()) {
		t.Error("labels or owners differ")
	}
}

func TestTheMemoryOfAnExtractorIsBounded(t *testing.T) {
	t.Parallel()
	x := newExtractor(t, "spec.nodeName")
	for i := range 100_000 {
		p := fmt.Appendf(nil, `{"metadata":{"name":"a","labels":{"l":"%d"}},"spec":{"nodeName":"%d"}}`, i, i)
		o := x.Object(t.Context(), &delta.Record{Key: "a", Payload: p, Hash: delta.Hash(p)})
		if got, want := o.Labels().Get("l"), fmt.Sprint(i); got != want {
			t.Fatalf("label = %q, want %q", got, want)
		}
	}
	if n := extract.Remembered(x); n > 8*(1<<15) {
		t.Errorf("the extractor remembers %d values", n)
	}
}

// FuzzScan holds the scanner to encoding/json: a payload that is a JSON object
// has the facts that the decoded one has; any other is refused or, with a
// checksum, at least read without a panic.
func FuzzScan(f *testing.F) {
	f.Add(podJSON(1))
	for _, seed := range []string{
		`{"metadata":{"name":"a","namespace":"b","labels":{"app":"x","app":"y"},"annotations":{"a.b/c":"\u00e9\ud800\\"}},"spec":{"nodeName":1e3}}`,
		`{"metadata":{"name":"a"},"metadata":{"name":"b"},"spec":{"nodeName":"x"},"spec":null}`,
		` { "metadata" : { "n\u0061me" : "a" , "labels" : null , "ownerReferences" : [ { "uid" : "u" , "controller" : true } , {} ] } , "a" : [ [ { "b" : -0.10 } , { "b" : [ ] } ] , [ ] ] } `,
		`{"metadata":{},"spec":{"containers":[{"image":"i","env":[{"name":"e"},{"name":"d"}]},{"image":true},{"image":{}},null]}}`,
		`{"metadata":{"labels":{}},"spec":"text","a":{"b":1},"status":[]}`, `{"metadata":{"name":"` + "\xff" + `"}}`, `{]`, `{"a":tru`, `"`, `{"metadata":{"labels":{"a":}}}`,
	} {
		f.Add([]byte(seed))
	}
	trusted, checked := newExtractor(f, wanted...), newExtractor(f, wanted...)
	f.Fuzz(func(t *testing.T, payload []byte) {
		r := delta.Record{Key: "x", Payload: payload, Hash: delta.Hash(payload)}
		trusted.Object(t.Context(), &r) // must not panic
		got, err := checked.Example(t.Context(), payload)
		d := json.NewDecoder(bytes.NewReader(payload))
		d.UseNumber()
		var doc map[string]any
		valid := json.Valid(payload) && d.Decode(&doc) == nil && doc != nil
		if !valid {
			if err == nil {
				t.Fatalf("%q was taken for an object", payload)
			}
			return
		}
		if !utf8.Valid(payload) { // keys are compared as they are
			return
		}
		want, ok := oracle(doc)
		if (err == nil) != ok {
			t.Fatalf("%q: error %v, want one: %v", payload, err, !ok)
		}
		if err != nil {
			return
		}
		for _, p := range paths(t, wanted...) {
			values, verr := p.Values(doc)
			gotValues, _ := got.Field(p.String())
			if !slices.Equal(values, gotValues) || fmt.Sprint(verr) != fmt.Sprint(got.FieldErr(p.String())) {
				t.Fatalf("%q: %s = %q, %v, want %q, %v", payload, p, gotValues, got.FieldErr(p.String()), values, verr)
			}
		}
		if diff := cmp.Diff(want, factsOf(got)); diff != "" {
			t.Fatalf("%q: facts differ (-want +got):\n%s", payload, diff)
		}
		again, err := trusted.Example(t.Context(), payload)
		if err != nil || !cmp.Equal(factsOf(again), want) {
			t.Fatalf("%q: another extractor finds %+v, %v", payload, factsOf(again), err)
		}
	})
}

type found struct {
	Key, UID, RV string
	Labels       map[string]string
	Owners       []store.Owner
}

func factsOf(o *store.Object) found {
	f := found{Key: o.Key(), UID: o.UID(), RV: o.RV(), Labels: map[string]string{}, Owners: o.Owners().List()}
	for _, p := range o.Labels().Pairs() {
		f.Labels[p.Name] = p.Value
	}
	return f
}

// oracle finds the facts of a decoded object; false if it cannot be used.
func oracle(doc map[string]any) (found, bool) {
	f := found{Labels: map[string]string{}}
	meta, ok := doc["metadata"].(map[string]any)
	if !ok {
		return f, false
	}
	text := func(m map[string]any, name string) string { s, _ := m[name].(string); return s }
	f.Key = string(delta.NewKey(text(meta, "namespace"), text(meta, "name")))
	f.UID, f.RV = text(meta, "uid"), text(meta, "resourceVersion")
	switch labels := meta["labels"].(type) {
	case nil:
	case map[string]any:
		for name, v := range labels {
			if f.Labels[name], ok = v.(string); !ok {
				return f, false
			}
		}
	default:
		return f, false
	}
	switch owners := meta["ownerReferences"].(type) {
	case nil:
	case []any:
		for _, e := range owners {
			ref, ok := e.(map[string]any)
			if !ok {
				return f, false
			}
			w := store.Owner{Kind: text(ref, "kind"), Name: text(ref, "name"), UID: text(ref, "uid")}
			w.Controller, _ = ref["controller"].(bool)
			f.Owners = append(f.Owners, w)
		}
	default:
		return f, false
	}
	return f, true
}

func TestExpressionsAreEvaluatedOnTheDecodedObject(t *testing.T) {
	t.Parallel()
	var programs []*definition.Program
	for _, text := range []string{"object.spec.containers.map(c, c.image)", "object.spec.nodeName + '/' + object.status.phase", "object.nothing.x"} {
		p, err := definition.Compile(definition.Definition{Name: "x", CEL: text})
		if err != nil {
			t.Fatal(err)
		}
		programs = append(programs, p)
	}
	x := extract.New(extract.NewPlan(paths(t, "status.phase"), programs))
	for range 2 {
		r := record(3, true)
		o := x.Object(t.Context(), &r)
		images, _ := o.Field(programs[0].Field())
		if want := []string{"registry.example.com/team/app:v1.3", "registry.example.com/team/proxy:v1.3"}; !slices.Equal(images, want) {
			t.Errorf("images = %q, want %q", images, want)
		}
		if got, _ := o.Field(programs[1].Field()); !slices.Equal(got, []string{"node-3/Running"}) {
			t.Errorf("node and phase = %q", got)
		}
		if err := o.FieldErr(programs[2].Field()); err == nil || !strings.Contains(err.Error(), "no such key: nothing") {
			t.Errorf("error of the failing expression = %v", err)
		}
		if o.Faulty() || o.FieldErr("status.phase") != nil {
			t.Error("a failing expression must not harm the rest")
		}
	}
}
