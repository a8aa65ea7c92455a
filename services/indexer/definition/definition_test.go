package definition_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/definition"
)

func byField(path string) *indexv1.IndexerDefinition {
	return &indexv1.IndexerDefinition{Name: "x", Source: &indexv1.IndexerDefinition_Field{Field: path}}
}

func byCEL(text string) *indexv1.IndexerDefinition {
	return &indexv1.IndexerDefinition{Name: "x", Source: &indexv1.IndexerDefinition_Cel{Cel: text}}
}

func byLabel(name string) *indexv1.IndexerDefinition {
	return &indexv1.IndexerDefinition{Name: "x", Source: &indexv1.IndexerDefinition_Label{Label: name}}
}

func byOwner(controller bool, kind string) *indexv1.IndexerDefinition {
	return &indexv1.IndexerDefinition{Name: "x", Source: &indexv1.IndexerDefinition_OwnerUid{OwnerUid: &indexv1.OwnerSource{ControllerOnly: controller, Kind: kind}}}
}

func TestErrorsNameTheFieldOfTheRequest(t *testing.T) {
	t.Parallel()
	named := func(name string) *indexv1.IndexerDefinition {
		d := byLabel("app")
		d.Name = name
		return d
	}
	for name, run := range map[string]struct {
		p     *indexv1.IndexerDefinition
		field string
		want  string
	}{
		"no name":          {named(""), "indexers[2].name", "not a lower-case DNS label"},
		"upper case":       {named("App"), "indexers[2].name", "not a lower-case DNS label"},
		"long name":        {named(strings.Repeat("a", 64)), "indexers[2].name", "not a lower-case DNS label"},
		"dash at the end":  {named("a-"), "indexers[2].name", "not a lower-case DNS label"},
		"no source":        {&indexv1.IndexerDefinition{Name: "x"}, "indexers[2]", "has no source"},
		"nothing at all":   {nil, "indexers[2].name", "not a lower-case DNS label"},
		"label":            {byLabel("a b"), "indexers[2].label", "not the name of a label"},
		"no label":         {byLabel(""), "indexers[2].label", "not the name of a label"},
		"owner kind":       {byOwner(false, "a b"), "indexers[2].owner_uid.kind", "not a kind"},
		"empty path":       {byField(""), "indexers[2].field", "it is empty"},
		"dot first":        {byField(".spec"), "indexers[2].field", "does not begin with a dot"},
		"dollar":           {byField("$.spec..x"), "indexers[2].field", "a key is empty"},
		"list first":       {byField("[].x"), "indexers[2].field", "begins with a list"},
		"open bracket":     {byField("a['b"), "indexers[2].field", "not closed"},
		"open list":        {byField("a["), "indexers[2].field", "want [], [*] or ['key']"},
		"number":           {byField("a[0]"), "indexers[2].field", "want [], [*] or ['key']"},
		"after a bracket":  {byField("a[]b"), "indexers[2].field", "want a dot or a bracket"},
		"space":            {byField("a b"), "indexers[2].field", "must be in a bracket"},
		"too deep":         {byField("a" + strings.Repeat(".a", 40)), "indexers[2].field", "41 steps, at most 32"},
		"too long":         {byField(strings.Repeat("a", 600)), "indexers[2].field", "600 bytes long"},
		"not UTF-8":        {byField("a\xff"), "indexers[2].field", "not UTF-8"},
		"no expression":    {byCEL("  "), "indexers[2].cel", "is empty"},
		"endless text":     {byCEL(strings.Repeat("a", 5000)), "indexers[2].cel", "5000 bytes long"},
		"a map":            {byCEL("{'a': 'b'}"), "cel", "returns map(string, string), want string or list(string)"},
		"a number":         {byCEL("1 + 1"), "cel", "returns int, want string"},
		"a boolean":        {byCEL("object.a == 'b'"), "cel", "returns bool, want string"},
		"a list of ints":   {byCEL("[1, 2]"), "cel", "returns list(int), want string"},
		"syntax":           {byCEL("object..a"), "cel", "does not compile"},
		"another variable": {byCEL("pod.name"), "cel", "undeclared reference to 'pod'"},
		"a wrong type":     {byCEL("'a' + 1"), "cel", "does not compile"},
		"too costly":       {byCEL("object.a.map(a, object.b.map(b, object.c.map(c, a + b + c).join(',')).join(','))"), "cel", "for lists of 10 it may cost"},
		"four deep":        {byCEL("object.a.map(a, object.b.map(b, object.c.map(c, object.d.map(d, d).join(',')).join(',')).join(','))"), "cel", "comprehension exceeds nesting limit"},
		"bad pattern":      {byCEL("object.a.matches('(') ? 'a' : 'b'"), "cel", "does not compile"},
	} {
		d, err := definition.FromProto("indexers[2]", run.p)
		if err == nil {
			_, err = definition.Compile(d)
		} else if _, ok := rpc.Violations(rpc.Status(err, nil))[run.field]; !ok {
			t.Errorf("%s: violations %v, want one of %s", name, rpc.Violations(rpc.Status(err, nil)), run.field)
		}
		if err == nil || !strings.Contains(err.Error(), run.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, run.want)
		}
	}
}

func TestDefinitionsHaveOneForm(t *testing.T) {
	t.Parallel()
	for _, run := range []struct {
		a, b   *indexv1.IndexerDefinition
		equal  bool
		source string
	}{
		{byField("spec.containers[*].image"), byField("spec['containers'][].image"), true, "field spec.containers[].image"},
		{byField(`metadata.annotations['a.b/c']`), byField(`metadata['annotations']['a.b/c']`), true, "field metadata.annotations['a.b/c']"},
		{byField(`a['it\'s']`), byField(`a['it\\s']`), false, `field a['it\'s']`},
		{byField("spec.a"), byLabel("spec.a"), false, "field spec.a"},
		{byLabel("app"), byLabel("app"), true, "label app"},
		{byOwner(false, ""), byOwner(true, ""), false, "owner uid"},
		{byOwner(true, "Job"), byOwner(true, "Job"), true, "owner uid, controller only, of kind Job"},
		{byCEL(" object.a "), byCEL("object.a"), true, "cel object.a"},
	} {
		a, errA := definition.FromProto("a", run.a)
		b, errB := definition.FromProto("b", run.b)
		if err := errors.Join(errA, errB); err != nil {
			t.Fatal(err)
		}
		if a.Equal(b) != run.equal || a.Source() != run.source {
			t.Errorf("%q equal to %q is %v, want %v and source %q", a.Source(), b.Source(), a.Equal(b), run.equal, run.source)
		}
		again, err := definition.FromProto("a", a.Proto())
		if err != nil || !again.Equal(a) || !proto.Equal(again.Proto(), a.Proto()) {
			t.Errorf("%q read again is %q, %v", a.Source(), again.Source(), err)
		}
	}
}

func decode(t testing.TB, text string, numbers bool) any {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	if numbers {
		d.UseNumber()
	}
	var doc any
	if err := d.Decode(&doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

func TestValuesOfAnExpression(t *testing.T) {
	t.Parallel()
	doc := decode(t, `{"a":{"l":["y","x","y"],"n":3,"s":"text","m":{"k":"v"},"z":null,"long":["`+strings.Repeat("x", 3000)+`"]}}`, false)
	for text, want := range map[string]struct {
		values []string
		err    string
	}{
		`object.a.s`:                          {[]string{"text"}, ""},
		`object.a.l`:                          {[]string{"x", "y"}, ""},
		`object.a.l.map(x, x + "!")`:          {[]string{"x!", "y!"}, ""},
		`has(object.a.q) ? [object.a.q] : []`: {nil, ""},
		`object.a.z`:                          {nil, ""},
		`object.?a.?q`:                        {nil, ""},
		`object.?a.?s`:                        {[]string{"text"}, ""},
		`[?object.?a.?s, ?object.?b]`:         {[]string{"text"}, ""},
		`object.a.s.split("e").map(x, x.upperAscii())`: {[]string{"T", "XT"}, ""},
		`string(object.a.n)`:                           {[]string{"3"}, ""},
		`object.a.n`:                                   {nil, "returned double"},
		`object.a.m`:                                   {nil, "returned map"},
		`object.a.q`:                                   {nil, "no such key: q"},
		`[object.a.s, object.a.n]`:                     {nil, "a list that holds double"},
		`object.a.long`:                                {nil, "3000 bytes long, at most 2048"},
		`object.a.long[0].split("")`:                   {[]string{"x"}, ""},
	} {
		d, err := definition.FromProto("i", byCEL(text))
		if err != nil {
			t.Fatal(err)
		}
		p, err := definition.Compile(d)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		got, err := p.Values(t.Context(), doc)
		if !slices.Equal(got, want.values) || (err == nil) != (want.err == "") || err != nil && (!strings.Contains(err.Error(), want.err) || !errors.Is(err, definition.ErrValue)) {
			t.Errorf("%s = %q, %v, want %q and an error with %q", text, got, err, want.values, want.err)
		}
	}
}

func TestAnExpressionThatRunsTooLongIsAnErrorOfItsObject(t *testing.T) {
	t.Parallel()
	d, _ := definition.FromProto("i", byCEL(`object.a.map(x, object.a.map(y, x + y).join(","))`))
	p, err := definition.Compile(d)
	if err != nil {
		t.Fatal(err)
	}
	list := make([]any, 2000)
	for i := range list {
		list[i] = "x"
	}
	if _, err := p.Values(t.Context(), map[string]any{"a": list}); err == nil || !strings.Contains(err.Error(), "cost limit exceeded: it may cost 5000 for one object, and about ") {
		t.Errorf("4,000,000 steps: error %v, want one about the cost", err)
	}
	if values, err := p.Values(t.Context(), map[string]any{"a": list[:2]}); err != nil || !slices.Equal(values, []string{"xx,xx"}) {
		t.Errorf("a small object = %q, %v", values, err)
	}
}

// TestExpressionsOfOrdinaryUseAreWithinTheCostLimit: a pod of ten containers with ten
// variables each is large.
func TestExpressionsOfOrdinaryUseAreWithinTheCostLimit(t *testing.T) {
	t.Parallel()
	containers, sum := make([]any, 10), uint64(0)
	for i := range containers {
		env := make([]any, 10)
		for j := range env {
			env[j] = map[string]any{"name": fmt.Sprint("VARIABLE_", j), "value": "some value"}
		}
		containers[i] = map[string]any{"name": fmt.Sprint("c", i), "image": "registry.example.com/team/app:v1", "env": env}
	}
	doc := map[string]any{
		"metadata": map[string]any{"name": "p", "namespace": "n", "labels": map[string]any{"app": "web", "tier": "front"}},
		"spec":     map[string]any{"nodeName": "n1", "containers": containers}, "status": map[string]any{"phase": "Running"},
	}
	for _, text := range []string{
		`object.metadata.namespace + '/' + object.spec.nodeName`,
		`has(object.status.phase) ? [object.status.phase, object.spec.nodeName] : []`,
		`object.spec.containers.map(c, c.image)`,
		`object.spec.containers.map(c, has(c.env) ? c.env.map(e, e.name).join(',') : '')`,
		`has(object.spec.containers) ? object.spec.containers.filter(c, has(c.image)).map(c, c.image.split('/')[0]) : []`,
		`object.metadata.labels.map(k, k + '=' + object.metadata.labels[k])`,
		`object.spec.containers.filter(c, c.image.matches('^registry.*:v[0-9]+$')).map(c, c.name)`,
		`object.spec.containers.map(c, c.env.map(e, e.name + '=' + e.value).join(','))`,
	} {
		d, _ := definition.FromProto("i", byCEL(text))
		p, err := definition.Compile(d)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		sum += p.Cost()
		if got, err := p.Values(t.Context(), doc); err != nil || len(got) == 0 {
			t.Errorf("%s = %q, %v", text, got, err)
		}
	}
	if sum > definition.MaxCostOfAll {
		t.Errorf("together they cost %d, at most %d", sum, definition.MaxCostOfAll)
	}
}

func TestOneCallOfAnExpressionIsBounded(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("x", 1<<20)
	list := make([]any, 300)
	for i := range list {
		list[i] = "a"
	}
	doc := map[string]any{"big": big, "list": list, "name": "a.b", "form": strings.Repeat("%s", len(list))}
	for text, fine := range map[string]bool{
		`object.big.replace('x', '` + strings.Repeat("y", 1000) + `')`:                                                                   false,
		`object.big.replace('', 'yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy', 1000000)`:                                                            false,
		`object.list.map(a, object.big).join('')`:                                                                                        false,
		`'%s'.format([object.list.map(a, object.big)])`:                                                                                  false,
		`'%s'.format([object.list.map(a, object)])`:                                                                                      false,
		`object.form.format(object.list.map(a, object.big))`:                                                                             false,
		`'%x%x%x'.format([object.big, object.big, object.big])`:                                                                          false,
		`'%s%s_%s%s'.format(['a-b', object.list.filter(a, a == 'b').join(), 'a', '_.bp/q'])`:                                             true,
		`object.list.map(a, '').join(object.big)`:                                                                                        false,
		`object.name.replace('.', '-') + object.name.replace('', '_', 2) + object.list.filter(a, a == 'b').join() + ['p','q'].join('/')`: true,
	} {
		d, _ := definition.FromProto("i", byCEL(text))
		p, err := definition.Compile(d)
		if err != nil {
			t.Errorf("%.60s: %v", text, err)
			continue
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got, err := p.Values(t.Context(), doc)
		runtime.ReadMemStats(&after)
		if made := after.TotalAlloc - before.TotalAlloc; made > 64<<20 {
			t.Errorf("%.60s: made %d MiB of an object of 1 MiB", text, made>>20)
		}
		if fine && (err != nil || !slices.Equal(got, []string{"a-b_a_.bp/q"})) {
			t.Errorf("%.60s = %q, %v", text, got, err)
		}
		if !fine && err == nil {
			t.Errorf("%.60s: no error", text)
		}
	}
	for _, text := range []string{`object.big.matches(object.big) ? '' : 'a'`, `matches(object.big, 'a' + object.name) ? '' : 'a'`} {
		d, _ := definition.FromProto("i", byCEL(text))
		if _, err := definition.Compile(d); err == nil || !strings.Contains(err.Error(), "must be a literal") {
			t.Errorf("%s: error %v, want one about the pattern", text, err)
		}
	}
}

func TestACallerThatLeavesIsNoErrorOfTheObject(t *testing.T) {
	t.Parallel()
	d, _ := definition.FromProto("i", byCEL(`object.list.filter(a, a != 'b').size() > 0 ? 'yes' : 'no'`))
	p, err := definition.Compile(d)
	if err != nil {
		t.Fatal(err)
	}
	list := make([]any, 300)
	for i := range list {
		list[i] = "a"
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := p.Values(ctx, map[string]any{"list": list}); err != nil || !slices.Equal(got, []string{"yes"}) {
		t.Errorf("Values() = %q, %v: what a stopping replica keeps would stay wrong after its restart", got, err)
	}
}

func TestValuesAreBounded(t *testing.T) {
	t.Parallel()
	path, _ := definition.ParsePath("a[]")
	list := make([]any, 5000)
	for i := range list {
		list[i] = json.Number(strings.Repeat("1", 1+i%1000))
	}
	if values, err := path.Values(map[string]any{"a": list}); err != nil || len(values) != 1000 {
		t.Errorf("1000 different values: %d, %v", len(values), err)
	}
	list[0] = "other"
	list = append(list, "more")
	if _, err := path.Values(map[string]any{"a": list}); err == nil || !strings.Contains(err.Error(), "1002 different values") {
		t.Errorf("1002 different values: %v", err)
	}
}

// FuzzParsePath: what parses has one form, which parses to the same steps.
func FuzzParsePath(f *testing.F) {
	for _, seed := range []string{"spec.nodeName", "a[].b[*]['c.d/e']", `a['\'\\']`, "a..b", "[", "a['", "ä.ö", "a['\n']"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := definition.ParsePath(text)
		if err != nil {
			if !errors.Is(err, definition.ErrPath) {
				t.Fatalf("%q: %v does not wrap ErrPath", text, err)
			}
			return
		}
		again, err := definition.ParsePath(p.String())
		if len(p.String()) > definition.MaxPathBytes {
			return // the canonical form may be longer
		}
		if err != nil || !slices.Equal(again.Steps(), p.Steps()) || again.String() != p.String() {
			t.Fatalf("%q became %q, which became %q, %v", text, p, again, err)
		}
	})
}

// FuzzCompile: no expression and no document makes compiling or running panic.
func FuzzCompile(f *testing.F) {
	for _, seed := range []string{"object.a", "object.a.map(x, x)", "[1].map(x, 'a')", "object.?a", "'a'.format(object)", "object.a.join(object.b)"} {
		f.Add(seed, []byte(`{"a":["b"],"b":"c"}`))
	}
	f.Fuzz(func(t *testing.T, text string, payload []byte) {
		d, err := definition.FromProto("i", byCEL(text))
		if err != nil {
			return
		}
		p, err := definition.Compile(d)
		if err != nil {
			return
		}
		var doc any
		if json.Unmarshal(payload, &doc) != nil {
			return
		}
		values, err := p.Values(t.Context(), doc)
		if err != nil && !errors.Is(err, definition.ErrValue) {
			t.Fatalf("%q on %s: %v does not wrap ErrValue", text, payload, err)
		}
		if !slices.IsSorted(values) {
			t.Fatalf("%q on %s = %q, not sorted", text, payload, values)
		}
	})
}

// TestPathsFindWhatWasPutThere: in random documents, a path finds exactly the
// scalars that were put where it leads.
func TestPathsFindWhatWasPutThere(t *testing.T) {
	t.Parallel()
	keys := []string{"a", "b.c", "it's", `back\slash`, "ö", "with space"}
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		var steps []string
		var want []string
		var build func(depth int) any
		n := 1 + rnd.IntN(5)
		each := make([]bool, n)
		for i := range n {
			each[i] = i > 0 && rnd.IntN(3) == 0
			key := keys[rnd.IntN(len(keys))]
			if each[i] {
				key = ""
			}
			steps = append(steps, key)
		}
		build = func(depth int) any {
			if rnd.IntN(12) == 0 && depth > 0 {
				return nil
			}
			if depth == n {
				v := string(rune('a' + rnd.IntN(20)))
				want = append(want, v)
				return v
			}
			if each[depth] {
				list := []any{}
				for range rnd.IntN(4) {
					list = append(list, build(depth+1))
				}
				return list
			}
			m := map[string]any{"other": "x"}
			if rnd.IntN(8) != 0 {
				m[steps[depth]] = build(depth + 1)
			}
			return m
		}
		doc := build(0)
		var text bytes.Buffer
		for i, key := range steps {
			if each[i] {
				text.WriteString("[]")
			} else {
				text.WriteString("['" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(key) + "']")
			}
		}
		path, err := definition.ParsePath(text.String())
		if err != nil {
			t.Fatal(err)
		}
		got, err := path.Values(doc)
		slices.Sort(want)
		if want = slices.Compact(want); err != nil || !slices.Equal(got, want) {
			t.Fatalf("seed %d: %s = %q, %v, want %q", seed, path, got, err, want)
		}
	}
}
