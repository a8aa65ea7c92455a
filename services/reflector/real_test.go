package reflector_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/kube"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
	"github.com/deltaplane/deltaplane/services/reflector"
)

var (
	configMaps = kube.Resource{Version: "v1", Name: "configmaps", Kind: "ConfigMap", Namespaced: true}
	mapsInLog  = delta.Collection{Cluster: "dev", Version: "v1", Resource: "configmaps"}
)

// real is a namespace of the API server that DELTAPLANE_KUBECONFIG names.
type real struct {
	t    testing.TB
	file string
	kube *kube.Client
	ns   string
}

func newReal(t *testing.T) *real {
	t.Helper()
	file := os.Getenv("DELTAPLANE_KUBECONFIG")
	if file == "" {
		t.Skip("DELTAPLANE_KUBECONFIG is not set: `make kube` starts a real API server and prints one")
	}
	r := &real{t: t, file: file, ns: fmt.Sprintf("reflector-%d", time.Now().UnixNano()%1e9)}
	r.kube = r.client()
	t.Cleanup(r.kube.Close)
	namespaces := kube.Resource{Version: "v1", Name: "namespaces", Kind: "Namespace"}
	body := fmt.Sprintf(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q}}`, r.ns)
	if _, err := r.kube.Create(t.Context(), kube.Ref{Resource: namespaces}, []byte(body), kube.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *real) client() *kube.Client {
	r.t.Helper()
	kc, err := kube.Load(kube.Config{Kubeconfig: r.file})
	if err != nil {
		r.t.Fatal(err)
	}
	return kc
}

func (r *real) ref(name string) kube.Ref {
	return kube.Ref{Resource: configMaps, Namespace: r.ns, Name: name}
}

func (r *real) make(names ...string) {
	r.t.Helper()
	for _, name := range names {
		body := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"labels":{"app":"x"}},"data":{"a":"<b>"}}`, name)
		if _, err := r.kube.Create(r.t.Context(), kube.Ref{Resource: configMaps, Namespace: r.ns}, []byte(body), kube.WriteOptions{}); err != nil {
			r.t.Fatal(err)
		}
	}
}

// config mirrors the labelled config maps of the namespace.
func (r *real) config() reflector.Config {
	cfg := quick()
	cfg.Resources = []reflector.Resource{{Name: "configmaps.v1", Scope: kube.Scope{Namespace: r.ns, LabelSelector: "app=x"}}}
	return cfg
}

func TestRealListsAndStreamsHoldTheSameAndPassIntoTheWatch(t *testing.T) {
	t.Parallel()
	r := newReal(t)
	r.make("a", "b", "c")
	mirrors := map[reflector.WatchList]*mirror{}
	for _, choice := range []reflector.WatchList{reflector.WatchListNever, reflector.WatchListOnly} {
		cfg := r.config()
		cfg.WatchList, cfg.PageSize = choice, 2
		nats := embeddedtest.NATS(t).URL()
		svc, _ := startOn(t, cfg, r.client(), nats)
		m := follow(t, nats, mapsInLog)
		m.until(t, string(choice), func() bool { return m.readable() && len(m.live()) == 3 })
		mirrors[choice] = m
		got := reflection(t, dial(t, svc), "configmaps", "watching", watching)
		if got.GetWatches() != 1 || got.GetRelists() != 1 || got.GetReason() != "" {
			t.Errorf("%s: %v; want one watch and one state", choice, got)
		}
	}
	listed, streamed := mirrors[reflector.WatchListNever], mirrors[reflector.WatchListOnly]
	r.make("d")
	for _, m := range mirrors {
		m.until(t, "a change", func() bool { _, ok := m.get(delta.Key(r.ns + "/d")); return ok })
	}
	if diff := cmp.Diff(listed.live(), streamed.live()); diff != "" {
		t.Errorf("list and stream differ (-list +stream):\n%s", diff)
	}
	for key := range listed.live() {
		a, _ := listed.get(key)
		b, _ := streamed.get(key)
		if string(a.Payload) != string(b.Payload) || a.Hash != b.Hash {
			t.Errorf("%s is not the same bytes from a list and a stream:\n%s\n%s", key, a.Payload, b.Payload)
		}
	}
}

func TestRealDeparturesAreToldFromDeletions(t *testing.T) {
	t.Parallel()
	r := newReal(t)
	r.make("left", "dead", "stays")
	nats := embeddedtest.NATS(t).URL()
	startOn(t, r.config(), r.client(), nats)
	m := follow(t, nats, mapsInLog)
	m.until(t, "three", func() bool { return m.readable() && len(m.live()) == 3 })
	if _, err := r.kube.Patch(t.Context(), r.ref("left"), kube.MergePatch, []byte(`{"metadata":{"labels":{"app":"y"}}}`), kube.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.kube.Delete(t.Context(), r.ref("dead"), kube.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]delta.DeleteReason{"left": delta.FilteredOut, "dead": delta.Observed} {
		key := delta.Key(r.ns + "/" + name)
		m.until(t, name+" is gone", func() bool { rec, _ := m.get(key); return rec.Tombstone() })
		if rec, _ := m.get(key); rec.DeleteReason != want {
			t.Errorf("%s is gone as %q, want %q", name, rec.DeleteReason, want)
		}
	}
	if _, err := r.kube.Patch(t.Context(), r.ref("left"), kube.MergePatch, []byte(`{"metadata":{"labels":{"app":"x"}}}`), kube.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	m.until(t, "it comes back", func() bool { return m.live()[delta.Key(r.ns+"/left")] != "" && len(m.live()) == 2 })
}

func TestRealVersionsFromTheFutureAreTooLargeForAListAndSilentForAWatch(t *testing.T) {
	t.Parallel()
	r := newReal(t)
	ctx := t.Context()
	const future = "99999999999"
	for _, opts := range []kube.ListOptions{{RV: future, Match: kube.NotOlderThan}, {RV: future, Match: kube.NotOlderThan, Limit: 1}} {
		if _, err := r.kube.List(ctx, configMaps, opts); !kube.IsTooLargeRV(err) {
			t.Errorf("a list not older than the future = %v, want too large", err)
		}
	}
	if _, err := r.kube.Lives(ctx, r.ref("a"), future); !kube.IsTooLargeRV(err) {
		t.Errorf("a get not older than the future = %v, want too large", err)
	}
	w, err := r.kube.Watch(ctx, configMaps, kube.WatchOptions{RV: future, Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	r.make("unseen")
	if ev, err := w.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("a watch from the future = %+v, %v; if it says so now, the check after silence can go", ev, err)
	}
	if _, err := r.kube.Watch(ctx, configMaps, kube.WatchOptions{RV: "1", Timeout: time.Second}); err != nil && !kube.IsExpired(err) {
		t.Errorf("a watch from the beginning = %v", err)
	}
	page, err := r.kube.List(ctx, configMaps, kube.ListOptions{Limit: 1})
	if err != nil || page.Continue == "" || page.Remaining == 0 {
		t.Errorf("a page of one = %+v, %v; want to be told what remains", page, err)
	}
	if _, err := r.kube.List(ctx, configMaps, kube.ListOptions{Limit: 1, Continue: "bm9uc2Vuc2U"}); !kube.IsBadRequest(err) && !kube.IsExpired(err) {
		t.Errorf("a made-up token = %v", err)
	}
}

func TestRealFaultsOfTheSourceHaveTheirWords(t *testing.T) {
	t.Parallel()
	r := newReal(t)
	config, err := os.ReadFile(r.file)
	if err != nil {
		t.Fatal(err)
	}
	stranger := t.TempDir() + "/config"
	wrong := regexp.MustCompile(`(?m)"?token"?: .*$`).ReplaceAllString(string(config), `"token": "nobody"`)
	if err := os.WriteFile(stranger, []byte(wrong), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, row := range map[string]struct {
		kube     kube.Config
		resource string
	}{
		"NOT_SERVED":   {kube.Config{Kubeconfig: r.file}, "moons.v1"},
		"CERTIFICATE":  {kube.Config{URL: r.kube.Address()}, "configmaps.v1"},
		"UNAUTHORIZED": {kube.Config{Kubeconfig: stranger}, "configmaps.v1"},
	} {
		if want == "UNAUTHORIZED" && wrong == string(config) || want == "CERTIFICATE" && !strings.HasPrefix(r.kube.Address(), "https:") {
			continue // not this kind of cluster
		}
		kc, err := kube.Load(row.kube)
		if err != nil {
			t.Fatal(err)
		}
		cfg := quick()
		cfg.Resources = []reflector.Resource{{Name: row.resource}}
		svc, _ := startOn(t, cfg, kc, embeddedtest.NATS(t).URL())
		got := reflection(t, dial(t, svc), strings.TrimSuffix(row.resource, ".v1"), want, func(p *reflectorv1.Reflection) bool { return p.GetReason() != "" })
		if got.GetReason() != want {
			t.Errorf("%s: %v", want, got)
		}
	}
}
