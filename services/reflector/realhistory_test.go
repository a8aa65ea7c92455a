package reflector_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tidwall/gjson"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/kube"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
	"github.com/deltaplane/deltaplane/services/reflector"
)

// The API server keeps no cache of events: what etcd forgets of them has expired.
var (
	coreEvents  = kube.Resource{Version: "v1", Name: "events", Kind: "Event", Namespaced: true}
	eventsInLog = delta.Collection{Cluster: "dev", Version: "v1", Resource: "events"}
)

// provoke runs a command of test/kube on the cluster in dir.
func provoke(t testing.TB, dir, command string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"run", "./cmd/kube", command, "--dir", dir}, args...)...)
	cmd.Dir = filepath.Join("..", "..", "test", "kube")
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kube %s: %v\n%s", command, err, said.String())
	}
	return strings.TrimSpace(string(out))
}

// dir is the folder of the cluster, if test/kube started it.
func (r *real) dir() string {
	r.t.Helper()
	dir := filepath.Dir(r.file)
	if _, err := os.Stat(filepath.Join(dir, "config", "etcd")); err != nil {
		r.t.Skipf("%s is not of a cluster of test/kube: nobody can tell its etcd to forget", r.file)
	}
	return dir
}

// events creates events of the namespace.
func (r *real) events(names ...string) {
	r.t.Helper()
	for _, name := range names {
		body := fmt.Sprintf(`{"apiVersion":"v1","kind":"Event","metadata":{"name":%q},"involvedObject":{"kind":"Pod","namespace":%q,"name":"x"},"reason":"R","type":"Normal"}`, name, r.ns)
		r.create(coreEvents, r.ns, body)
	}
}

// create returns the new object's UID.
func (r *real) create(resource kube.Resource, ns, body string) string {
	r.t.Helper()
	made, err := r.kube.Create(r.t.Context(), kube.Ref{Resource: resource, Namespace: ns}, []byte(body), kube.WriteOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return gjson.GetBytes(made, "metadata.uid").String()
}

func TestRealR04R05R19R20WhatEtcdForgotExpiresPagesAndWatches(t *testing.T) {
	t.Parallel()
	r := newReal(t)
	dir, p := r.dir(), r.relay("")
	r.events("a", "b", "c", "d", "e")
	var paged, opened sync.Once
	p.set(func(what sort, req *http.Request) {
		if what == listed && req.URL.Query().Get("continue") != "" {
			paged.Do(func() { // between the first page and the second
				r.events("f")
				provoke(t, dir, "compact")
			})
		}
	})
	cfg := quick()
	cfg.PageSize = 2
	cfg.Resources = []reflector.Resource{{Name: "events.v1", Scope: kube.Scope{Namespace: r.ns}}}
	nats := embeddedtest.NATS(t).URL()
	svc, _ := startOn(t, cfg, p.client(t), nats)
	m := follow(t, nats, eventsInLog)
	m.until(t, "six events after the pages expired", func() bool { return m.readable() && len(m.live()) == 6 })
	c := dial(t, svc)
	reflection(t, c, "events", "watching", watching)
	lists := p.of(listed)
	if n := len(lists); n != 3 || lists[1].query.Get("continue") == "" || lists[2].query.Has("limit") || lists[2].query.Has("continue") {
		t.Fatalf("R-04: lists %v, want a page, its continuation, and one list without pages", lists)
	}
	r.events("g") // a watch without an event would be a very short one
	m.until(t, "an event", func() bool { return len(m.live()) == 7 })
	at := m.revision().RV

	// The watch breaks; before it is opened again behind W, that is forgotten.
	p.set(func(what sort, _ *http.Request) {
		if what == watched {
			opened.Do(func() {
				ref := kube.Ref{Resource: coreEvents, Namespace: r.ns, Name: "a"}
				if _, err := r.kube.Delete(t.Context(), ref, kube.DeleteOptions{}); err != nil {
					t.Error(err)
				}
				r.events("h")
				provoke(t, dir, "compact")
			})
		}
	})
	p.cut()
	gone := delta.Key(r.ns + "/a")
	m.until(t, "the state after the watch expired", func() bool { rec, _ := m.get(gone); return rec.Tombstone() && len(m.live()) == 7 })
	if rec, _ := m.get(gone); rec.DeleteReason != delta.Inferred {
		t.Errorf("what was deleted unseen is gone as %q, want %q", rec.DeleteReason, delta.Inferred)
	}
	lists = slices.DeleteFunc(p.of(listed)[3:], func(c call) bool { return c.query.Has("continue") })
	if len(lists) != 1 || lists[0].rv() != at || lists[0].query.Get("resourceVersionMatch") != kube.NotOlderThan {
		t.Errorf("R-05: after a watch that expired %v, want one list, not older than %s", lists, at)
	}
	if terms := m.kinds(delta.KindTerm); terms[0].Epoch != terms[len(terms)-1].Epoch {
		t.Error("an expired watch began a new epoch")
	}
}

func TestRealR22R23BookmarksMoveTheVersionAndACleanCloseAsksForNoList(t *testing.T) {
	t.Parallel()
	r := newReal(t)
	r.make("a")
	p := r.relay("")
	p.set(func(what sort, req *http.Request) {
		if what == watched { // the API server sends a bookmark two seconds before it closes the watch
			q := req.URL.Query()
			q.Set("timeoutSeconds", "4")
			req.URL.RawQuery = q.Encode()
		}
	})
	nats := embeddedtest.NATS(t).URL()
	startOn(t, r.config(), p.client(t), nats)
	m := follow(t, nats, mapsInLog)
	m.until(t, "one", func() bool { return m.readable() && len(m.live()) == 1 })
	body, err := r.kube.Create(t.Context(), kube.Ref{Resource: configMaps, Namespace: r.ns},
		[]byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"no-label"}}`), kube.WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	other, err := kube.EventRV(body)
	if err != nil {
		t.Fatal(err)
	}
	m.until(t, "a version of what is not mirrored", func() bool { return delta.Compare(m.revision().RV, other) >= 0 })
	eventually(t, "the next watch", func() bool { return len(p.of(watched)) > 1 })
	if next := p.of(watched)[1].rv(); delta.Compare(next, other) < 0 {
		t.Errorf("the next watch is from %s, want the bookmark's version, at least %s", next, other)
	}
	if n := len(p.of(listed)); n != 1 {
		t.Errorf("%d lists, want 1", n)
	}
}

// allow lets user list and watch resource in the namespace.
func (r *real) allow(user, resource string) {
	r.t.Helper()
	rbac := func(name, kind string) kube.Resource {
		return kube.Resource{Group: "rbac.authorization.k8s.io", Version: "v1", Name: name, Kind: kind, Namespaced: true}
	}
	r.create(rbac("roles", "Role"), r.ns, fmt.Sprintf(`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":%q},
		"rules":[{"apiGroups":[""],"resources":[%[1]q],"verbs":["get","list","watch"]}]}`, resource))
	r.create(rbac("rolebindings", "RoleBinding"), r.ns, fmt.Sprintf(`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"name":%q},
		"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":%[1]q},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":%q}]}`, resource, user))
}

func TestRealAForbiddenResourceLeavesTheOthersAlone(t *testing.T) {
	t.Parallel()
	r := newReal(t)
	user := "mirror-of-" + r.ns
	r.allow(user, "configmaps")
	cfg := r.config()
	cfg.Resources = append(cfg.Resources, reflector.Resource{Name: "services.v1", Scope: kube.Scope{Namespace: r.ns}})
	nats := embeddedtest.NATS(t).URL()
	svc, _ := startOn(t, cfg, r.relay(user).client(t), nats)
	c, m := dial(t, svc), follow(t, nats, mapsInLog)
	got := reflection(t, c, "services", "forbidden", func(p *reflectorv1.Reflection) bool { return p.GetReason() != "" && p.GetNextRetryAt() != nil })
	if got.GetReason() != "FORBIDDEN" || got.GetState() != reflectorv1.ReflectionState_REFLECTION_STATE_BACKOFF {
		t.Errorf("services: %v, want FORBIDDEN and the next retry", got)
	}
	reflection(t, c, "configmaps", "watching", watching)
	r.make("a")
	m.until(t, "a config map beside it", func() bool { return len(m.live()) == 1 })
	r.allow(user, "services")
	reflection(t, c, "services", "allowed", func(p *reflectorv1.Reflection) bool { return watching(p) && p.GetReason() == "" })
	if got := reflection(t, c, "configmaps", "watching", watching); got.GetRelists() != 1 || got.GetWatches() != 1 {
		t.Errorf("configmaps: %v, want one list and one watch throughout", got)
	}
}

// occupy asks for something, and leaves the end of the request out until leave is called.
func occupy(t testing.TB, url string) (leave func()) {
	ctx, cancel := context.WithCancel(t.Context())
	beginning := strings.NewReader(strings.Repeat(" ", 64<<10)) // buffers on the way pass the headers on
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", io.MultiReader(beginning, never{ctx}))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if resp, err := http.DefaultClient.Do(req); err == nil {
			resp.Body.Close()
		}
	}()
	return func() { cancel(); <-done }
}

// never is the end of a body, which does not come.
type never struct{ context.Context }

func (n never) Read([]byte) (int, error) {
	<-n.Done()
	return 0, n.Err()
}

func TestRealR19TooManyRequestsAreWaitedOutWithoutAList(t *testing.T) {
	t.Parallel()
	r := newReal(t)
	user := "mirror-of-" + r.ns
	r.allow(user, "configmaps")
	r.make("a")
	p := r.relay(user)
	nats := embeddedtest.NATS(t).URL()
	svc, _ := startOn(t, r.config(), p.client(t), nats)
	c, m := dial(t, svc), follow(t, nats, mapsInLog)
	m.until(t, "one", func() bool { return m.readable() && len(m.live()) == 1 })
	r.make("b") // a watch without an event would be a very short one
	m.until(t, "an event", func() bool { return len(m.live()) == 2 })

	group := "flowcontrol.apiserver.k8s.io"
	levels := kube.Resource{Group: group, Version: "v1", Name: "prioritylevelconfigurations", Kind: "PriorityLevelConfiguration"}
	flows := kube.Resource{Group: group, Version: "v1", Name: "flowschemas", Kind: "FlowSchema"}
	r.create(levels, "", fmt.Sprintf(`{"apiVersion":"%s/v1","kind":"PriorityLevelConfiguration","metadata":{"name":%q},"spec":{"type":"Limited",
		"limited":{"nominalConcurrencyShares":0,"lendablePercent":0,"borrowingLimitPercent":0,"limitResponse":{"type":"Reject"}}}}`, group, r.ns))
	schema := r.create(flows, "", fmt.Sprintf(`{"apiVersion":"%s/v1","kind":"FlowSchema","metadata":{"name":%q},"spec":{"matchingPrecedence":2,
		"priorityLevelConfiguration":{"name":%[2]q},"rules":[{"subjects":[{"kind":"User","user":{"name":%q}}],
		"resourceRules":[{"verbs":["*"],"apiGroups":["*"],"resources":["*"],"clusterScope":true,"namespaces":["*"]}]}]}}`, group, r.ns, user))
	remove := sync.OnceFunc(func() {
		for _, ref := range []kube.Ref{{Resource: flows, Name: r.ns}, {Resource: levels, Name: r.ns}} {
			if _, err := r.kube.Delete(t.Context(), ref, kube.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		}
	})
	defer remove()
	asUser := p.client(t)
	eventually(t, "the new level is in force", func() bool {
		resp, err := http.Get(p.URL + "/api/v1/namespaces/" + r.ns + "/configmaps/a")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.Header.Get("X-Kubernetes-Pf-Flowschema-Uid") == schema
	})
	// A level of no shares still serves one request at a time: this one, whose body does not come. One that was itself refused is never answered: a
	// server reads on before it answers. So there is another one when it was of no use.
	var refused error
	leave := func() {}
	defer func() { leave() }()
	eventually(t, "the API server refuses", func() bool {
		leave()
		leave = occupy(t, p.URL)
		for range 20 {
			if _, refused = asUser.Get(t.Context(), r.ref("a")); kube.IsTooManyRequests(refused) {
				return true
			}
			time.Sleep(50 * time.Millisecond)
		}
		return false
	})
	if kube.RetryAfter(refused) <= 0 {
		t.Errorf("%v names no time to wait", refused)
	}
	p.cut()
	got := reflection(t, c, "configmaps", "throttled", func(p *reflectorv1.Reflection) bool { return p.GetReason() == "THROTTLED" })
	if got.GetState() != reflectorv1.ReflectionState_REFLECTION_STATE_BACKOFF || got.GetNextRetryAt() == nil {
		t.Errorf("%v, want BACKOFF and the next retry", got)
	}
	r.make("c")
	remove()
	leave()
	m.until(t, "what happened meanwhile", func() bool { return len(m.live()) == 3 })
	if lists := p.of(listed); len(lists) != 1 {
		t.Errorf("lists %v, want 1: the watch is opened again where it was", lists)
	}
}

func TestRealR09Design65ARestoredEtcdBeginsANewEpoch(t *testing.T) {
	t.Parallel()
	shared := newReal(t)
	shared.dir()
	own := t.TempDir() // a cluster of its own: what it held is lost
	t.Cleanup(func() {
		cmd := exec.Command("go", "run", "./cmd/kube", "down", "--dir", own)
		cmd.Dir = filepath.Join("..", "..", "test", "kube")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("kube down: %v\n%s", err, out)
		}
	})
	provoke(t, own, "up", "--detach", "--nodes", "0", "--controllers", "namespace-controller,serviceaccount-controller")
	r := &real{t: t, file: filepath.Join(own, "kubeconfig"), ns: "default"}
	r.kube = r.client()
	defer r.kube.Close()
	r.make("kept", "comes-back")
	saved := filepath.Join(t.TempDir(), "saved")
	provoke(t, own, "save", "--to", saved)

	cfg := r.config()
	cfg.QuietAfter = 200 * time.Millisecond
	nats := embeddedtest.NATS(t).URL()
	startOn(t, cfg, r.client(), nats)
	m := follow(t, nats, mapsInLog)
	m.until(t, "two", func() bool { return m.readable() && len(m.live()) == 2 })
	if _, err := r.kube.Delete(t.Context(), r.ref("comes-back"), kube.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for i := range 100 { // the API server's own writes must not reach W again
		r.make(fmt.Sprintf("lost-%d", i))
	}
	m.until(t, "what will be lost", func() bool { return len(m.live()) == 101 })
	before := m.revision()
	provoke(t, own, "restore", "--from", saved)
	live := map[delta.Key]string{}
	for _, name := range []string{"kept", "comes-back"} {
		body, err := r.kube.Get(t.Context(), r.ref(name))
		if err != nil {
			t.Fatal(err)
		}
		rv, err := kube.EventRV(body)
		if err != nil {
			t.Fatal(err)
		}
		live[delta.Key("default/"+name)] = rv
	}
	m.until(t, "the restored state", func() bool { return m.readable() && m.revision().Epoch > before.Epoch && cmp.Equal(live, m.live()) })
	if after := m.revision(); delta.Compare(after.RV, before.RV) >= 0 {
		t.Errorf("the log is at %v, it was at %v: etcd did not go back", after, before)
	}
	r.make("after")
	m.until(t, "what comes after", func() bool { return len(m.live()) == 3 })
}
