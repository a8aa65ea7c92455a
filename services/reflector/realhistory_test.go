package reflector_test

import (
	"fmt"
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

func TestRealCompactionExpiresPagesAndWatches(t *testing.T) {
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
		t.Fatalf("lists %v, want a page, its continuation, and one list without pages", lists)
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
		t.Errorf("after a watch that expired %v, want one list, not older than %s", lists, at)
	}
	if terms := m.kinds(delta.KindTerm); terms[0].Epoch != terms[len(terms)-1].Epoch {
		t.Error("an expired watch began a new epoch")
	}
}

func TestRealBookmarksMoveTheVersionAndACleanCloseNeedsNoList(t *testing.T) {
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

func TestRealARestoredEtcdBeginsANewEpoch(t *testing.T) {
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
