package reflector_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/stream"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
	"github.com/deltaplane/deltaplane/services/reflector"
)

var (
	configmaps  = delta.Collection{Cluster: "dev", Version: "v1", Resource: "configmaps"}
	deployments = delta.Collection{Cluster: "dev", Group: "apps", Version: "v1", Resource: "deployments"}
)

func add(t testing.TB, c reflectorv1.ReflectorServiceClient, spec *reflectorv1.ReflectionSpec) *reflectorv1.AddReflectionResponse {
	t.Helper()
	resp, err := c.AddReflection(t.Context(), &reflectorv1.AddReflectionRequest{Spec: spec})
	if err != nil {
		t.Fatalf("AddReflection(%v) = %v", spec, err)
	}
	return resp
}

// names are the collections that are listed.
func names(t testing.TB, c reflectorv1.ReflectorServiceClient) []string {
	t.Helper()
	resp, err := c.ListReflections(t.Context(), &reflectorv1.ListReflectionsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, r := range resp.GetReflections() {
		out = append(out, r.GetCollection())
	}
	return out
}

// eventually waits until cond holds.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for tick := time.NewTicker(10 * time.Millisecond); !cond(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not seen in time", what)
		}
	}
}

func TestAnAddedReflectionIsSharedByReplicasAndSurvivesThem(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.put("configmaps", "default", "a", "", "")
	nats := embeddedtest.NATS(t).URL()
	first, stopFirst := start(t, quick(), f.URL, nats)
	second, stopSecond := start(t, quick(), f.URL, nats)
	c1, c2 := dial(t, first), dial(t, second)
	resp := add(t, c1, &reflectorv1.ReflectionSpec{Resource: "configmaps"})
	if !resp.GetAdded() || resp.GetSpec().GetCluster() != "dev" {
		t.Errorf("AddReflection() = %v, want it added to the cluster dev", resp)
	}
	if !slices.Contains(names(t, c1), "dev/configmaps") && !slices.Contains(names(t, c1), "dev/configmaps.v1") {
		t.Errorf("%v does not hold what was just added", names(t, c1))
	}
	m := follow(t, nats, configmaps)
	m.until(t, "the config map", func() bool { return len(m.live()) == 1 })
	r := reflection(t, c2, "configmaps", "the other replica's", func(r *reflectorv1.Reflection) bool { return r.GetCollection() == "dev/configmaps.v1" })
	if r.GetOrigin() != reflectorv1.ReflectionOrigin_REFLECTION_ORIGIN_ADDED || r.GetSpec().GetResource() != "configmaps" {
		t.Errorf("reflection %v, want the spec and its origin", r)
	}
	if again := add(t, c2, &reflectorv1.ReflectionSpec{Resource: "configmaps.v1"}); again.GetAdded() || again.GetSpec().GetResource() != "configmaps" {
		t.Errorf("added again under another name: %v, want what is there", again)
	}
	stopFirst()
	f.put("configmaps", "default", "b", "", "")
	m.until(t, "the second replica's event", func() bool { return len(m.live()) == 2 })
	stopSecond()
	third, _ := start(t, quick(), f.URL, nats)
	c3 := dial(t, third)
	reflection(t, c3, "dev/configmaps.v1", "it after a restart", watching)
	removed, err := c3.RemoveReflection(t.Context(), &reflectorv1.RemoveReflectionRequest{Resource: "dev/configmaps.v1"})
	if err != nil || removed.GetSpec().GetResource() != "configmaps" {
		t.Fatalf("RemoveReflection() = %v, %v", removed, err)
	}
	if got := names(t, c3); !slices.Equal(got, []string{"dev/pods.v1"}) {
		t.Errorf("%v are listed after the removal", got)
	}
	if n := f.count("/api/v1/configmaps"); n != 1 {
		t.Errorf("%d lists, want replicas and restarts to go on from the log", n)
	}
}

func TestAddReflectionNamesEveryFault(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	cfg := quick()
	cfg.MaxAdded = 1
	svc, _ := start(t, cfg, f.URL, embeddedtest.NATS(t).URL())
	c := dial(t, svc)
	_, err := c.AddReflection(t.Context(), &reflectorv1.AddReflectionRequest{Spec: &reflectorv1.ReflectionSpec{
		Cluster: "a/b", Resource: "Config Maps", Namespace: "Default", LabelSelector: "a in (", FieldSelector: "nonsense", DropFields: []string{"status..x", "metadata.name"},
		Hints: map[string]string{"N!": "spec.#"}, Labels: []string{"a b"},
	}})
	violations := rpc.Violations(err)
	for _, field := range []string{
		"spec.cluster", "spec.resource", "spec.namespace", "spec.label_selector", "spec.field_selector", "spec.drop_fields[0]", "spec.drop_fields[1]", "spec.hints", "spec.labels[0]",
	} {
		if violations[field] == "" {
			t.Errorf("%v names no fault of %s", err, field)
		}
	}
	if _, err := c.AddReflection(t.Context(), &reflectorv1.AddReflectionRequest{}); rpc.Violations(err)["spec"] == "" {
		t.Errorf("without a spec: %v", err)
	}
	add(t, c, &reflectorv1.ReflectionSpec{Resource: "configmaps", DropFields: []string{"data"}})
	for _, x := range []struct {
		spec   *reflectorv1.ReflectionSpec
		code   codes.Code
		reason string
	}{
		{&reflectorv1.ReflectionSpec{Cluster: "moon", Resource: "configmaps"}, codes.NotFound, "CLUSTER_NOT_FOUND"},
		{&reflectorv1.ReflectionSpec{Resource: "configmaps.v1"}, codes.AlreadyExists, "REFLECTION_DIFFERS"},
		{&reflectorv1.ReflectionSpec{Resource: "pods", MetadataOnly: true}, codes.FailedPrecondition, "CONFIGURED"},
		{&reflectorv1.ReflectionSpec{Resource: "deployments"}, codes.ResourceExhausted, "TOO_MANY_REFLECTIONS"},
	} {
		if _, err := c.AddReflection(t.Context(), &reflectorv1.AddReflectionRequest{Spec: x.spec}); rpc.Code(err) != x.code || rpc.Reason(err) != x.reason {
			t.Errorf("AddReflection(%v) = %v, want %v %s", x.spec, err, x.code, x.reason)
		}
	}
	if resp := add(t, c, &reflectorv1.ReflectionSpec{Resource: "pods"}); resp.GetAdded() {
		t.Errorf("what is configured in the same form: %v", resp)
	}
	for _, resource := range []string{"nonsense", "pods.v7", "deployments.nowhere"} {
		spec := &reflectorv1.ReflectionSpec{Resource: resource}
		if _, err := c.AddReflection(t.Context(), &reflectorv1.AddReflectionRequest{Spec: spec, Served: true}); rpc.Code(err) != codes.NotFound || rpc.Reason(err) != "RESOURCE_NOT_SERVED" {
			t.Errorf("AddReflection(%s) of what must be served = %v", resource, err)
		}
	}
	for _, x := range []struct {
		resource string
		code     codes.Code
		reason   string
	}{
		{"pods", codes.FailedPrecondition, "CONFIGURED"},
		{"nodes", codes.NotFound, "REFLECTION_NOT_FOUND"},
		{"moon/pods", codes.NotFound, "REFLECTION_NOT_FOUND"},
		{"", codes.InvalidArgument, "INVALID_ARGUMENT"},
	} {
		if _, err := c.RemoveReflection(t.Context(), &reflectorv1.RemoveReflectionRequest{Resource: x.resource}); rpc.Code(err) != x.code || rpc.Reason(err) != x.reason {
			t.Errorf("RemoveReflection(%q) = %v, want %v %s", x.resource, err, x.code, x.reason)
		}
	}
}

func TestAReplacedScopeIsListedAndWhatItExcludesIsFilteredOut(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.put("configmaps", "default", "mine", `"team":"a"`, `"data":{"k":"v"},"more":1`)
	f.put("configmaps", "default", "other", `"team":"b"`, `"data":{"k":"v"},"more":1`)
	nats := embeddedtest.NATS(t).URL()
	svc, _ := start(t, quick(), f.URL, nats)
	c := dial(t, svc)
	add(t, c, &reflectorv1.ReflectionSpec{Resource: "configmaps"})
	m := follow(t, nats, configmaps)
	m.until(t, "both", func() bool { return len(m.live()) == 2 })
	resp, err := c.AddReflection(t.Context(), &reflectorv1.AddReflectionRequest{Replace: true, Spec: &reflectorv1.ReflectionSpec{
		Resource: "configmaps", LabelSelector: "team=a", DropFields: []string{"data.k"},
	}})
	if err != nil || !resp.GetAdded() {
		t.Fatalf("AddReflection() = %v, %v", resp, err)
	}
	m.until(t, "the new form", func() bool {
		mine, ok := m.get("default/mine")
		return ok && len(m.live()) == 1 && !strings.Contains(string(mine.Payload), `"k"`) && strings.Contains(string(mine.Payload), `"more":1`)
	})
	if other, _ := m.get("default/other"); other.DeleteReason != delta.FilteredOut {
		t.Errorf("what the form leaves out is %+v, want it filtered out", other)
	}
	asked := f.requests("/api/v1/configmaps")
	if len(asked) != 2 || asked[1].query.Get("labelSelector") != "team=a" {
		t.Errorf("lists %v, want one more, with the selector", asked)
	}
}

func TestARelistAskedOfAStandbyIsDoneByTheLeaderOnce(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	nats := embeddedtest.NATS(t).URL()
	first, stopFirst := start(t, quick(), f.URL, nats)
	reflection(t, dial(t, first), "pods", "the first leads", watching)
	second, _ := start(t, quick(), f.URL, nats)
	c2 := dial(t, second)
	reflection(t, c2, "dev/pods.v1", "the second stands by", func(r *reflectorv1.Reflection) bool {
		return r.GetState() == reflectorv1.ReflectionState_REFLECTION_STATE_STANDBY
	})
	resp, err := c2.Relist(t.Context(), &reflectorv1.RelistRequest{Collection: "pods"})
	if err != nil || resp.GetCollection() != "dev/pods.v1" {
		t.Fatalf("Relist() = %v, %v", resp, err)
	}
	reflection(t, dial(t, first), "pods", "a second list", func(r *reflectorv1.Reflection) bool { return r.GetRelists() == 2 && watching(r) })
	conn, err := stream.Connect(t.Context(), stream.Config{URL: nats})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	eventually(t, "the request taken back", func() bool {
		b, err := conn.Bucket(t.Context(), "deltaplane-reflections", 0)
		if err != nil {
			t.Fatal(err)
		}
		e, err := b.Get(t.Context(), "relist/dev/pods.v1")
		return err == nil && len(e.Value) == 0
	})
	stopFirst()
	reflection(t, c2, "pods", "the second leads", watching)
	if n := f.count("/api/v1/pods"); n != 2 {
		t.Errorf("%d lists, want a request to be answered once, and a failover without a list", n)
	}
}

func TestRemovingWithTheLogDeletesItOnceNobodyLeads(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.put("configmaps", "default", "a", "", "")
	nats := embeddedtest.NATS(t).URL()
	first, _ := start(t, quick(), f.URL, nats)
	second, _ := start(t, quick(), f.URL, nats)
	c1, c2 := dial(t, first), dial(t, second)
	conn, err := stream.Connect(t.Context(), stream.Config{URL: nats})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	add(t, c1, &reflectorv1.ReflectionSpec{Resource: "configmaps"})
	m := follow(t, nats, configmaps)
	m.until(t, "the first", func() bool { return len(m.live()) == 1 })
	if _, err := c2.RemoveReflection(t.Context(), &reflectorv1.RemoveReflectionRequest{Resource: "configmaps", DeleteLog: true}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the log deleted", func() bool {
		logs, err := conn.Collections(t.Context())
		return err == nil && !slices.Contains(logs, configmaps)
	})
	before := m.revision().Epoch
	add(t, c1, &reflectorv1.ReflectionSpec{Resource: "configmaps"})
	m.until(t, "a new epoch", func() bool { return m.revision().Epoch > before && len(m.live()) == 1 })
	f.put("configmaps", "default", "b", "", "")
	m.until(t, "it goes on", func() bool { return len(m.live()) == 2 })
}

func TestSeveralClustersAreMirroredAndOneThatIsAwayHoldsNoOtherBack(t *testing.T) {
	t.Parallel()
	near, far := newFleet(t), newFleet(t)
	near.put("pods", "default", "near", "", "")
	far.put("pods", "default", "far", "", "")
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	client := func(url string) *kube.Client {
		kc, err := kube.Load(kube.Config{URL: url})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(kc.Close)
		return kc
	}
	cfg := quick()
	cfg.Cluster = "near"
	cfg.Clusters = []reflector.Cluster{{Name: "gone", Kube: client(gone.URL)}, {Name: "far", Kube: client(far.URL)}, {Name: "again", Kube: client(far.URL)}}
	cfg.Resources = []reflector.Resource{
		{Name: "pods"}, {Cluster: "gone", Name: "*"}, {Cluster: "again", Name: "nodes"},
	}
	nats := embeddedtest.NATS(t).URL()
	svc, _ := start(t, cfg, near.URL, nats)
	c := dial(t, svc)
	for cluster, key := range map[string]delta.Key{"near": "default/near", "far": "default/far", "again": "default/far"} {
		m := follow(t, nats, delta.Collection{Cluster: cluster, Version: "v1", Resource: "pods"})
		m.until(t, "the pod of "+cluster, func() bool { _, ok := m.get(key); return ok })
	}
	for _, name := range []string{"gone/pods", "gone/*"} {
		r := reflection(t, c, name, name+" fails", func(r *reflectorv1.Reflection) bool { return r.GetReason() != "" })
		if r.GetReason() != "UNREACHABLE" || r.GetLastError() == "" {
			t.Errorf("%s: %v, want it unreachable", name, r)
		}
	}
	_, err := c.AddReflection(t.Context(), &reflectorv1.AddReflectionRequest{Spec: &reflectorv1.ReflectionSpec{Resource: "configmaps"}})
	if v := rpc.Violations(err)["spec.cluster"]; !strings.Contains(v, "near, gone, far, again") {
		t.Errorf("a reflection of no cluster: %v", err)
	}
	add(t, c, &reflectorv1.ReflectionSpec{Cluster: "far", Resource: "configmaps"})
	reflection(t, c, "far/configmaps.v1", "it in that cluster", watching)
	if _, err := c.Relist(t.Context(), &reflectorv1.RelistRequest{Collection: "pods"}); !strings.Contains(rpc.Violations(err)["collection"], "far/pods.v1") {
		t.Errorf("Relist() of several = %v", err)
	}
	for name, err := range map[string]error{
		"Relist": func() error {
			_, err := c.Relist(t.Context(), &reflectorv1.RelistRequest{Collection: "nonsense"})
			return err
		}(),
		"ListReflections": func() error {
			_, err := c.ListReflections(t.Context(), &reflectorv1.ListReflectionsRequest{Collection: "nonsense"})
			return err
		}(),
		"RemoveReflection": func() error {
			_, err := c.RemoveReflection(t.Context(), &reflectorv1.RemoveReflectionRequest{Cluster: "far", Resource: "nonsense"})
			return err
		}(),
	} {
		if text := rpc.Message(err); !strings.Contains(text, "; there are: ") || !strings.Contains(text, "far/configmaps.v1") || strings.Contains(text, "near/pods.v1") == (name == "RemoveReflection") {
			t.Errorf("%s() of what is not mirrored = %v", name, err)
		}
	}
	if _, err := c.Relist(t.Context(), &reflectorv1.RelistRequest{Collection: "far/pods"}); err != nil {
		t.Errorf("Relist() of one = %v", err)
	}
}

// everything starts a reflector of all that is served, which keeps the log of what vanishes for so
// long, and waits until it mirrors widgets: a definition that appears, with one object.
func everything(t *testing.T, keep time.Duration) (f *fleet, c reflectorv1.ReflectorServiceClient, m *mirror, nats string) {
	t.Helper()
	f = newFleet(t)
	nats = embeddedtest.NATS(t).URL()
	cfg := quick()
	cfg.Resources = []reflector.Resource{{Name: "*"}}
	cfg.KeepVanished = keep
	svc, _ := start(t, cfg, f.URL, nats)
	c = dial(t, svc)
	reflection(t, c, "dev/deployments.v1.apps", "what is there", watching)
	f.serve(widget())
	f.put("widgets", "default", "w", "", "")
	m = follow(t, nats, widgets)
	m.until(t, "the widget", func() bool { return len(m.live()) == 1 })
	return f, c, m, nats
}

var widgets = delta.Collection{Cluster: "dev", Group: "example.com", Version: "v1", Resource: "widgets"}

func widget() *kind {
	return &kind{group: "example.com", version: "v1", name: "widgets", kind: "Widget", namespaced: true}
}

// How long a definition that vanished is shown depends on the time its log is kept for; the tests
// are not to.
func TestEverythingFollowsDefinitionsThatAppearAndShowsThoseThatVanish(t *testing.T) {
	t.Parallel()
	f, c, m, _ := everything(t, time.Hour)
	if got := names(t, c); slices.ContainsFunc(got, func(n string) bool { return strings.Contains(n, "secrets") || strings.Contains(n, "status") }) {
		t.Errorf("%v hold secrets or subresources", got)
	}
	if r := reflection(t, c, "widgets.example.com", "watched", watching); r.GetOrigin() != reflectorv1.ReflectionOrigin_REFLECTION_ORIGIN_DISCOVERED {
		t.Errorf("origin %v", r.GetOrigin())
	}
	f.withdraw("widgets")
	r := reflection(t, c, "widgets.example.com", "stopped", func(r *reflectorv1.Reflection) bool {
		return r.GetState() == reflectorv1.ReflectionState_REFLECTION_STATE_STOPPED && r.GetReason() == "NOT_SERVED" && r.GetTerm() == 0 &&
			strings.Contains(r.GetLastError(), "vanished") // it may have stopped at a list's 404 before
	})
	if len(m.live()) != 1 {
		t.Errorf("%v with %d objects, want the log kept for a while", r, len(m.live()))
	}
}

func TestEverythingDeletesTheLogOfADefinitionThatVanishedAndBeginsAgainWhenItIsBack(t *testing.T) {
	t.Parallel()
	f, c, m, nats := everything(t, time.Second)
	f.withdraw("widgets")
	conn, err := stream.Connect(t.Context(), stream.Config{URL: nats})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	eventually(t, "the log deleted", func() bool {
		logs, err := conn.Collections(t.Context())
		return err == nil && !slices.Contains(logs, widgets)
	})
	eventually(t, "it is listed no more", func() bool {
		return !slices.ContainsFunc(names(t, c), func(n string) bool { return strings.Contains(n, "widgets") })
	})
	before := m.revision().Epoch
	f.serve(widget())
	f.put("widgets", "default", "again", "", "")
	m.until(t, "the definition recreated", func() bool {
		live := m.live()
		return m.revision().Epoch > before && len(live) == 1 && live["default/again"] != ""
	})
}

func TestWhatIsNamedTakesOverFromEverythingAndGivesBack(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.put("deployments", "default", "d", "", `"spec":{"x":1}`)
	nats := embeddedtest.NATS(t).URL()
	cfg := quick()
	cfg.Resources = []reflector.Resource{{Name: "*"}}
	svc, _ := start(t, cfg, f.URL, nats)
	c := dial(t, svc)
	m := follow(t, nats, deployments)
	m.until(t, "the whole object", func() bool { d, ok := m.get("default/d"); return ok && strings.Contains(string(d.Payload), "spec") })
	spec := &reflectorv1.ReflectionSpec{Resource: "deployments", MetadataOnly: true}
	if _, err := c.AddReflection(t.Context(), &reflectorv1.AddReflectionRequest{Spec: spec}); rpc.Reason(err) != "REFLECTION_DIFFERS" {
		t.Errorf("another form than what is found: %v", err)
	}
	if _, err := c.AddReflection(t.Context(), &reflectorv1.AddReflectionRequest{Spec: spec, Replace: true}); err != nil {
		t.Fatal(err)
	}
	m.until(t, "its metadata", func() bool { d, ok := m.get("default/d"); return ok && !strings.Contains(string(d.Payload), "spec") })
	d, _ := m.get("default/d")
	if !strings.HasPrefix(string(d.Payload), `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{`) {
		t.Errorf("payload %s", d.Payload)
	}
	f.put("deployments", "default", "e", "", `"spec":{"x":1}`)
	m.until(t, "one by watch", func() bool { e, ok := m.get("default/e"); return ok && !strings.Contains(string(e.Payload), "spec") })
	if r := reflection(t, c, "deployments", "added", watching); r.GetOrigin() != reflectorv1.ReflectionOrigin_REFLECTION_ORIGIN_ADDED || r.GetQuarantinedTotal() != 0 {
		t.Errorf("reflection %v", r)
	}
	if _, err := c.RemoveReflection(t.Context(), &reflectorv1.RemoveReflectionRequest{Resource: "deployments"}); err != nil {
		t.Fatal(err)
	}
	m.until(t, "the whole object again", func() bool { d, ok := m.get("default/d"); return ok && strings.Contains(string(d.Payload), "spec") })
}

func TestAServerThatIgnoresMetadataOnlyIsRefused(t *testing.T) {
	t.Parallel()
	a := newAPI(t) // it sends pods whatever is asked
	a.onList = func(int, url.Values) (int, string) { return 200, list("10", "", item("a", 1)) }
	cfg := quick()
	cfg.Resources[0].MetadataOnly = true
	svc, _ := start(t, cfg, a.URL, embeddedtest.NATS(t).URL())
	r := reflection(t, dial(t, svc), "pods", "refused", func(r *reflectorv1.Reflection) bool { return r.GetReason() != "" })
	if r.GetReason() != "BAD_ANSWER" || !strings.Contains(r.GetLastError(), "metadata") || r.GetObjects() != 0 {
		t.Errorf("reflection %v", r)
	}
}

func TestANamespaceNarrowsAndIsRefusedWhereThereAreNone(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.put("configmaps", "default", "a", "", "")
	f.put("configmaps", "other", "b", "", "")
	nats := embeddedtest.NATS(t).URL()
	cfg := quick()
	cfg.Resources = []reflector.Resource{{Name: "*", Scope: kube.Scope{Namespace: "default"}}, {Name: "pods"}}
	svc, _ := start(t, cfg, f.URL, nats)
	c := dial(t, svc)
	m := follow(t, nats, configmaps)
	m.until(t, "the config map of the namespace", func() bool { return m.readable() && len(m.live()) == 1 })
	if got := names(t, c); slices.Contains(got, "dev/nodes.v1") {
		t.Errorf("%v hold a resource without namespaces", got)
	}
	add(t, c, &reflectorv1.ReflectionSpec{Resource: "nodes", Namespace: "default"})
	r := reflection(t, c, "nodes", "refused", func(r *reflectorv1.Reflection) bool { return r.GetReason() != "" && r.GetNextRetryAt() != nil })
	if r.GetReason() != "NO_NAMESPACES" || r.GetState() != reflectorv1.ReflectionState_REFLECTION_STATE_BACKOFF {
		t.Errorf("reflection %v", r)
	}
}

func TestDiscoveryIsAskedOnceForManyCollections(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	cfg := quick()
	cfg.Resources = nil
	const many = 25
	for i := range many {
		cfg.Resources = append(cfg.Resources, reflector.Resource{Name: fmt.Sprintf("things%d", i)})
	}
	cfg.DiscoverEvery = time.Second
	cfg.Backoff = reflector.Backoff{Base: time.Second, Cap: time.Second, Jitter: -1}
	svc, _ := start(t, cfg, f.URL, embeddedtest.NATS(t).URL())
	c := dial(t, svc)
	eventually(t, "all failing", func() bool {
		resp, err := c.ListReflections(t.Context(), &reflectorv1.ListReflectionsRequest{})
		return err == nil && len(resp.GetReflections()) == many && !slices.ContainsFunc(resp.GetReflections(), func(r *reflectorv1.Reflection) bool { return r.GetReason() != "NOT_SERVED" })
	})
	eventually(t, "a few rounds", func() bool { return f.count("/apis") >= 3 })
	if n := f.count("/apis"); n > 5 { // the third was just seen
		t.Errorf("%d requests for the groups in three rounds of %d collections", n, many)
	}
}

func TestARegistryOfALaterVersionHarmsNothing(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	nats := embeddedtest.NATS(t).URL()
	conn, err := stream.Connect(t.Context(), stream.Config{URL: nats})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	b, err := conn.Bucket(t.Context(), "deltaplane-reflections", 0)
	if err != nil {
		t.Fatal(err)
	}
	put := func(key, value string) {
		t.Helper()
		if _, err := b.Put(t.Context(), key, []byte(value)); err != nil {
			t.Fatal(err)
		}
	}
	put("added/dev", `{"version":1,"reflections":[{"resource":"configmaps","sharded":true},{"resource":"Bad"},{"resource":"deployments"}]}`)
	put("relist/dev/moons.v1", "x")
	put("future", "{")
	svc, _ := start(t, quick(), f.URL, nats)
	c := dial(t, svc)
	reflection(t, c, "deployments", "what can be read", watching)
	add(t, c, &reflectorv1.ReflectionSpec{Resource: "nodes"})
	e, err := b.Get(t.Context(), "added/dev")
	if err != nil || !strings.Contains(string(e.Value), `"sharded":true`) {
		t.Errorf("the bucket holds %s, %v: what a later version wrote is lost", e.Value, err)
	}
	put("added/dev", `{"version":9}`)
	_, err = c.AddReflection(t.Context(), &reflectorv1.AddReflectionRequest{Spec: &reflectorv1.ReflectionSpec{Resource: "configmaps"}})
	if rpc.Reason(err) != "REFLECTIONS_UNAVAILABLE" {
		t.Errorf("AddReflection() to a form that is not known = %v", err)
	}
	if got := names(t, c); !slices.Contains(got, "dev/deployments.v1.apps") {
		t.Errorf("%v: what was in use is not, because of a form that is not known", got)
	}
}

func TestAFloodInOneCollectionDelaysNoOther(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	for i := range 200 {
		f.put("pods", "default", fmt.Sprintf("p%d", i), "", "")
	}
	nats := embeddedtest.NATS(t).URL()
	cfg := quick()
	cfg.Resources = []reflector.Resource{{Name: "pods.v1"}, {Name: "configmaps.v1"}}
	cfg.StageBytes = 1 << 20
	cfg.LeaseTTL = 5 * time.Minute // a busy machine must not end the term
	svc, _ := start(t, cfg, f.URL, nats)
	c := dial(t, svc)
	reflection(t, c, "pods", "pods watched", watching)
	reflection(t, c, "configmaps", "config maps watched", watching)
	quiet := follow(t, nats, configmaps)
	ctx, cancel := context.WithCancel(t.Context())
	var written atomic.Int64
	var flooding sync.WaitGroup
	flooding.Go(func() { // as fast as the watch takes it, for as long as the other collection is looked at
		pad := strings.Repeat("x", 2000)
		for ctx.Err() == nil {
			n := written.Add(1)
			f.put("pods", "default", fmt.Sprintf("p%d", n%200), "", fmt.Sprintf(`"x":"%d%s"`, n, pad))
		}
	})
	for i := range 20 { // each is seen while the flood goes on
		name := fmt.Sprintf("c%d", i)
		f.put("configmaps", "default", name, "", "")
		quiet.until(t, name, func() bool { _, ok := quiet.get(delta.Key("default/" + name)); return ok })
	}
	// A busy machine may have been quicker with those than with the flood.
	reflection(t, c, "pods", "a flood", func(r *reflectorv1.Reflection) bool { return written.Load() >= 1000 && r.GetPublished() >= 400 })
	cancel()
	flooding.Wait()
	if n := f.count("watch /api/v1/pods"); n != 1 {
		t.Errorf("%d watches of pods, want the flood not to cut it", n)
	}
}
