package reflector_test

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/rpc"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
	"github.com/deltaplane/deltaplane/services/reflector"
)

// itemIn is [item] in a namespace.
func itemIn(namespace, name string, rv int) string {
	return strings.Replace(item(name, rv), `"default"`, strconv.Quote(namespace), 1)
}

// objectIn is [object] in a namespace.
func objectIn(namespace, name string, rv int) string {
	return strings.Replace(object(name, rv), `"default"`, strconv.Quote(namespace), 1)
}

// inTwo is a configuration that mirrors the pods of the namespaces a and b.
func inTwo(cfg reflector.Config) reflector.Config {
	cfg.Resources[0].Namespaces = []string{"b", "a", "b"}
	return cfg
}

// told are the deltas of a log as "type key version".
func told(m *mirror) []string {
	var out []string
	for _, r := range m.kinds(delta.KindDelta) {
		out = append(out, fmt.Sprint(r.Type, " ", r.Key, " ", r.RV))
	}
	return out
}

func TestSeveralNamespacesShareOneListAndWatchAndOnlyTheyReachTheLog(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onList = func(int, url.Values) (int, string) {
		return 200, list("10", "",
			itemIn("a", "x", 1), itemIn("out", "x", 2), itemIn("b", "y", 3),
			`{"metadata":{"name":"bare","uid":"u","resourceVersion":"4"}}`,                          // in no namespace
			`{"metadata":{"namespace":"out"}}`,                                                      // without a name: of those that are left out
			`{"metadata":{"name":"odd","namespace":"out","resourceVersion":"5"},"spec":[nonsense]}`, // what is wrong comes behind its namespace
			`{"metadata":{"name":"sick","namespace":"a"}}`,                                          // of those that are mirrored
		)
	}
	steps := a.stepped()
	nats := embeddedtest.NATS(t).URL()
	svc, tel, stop := startSeen(t, inTwo(quick()), clientOf(t, a.URL), nats, logs(t))
	c := dial(t, svc)
	m := follow(t, nats, pods)
	m.until(t, "the list", func() bool { return m.revision().RV == "10" })
	for _, line := range []string{
		event("ADDED", objectIn("out", "z", 11)), event("MODIFIED", objectIn("a", "x", 12)), event("DELETED", objectIn("out", "x", 13)),
		event("MODIFIED", strings.Replace(objectIn("out", "z", 14), `"resourceVersion":"14"`, `"x":1`, 1)), // no version: nothing was missed
		event("MODIFIED", strings.Replace(objectIn("out", "z", 15), `"spec":{`, `"spec":nonsense{`, 1)),
		event("ADDED", `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"bare2","uid":"u","resourceVersion":"16"}}`),
		event("DELETED", objectIn("b", "y", 17)), event("ADDED", objectIn("out", "y", 20)),
	} {
		steps <- line
	}
	m.until(t, "the version of what is left out last", func() bool { return m.revision().RV == "20" })
	if diff := cmp.Diff([]string{"REPLACED a/x 1", "REPLACED b/y 3", "UPDATED a/x 12", "DELETED b/y 17"}, told(m)); diff != "" {
		t.Errorf("deltas (-want +got):\n%s", diff)
	}
	r := reflection(t, c, "pods", "the state", watching)
	if r.GetObjects() != 1 || r.GetQuarantinedTotal() != 1 || r.GetQuarantined()[0].GetKey() != "a/sick" || r.GetRelists() != 1 || r.GetNamespace() != "" ||
		!slices.Equal(r.GetNamespaces(), []string{"a", "b"}) || !slices.Equal(r.GetSpec().GetNamespaces(), []string{"a", "b"}) {
		t.Errorf("reflection %v", r)
	}
	if l, w := a.of(listed), a.of(watched); len(l) != 1 || len(w) != 1 || l[0].query.Has("fieldSelector") || w[0].rv() != "10" {
		t.Errorf("asked for %v and %v, want one list and one watch of the whole cluster", l, w)
	}
	if n := total(t, tel, "deltaplane_reflector_left_out_total"); n != 4+6 {
		t.Errorf("%v are counted as left out, want 4 of the list and 6 events", n)
	}
	if n := total(t, tel, "reflector_items_per_list"); n != 7 {
		t.Errorf("%v items in the list, want what the API server sent", n)
	}
	stop()
	if n := total(t, tel, "deltaplane_reflector_left_out_total"); n != 0 {
		t.Errorf("%v are counted as left out of what is not mirrored any more", n)
	}
}

func TestARelistPublishesNothingOfExcludedNamespaces(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onList = func(n int, _ url.Values) (int, string) {
		if n == 1 {
			return 200, list("10", "", itemIn("a", "x", 1), itemIn("a", "gone", 2), itemIn("out", "gone", 3), itemIn("out", "stays", 4), itemIn("out", "stays", 4))
		}
		return 200, list("20", "", itemIn("a", "x", 1), itemIn("out", "stays", 15), itemIn("out", "new", 16))
	}
	seen := make(chan struct{})
	a.onWatch = func(n int, _ url.Values, w *wire) {
		if n == 1 {
			w.send(event("ADDED", objectIn("out", "seen", 11)))
			a.wait(seen)
			w.send(errorEvent(410, "Expired"))
			return
		}
		w.send()
		w.hold()
	}
	m := mirrored(t, a, inTwo(quick()))
	m.until(t, "the version of an event that is left out", func() bool { return m.revision().RV == "11" })
	close(seen)
	m.until(t, "the second list", func() bool { return m.revision().RV == "20" })
	if diff := cmp.Diff([]string{"REPLACED a/x 1", "REPLACED a/gone 2", "DELETED a/gone 20"}, told(m)); diff != "" {
		t.Errorf("deltas (-want +got):\n%s", diff)
	}
	if got := a.sequence(); !slices.Equal(got, []string{"0", "11"}) {
		t.Errorf("lists at %v: W did not move over what was left out", got)
	}
}

func TestAStreamingStartOfSeveralNamespaces(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onStream = func(_ int, _ url.Values, w *wire) {
		w.send(event("ADDED", objectIn("out", "x", 1)), event("ADDED", objectIn("a", "x", 2)), event("DELETED", `{"metadata":{"namespace":"out"}}`),
			event("DELETED", objectIn("out", "x", 4)), event("ADDED", objectIn("b", "y", 5)), event("DELETED", objectIn("b", "y", 6)), initialEnd(7),
			event("ADDED", objectIn("out", "z", 8)), event("ADDED", objectIn("b", "z", 9)), event("ADDED", objectIn("out", "zz", 10)))
		w.hold()
	}
	m := mirrored(t, a, inTwo(streaming()))
	m.until(t, "the events behind it", func() bool { return m.revision().RV == "10" })
	if diff := cmp.Diff(map[delta.Key]string{"a/x": "2", "b/z": "9"}, m.live()); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
	if s, l, w := len(a.of(streamed)), len(a.of(listed)), len(a.of(watched)); s != 1 || l+w != 0 {
		t.Errorf("%d streams, %d lists, %d watches, want one stream", s, l, w)
	}
}

func TestWhoMayNotListTheWholeClusterIsToldThatSeveralNamespacesNeedIt(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onList = func(int, url.Values) (int, string) { return 403, status(403, "Forbidden", "pods is forbidden") }
	nats := embeddedtest.NATS(t).URL()
	for _, several := range []bool{true, false} {
		cfg := quick()
		if cfg.Cluster = "one"; several {
			cfg = inTwo(cfg)
			cfg.Cluster = "two"
		}
		svc, _ := start(t, cfg, a.URL, nats)
		r := reflection(t, dial(t, svc), "pods", "refused", func(r *reflectorv1.Reflection) bool { return r.GetReason() != "" && r.GetLastError() != "" })
		if r.GetReason() != "FORBIDDEN" || strings.Contains(r.GetLastError(), "the whole cluster") != several {
			t.Errorf("several %v: reflection %v", several, r)
		}
	}
}

func TestAnotherSetOfNamespacesIsAnotherScope(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	for _, ns := range []string{"a", "b", "c", "out"} {
		f.put("configmaps", ns, "x", "", "")
	}
	nats := embeddedtest.NATS(t).URL()
	svc, _ := start(t, quick(), f.URL, nats)
	c := dial(t, svc)
	m := follow(t, nats, configmaps)
	live := func(want ...delta.Key) func() bool {
		return func() bool {
			var got []delta.Key
			for key := range m.live() {
				got = append(got, key)
			}
			slices.Sort(got)
			return m.readable() && slices.Equal(got, want)
		}
	}
	replace := func(added bool, spec *reflectorv1.ReflectionSpec) *reflectorv1.ReflectionSpec {
		t.Helper()
		spec.Resource = "configmaps"
		resp, err := c.AddReflection(t.Context(), &reflectorv1.AddReflectionRequest{Replace: true, Spec: spec})
		if err != nil || resp.GetAdded() != added {
			t.Fatalf("AddReflection(%v) = %v, %v", spec, resp, err)
		}
		return resp.GetSpec()
	}
	if kept := replace(true, &reflectorv1.ReflectionSpec{Namespaces: []string{"a"}}); kept.GetNamespace() != "a" || kept.GetNamespaces() != nil {
		t.Errorf("one of a list is kept as %v", kept)
	}
	m.until(t, "one", live("a/x"))
	replace(false, &reflectorv1.ReflectionSpec{Namespace: "a"})
	replace(true, &reflectorv1.ReflectionSpec{Namespaces: []string{"a", "b"}})
	m.until(t, "two", live("a/x", "b/x"))
	replace(false, &reflectorv1.ReflectionSpec{Namespaces: []string{"b", "a", "b"}})
	if _, err := c.AddReflection(t.Context(), &reflectorv1.AddReflectionRequest{Spec: &reflectorv1.ReflectionSpec{Resource: "configmaps", Namespaces: []string{"b", "c"}}}); rpc.Reason(err) != "REFLECTION_DIFFERS" ||
		!strings.Contains(err.Error(), `namespaces ["a","b"], not with namespaces ["b","c"]`) {
		t.Errorf("another set: %v", err)
	}
	replace(true, &reflectorv1.ReflectionSpec{Namespaces: []string{"b", "c"}})
	m.until(t, "two others", live("b/x", "c/x"))
	if r, _ := m.get("a/x"); r.DeleteReason != delta.FilteredOut {
		t.Errorf("what left the set is %+v, want it filtered out", r)
	}
	if n := strings.Count(strings.Join(told(m), "\n"), " b/x "); n != 1 {
		t.Errorf("%v: what stayed in the set is told %d times", told(m), n)
	}
	f.put("configmaps", "a", "later", "", "")
	f.put("configmaps", "c", "later", "", "")
	m.until(t, "what came to it later", live("b/x", "c/later", "c/x"))
	replace(true, &reflectorv1.ReflectionSpec{})
	m.until(t, "all", live("a/later", "a/x", "b/x", "c/later", "c/x", "out/x"))
	var lists []int
	for _, path := range []string{"/api/v1/configmaps", "/api/v1/namespaces/a/configmaps", "/api/v1/namespaces/b/configmaps"} {
		lists = append(lists, f.count(path))
	}
	if !slices.Equal(lists, []int{3, 1, 0}) {
		t.Errorf("%v lists of all, of a and of b; want one for each form, and that of one namespace alone narrowed", lists)
	}
}

func TestSeveralNamespacesSurviveFailoverAndRestart(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.put("configmaps", "a", "x", "", "")
	f.put("configmaps", "out", "x", "", "")
	nats := embeddedtest.NATS(t).URL()
	first, stopFirst := start(t, quick(), f.URL, nats)
	second, stopSecond := start(t, quick(), f.URL, nats)
	add(t, dial(t, first), &reflectorv1.ReflectionSpec{Resource: "configmaps", Namespaces: []string{"a", "b"}})
	m := follow(t, nats, configmaps)
	m.until(t, "the first", func() bool { return len(m.live()) == 1 })
	reflection(t, dial(t, second), "configmaps", "the other replica's", func(r *reflectorv1.Reflection) bool {
		return r.GetCollection() == "dev/configmaps.v1" && slices.Equal(r.GetNamespaces(), []string{"a", "b"})
	})
	for i, stop := range []func(){stopFirst, stopSecond} {
		stop()
		if i == 1 {
			start(t, quick(), f.URL, nats)
		}
		f.put("configmaps", "out", "y"+strconv.Itoa(i), "", "")
		f.put("configmaps", "b", "y"+strconv.Itoa(i), "", "")
		m.until(t, "the next leader's", func() bool { return len(m.live()) == 2+i })
	}
	if got := strings.Join(told(m), "\n"); strings.Contains(got, "out/") || m.resets != 1 {
		t.Errorf("%d resets; the log tells\n%s", m.resets, got)
	}
	if n := f.count("/api/v1/configmaps"); n != 1 {
		t.Errorf("%d lists, want the failovers to resume the watch", n)
	}
}

func TestNamespacesThatCannotBeAreRefusedByName(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	svc, _ := start(t, quick(), f.URL, embeddedtest.NATS(t).URL())
	c := dial(t, svc)
	_, err := c.AddReflection(t.Context(), &reflectorv1.AddReflectionRequest{Spec: &reflectorv1.ReflectionSpec{Resource: "configmaps", Namespace: "a", Namespaces: []string{"b"}}})
	if rpc.Code(err) != codes.InvalidArgument || !strings.Contains(rpc.Violations(err)["spec.namespaces"], `"b" is not the namespace "a"`) {
		t.Errorf("two that differ: %v", err)
	}
	_, err = c.AddReflection(t.Context(), &reflectorv1.AddReflectionRequest{Spec: &reflectorv1.ReflectionSpec{Resource: "configmaps", Namespaces: []string{"a", "", "B"}}})
	if v := rpc.Violations(err); v["spec.namespaces[1]"] == "" || v["spec.namespaces[2]"] == "" || len(v) != 2 {
		t.Errorf("an empty one and a wrong one: %v", err)
	}
	add(t, c, &reflectorv1.ReflectionSpec{Resource: "nodes", Namespaces: []string{"a", "b", "c", "d"}})
	r := reflection(t, c, "nodes", "refused", func(r *reflectorv1.Reflection) bool { return r.GetReason() != "" && r.GetNextRetryAt() != nil })
	if r.GetReason() != "NO_NAMESPACES" || !strings.Contains(r.GetLastError(), `"a", "b", "c" and 1 more was asked for`) {
		t.Errorf("reflection %v", r)
	}
}
