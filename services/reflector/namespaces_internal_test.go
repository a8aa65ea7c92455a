package reflector

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/kube"
)

// The spec decides whether a collection is listed again: but for last_applied, which used to be
// dropped by default, these texts were written before there were several namespaces, and stand in
// leases.
func TestTheStoredScopeOfOneNamespaceIsUnchanged(t *testing.T) {
	t.Parallel()
	const marks = `"labels":["batch.kubernetes.io/controller-uid","batch.kubernetes.io/job-name"]}`
	var values []string
	for i := range 150 {
		values = append(values, fmt.Sprintf("v%03d", i))
	}
	long := strings.Join(values, ",")
	for stored, want := range map[string]string{
		`{"resource":"pods"}`: `{"last_applied":true,"hints":{"node":"spec.nodeName"},` + marks,
		`{"resource":"leases.v1.coordination.k8s.io","namespace":"kube-node-lease"}`: `{"namespace":"kube-node-lease","last_applied":true,` + marks,
		`{"resource":"configmaps","namespace":"web","labelSelector":"app=x","fieldSelector":"metadata.name!=y","metadataOnly":true,"dropFields":["data"],"keepManagedFields":true}`: `{"namespace":"web",` +
			`"label_selector":"app=x","field_selector":"metadata.name!=y","metadata_only":true,"drop_fields":["data"],"keep_managed_fields":true,"last_applied":true,` + marks,
		`{"resource":"pods","namespace":"web","labelSelector":"app in (` + long + `)"}`: `{"namespace":"web","label_selector":"app in (` + long[:427] + "... sha256:10c67006ed19e936f79cf28a",
	} {
		set, err := decodeAdditions([]byte(`{"version":1,"reflections":[` + stored + `]}`))
		if err != nil || len(set.reflections) != 1 || set.reflections[0].err != nil {
			t.Fatalf("%s: %+v, %v", stored, set, err)
		}
		if got := set.reflections[0].fingerprint(); got != want {
			t.Errorf("%.100s has the form\n%s\nwant\n%s", stored, got, want)
		}
	}
}

func TestEqualSetsOfNamespacesAreOneScope(t *testing.T) {
	t.Parallel()
	one := func(ns string, set ...string) Resource {
		return Resource{Name: "pods", Scope: kube.Scope{Namespace: ns}, Namespaces: set}
	}
	seen := map[string]int{}
	for i, same := range [][]Resource{
		{one("")},
		{one("a"), one("", "a"), one("a", "a"), one("", "a", "a")},
		{one("b")},
		{one("", "a", "b"), one("", "b", "a"), one("", "b", "a", "b")},
		{one("", "a", "c")},
		{one("", "a", "b", "c")},
	} {
		text := same[0].fingerprint()
		for _, r := range same {
			if got := r.fingerprint(); got != text || len(r.faults()) > 0 {
				t.Errorf("%d: %+v has the form %s and the faults %v, want %s", i, r, got, r.faults(), text)
			}
			kept := fromProto(r.proto())
			if again := fromProto(kept.proto()); kept.fingerprint() != text || !cmp.Equal(kept, again) || len(kept.Namespaces) == 1 {
				t.Errorf("%d: %+v is kept as %+v", i, r, kept)
			}
		}
		if other, ok := seen[text]; ok {
			t.Errorf("forms %d and %d are one: %s", other, i, text)
		}
		seen[text] = i
	}
	theirs, mine := apart(one("a").fingerprint(), one("", "a", "b").fingerprint())
	if theirs != `namespace "a", namespaces []` || mine != `namespace "", namespaces ["a","b"]` {
		t.Errorf("they differ in %s and %s", theirs, mine)
	}
}

func TestANamespaceThatCannotBeIsNamed(t *testing.T) {
	t.Parallel()
	many := make([]string, maxNamespaces)
	for i := range many {
		many[i] = "team-" + strconv.Itoa(i)
	}
	for _, x := range []struct {
		namespace  string
		namespaces []string
		want       []string
	}{
		{"", nil, nil},
		{"", many, nil},
		{"a", []string{"a", "a"}, nil},
		{"", []string{""}, []string{"namespaces[0]"}},
		{"", []string{"a", "", "b", "Web", strings.Repeat("x", 64)}, []string{"namespaces[1]", "namespaces[3]", "namespaces[4]"}},
		{"", append(slices.Clone(many), "x"), []string{"namespaces"}},
		{"", slices.Repeat([]string{"Web"}, 100), []string{"namespaces[0]", "namespaces[1]", "namespaces[2]", "namespaces[3]", "namespaces[4]", "namespaces[5]", "namespaces[6]", "namespaces[7]", "namespaces[8]", "namespaces[9]"}},
		{"a", []string{"b"}, []string{"namespaces"}},
		{"a", []string{"a", "b"}, []string{"namespaces"}},
		{"A", []string{"b!"}, []string{"namespace", "namespaces[0]"}},
	} {
		r := Resource{Name: "pods", Scope: kube.Scope{Namespace: x.namespace}, Namespaces: x.namespaces}
		var got []string
		for _, f := range r.faults() {
			got = append(got, f.Field)
		}
		if diff := cmp.Diff(x.want, got); diff != "" {
			t.Errorf("%q and %.60q (-want +got):\n%s", x.namespace, x.namespaces, diff)
		}
		spec, err := json.Marshal(map[string]any{"resource": "pods", "namespace": x.namespace, "namespaces": x.namespaces})
		if err != nil {
			t.Fatal(err)
		}
		if _, faults := ParseSpec(spec); len(faults) != len(x.want) {
			t.Errorf("as JSON: %.60s has %d faults, want %d", spec, len(faults), len(x.want))
		}
	}
}

func TestNamespacesInAResourcesName(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"pods": nil, "pods/a": {"a"}, "pods/b+a": {"a", "b"}, "deployments.v1.apps/a+b+a": {"a", "b"}, "*/a+b": {"a", "b"},
	} {
		r, err := ParseResource(text)
		if err != nil || !slices.Equal(r.namespaces(), want) {
			t.Errorf("ParseResource(%q) = %+v, %v, want %q", text, r, err, want)
		}
	}
	for _, text := range []string{"pods/a+", "pods/+", "pods/+a", "pods/a++b", "pods/a+b/c", "pods/a+B", "pods+a"} {
		if r, err := ParseResource(text); err == nil {
			t.Errorf("ParseResource(%q) = %+v", text, r)
		}
	}
}

func TestEverythingOfNamespacesLeavesOutWhatHasNone(t *testing.T) {
	t.Parallel()
	both := []string{"list", "watch"}
	for _, set := range [][]string{{"a"}, {"a", "b"}} {
		all := &throng{s: &Service{}, w: &desired{spec: Resource{Cluster: "dev", Name: everything, Namespaces: set}}}
		if all.wants(kube.Resource{Version: "v1", Name: "nodes", Verbs: both}) || !all.wants(kube.Resource{Version: "v1", Name: "pods", Namespaced: true, Verbs: both}) {
			t.Errorf("everything of %q has nodes, or no pods", set)
		}
	}
}

// podIn is a pod of a namespace as a list holds it.
func podIn(namespace, name, rv string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q,"namespace":%q,"uid":"u-%s","resourceVersion":%q}}`, name, namespace, name, rv)
}

// Progress counts what was read: by that the rate and what remains are judged.
func TestAListsProgressCountsWhatItLeavesOut(t *testing.T) {
	t.Parallel()
	var items []string
	for i := range 4 * intakeChunk {
		items = append(items, podIn("out", "p"+strconv.Itoa(i), "4"))
	}
	const page = `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"10","continue":"next","remainingItemCount":743},"items":[`
	s := &script{
		want:  Resource{Name: "pods", Namespaces: []string{"a", "b"}},
		lists: []answer{{body: page + strings.Join(items, ",") + "]}"}, {body: page + "]}", hangs: true}},
	}
	out := s.play(t, time.Second)
	if n := 4 * intakeChunk; out.list.objects != n || out.list.total != n+743 {
		t.Errorf("%d of about %d, want %d of %d", out.list.objects, out.list.total, n, n+743)
	}
	if n := out.r.state.get().objects; n != 0 || out.stage.Len() != 0 {
		t.Errorf("%d objects, %d staged, want none", n, out.stage.Len())
	}
}

// What came late, as the log was slow, goes before what comes next, however much is left out in
// between.
func TestWhatIsLeftOutDoesNotLetLaterItemsOvertake(t *testing.T) {
	t.Parallel()
	m, err := newMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	r := &reflection{
		metrics: m, cfg: Config{StageBytes: 100}, slog: slog.New(slog.DiscardHandler), want: Resource{Namespaces: []string{"a", "b"}},
		resource: kube.Resource{Version: "v1", Name: "pods", Kind: "Pod", Namespaced: true},
	}
	p := &publisher{r: r, wake: make(chan struct{}, 1), stage: delta.NewStage(100, "")}
	in := &intake{s: newSource(r, p, delta.NewShadow(time.Hour), 1, "", "")}
	in.s.beginList()
	give := func(items ...string) {
		t.Helper()
		for _, raw := range items {
			if err := in.item([]byte(raw)); err != nil {
				t.Fatal(err)
			}
		}
	}
	others := slices.Repeat([]string{podIn("out", "o", "4")}, intakeChunk)
	sick := func(name string) string { return strings.TrimSuffix(podIn("a", name, "5"), "}") + `,"spec":nonsense}` }
	give(sick("first"))
	give(others...)
	if !in.full {
		t.Fatal("there is room for more")
	}
	give(sick("late"))
	var told []delta.Key
	take := func() {
		for _, r := range p.stage.Pop(100, 1<<20) {
			told = append(told, r.Key)
		}
	}
	take() // there is room again
	give(others...)
	take()
	give(others...)
	give(sick("next"))
	take()
	in.catchUp()
	in.flush()
	take()
	if want := []delta.Key{"a/first", "a/late", "a/next"}; !slices.Equal(told, want) || in.s.left != 3*intakeChunk || len(in.late) != 0 {
		t.Errorf("staged %q, %d left out, %d late; want %q", told, in.s.left, len(in.late), want)
	}
}

// Moves of the watermark that nobody waits for wake the publisher once for all of them.
func TestExcludedEventsMoveTheWatermarkInFewRecords(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &publisher{r: &reflection{}, wake: make(chan struct{}, 1), stage: delta.NewStage(1<<20, "1")}
		a := &deletionResolver{p: p}
		for round := range 3 {
			for i := range 50 {
				a.pass(strconv.Itoa(100*round + i + 2))
			}
			synctest.Wait()
			if !p.heard.Equal(time.Now()) {
				t.Errorf("round %d: the source was heard at %v, want now: what is left out vouches for it too", round, p.heard)
			}
			if len(p.wake) != 0 {
				t.Fatal("the publisher is woken at once")
			}
			time.Sleep(laterAfter)
			synctest.Wait()
			if len(p.wake) != 1 {
				t.Fatal("the publisher is not woken")
			}
			<-p.wake
			if records := p.stage.Pop(100, 1<<20); len(records) != 1 || records[0].Kind != delta.KindProgress || records[0].Watermark != strconv.Itoa(100*round+51) {
				t.Errorf("round %d: %+v, want one progress record", round, records)
			}
		}
	})
}
