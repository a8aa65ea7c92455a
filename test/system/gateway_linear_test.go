package system

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
)

// Lists without a resource version are linearizable through any of two gateways, before two API
// servers on one etcd, also of events, which are in an etcd of their own: each is exactly the state
// at its version, has everything that was acknowledged before it was asked for, and none is older
// than one that had ended then.
func TestRealRecentListsThroughTwoGatewaysAreLinearizable(t *testing.T) {
	t.Parallel()
	ports := embeddedtest.Ports(t, 2)
	events := startEtcd(t, ports[0], ports[1])
	k := startKube(t, "--nodes", "0", "--api-arg", "--etcd-servers-overrides=/events#"+events)
	second := k.secondAPIServer(t)
	u := newUp(t, k.kubeconfig)
	u.start(t, "up", append(u.upArgs(), "--resources", "*", "--skip", "queue,controllers,nodes,gateway")...)
	rc, err := clientcmd.BuildConfigFromFlags("", k.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	doors := []*API{k.api, second.api}
	for i, kubeconfig := range []string{k.kubeconfig, second.kubeconfig} {
		port := embeddedtest.Ports(t, 1)[0]
		u.start(t, fmt.Sprintf("gateway %d", i), "serve", "gateway", "--listen", port, "--admin-listen", "off", "--kubeconfig", kubeconfig, "--index-url", u.ports["index"])
		g := &API{Base: "http://" + port, Client: &http.Client{Transport: withToken(rc.BearerToken)}}
		eventually(t, time.Minute, "the gateway answers from the index", func(ctx context.Context) error {
			return errors.Join(g.servedByIndex(ctx, "/api/v1/configmaps?resourceVersion=0"), g.servedByIndex(ctx, "/api/v1/events?resourceVersion=0"))
		})
		doors = append(doors, g)
	}
	for _, resource := range []string{"configmaps", "events"} {
		t.Run(resource, func(t *testing.T) {
			t.Parallel()
			l := &linear{t: t, path: "/api/v1/namespaces/default/" + resource, doors: doors}
			l.run()
		})
	}
}

// linear is a random history of one collection.
type linear struct {
	t     *testing.T
	path  string
	doors []*API // the API servers, then the gateways before them

	mu    sync.Mutex
	acked uint64 // the highest version of a write that was answered; guarded by mu
	ended uint64 // the highest version of a list that has ended; guarded by mu
	lists []listed
	index int // lists that the index answered; guarded by mu
}

type listed struct {
	version uint64
	objects map[string]string // resource versions by name
}

func (l *linear) run() {
	begin := l.list(l.doors[0], nil)
	ctx, cancel := context.WithCancel(l.t.Context())
	defer cancel()
	history := make(chan []change, 1)
	go func() { history <- l.follow(ctx, begin.version) }()
	seed := uint64(time.Now().UnixNano())
	l.t.Logf("seed %d", seed)
	var all sync.WaitGroup
	const writers, readers, steps = 4, 6, 150
	for i := range uint64(writers) {
		rng := rand.New(rand.NewPCG(seed, i)) //nolint:gosec // a test's seed
		all.Go(func() {
			for range steps {
				l.write(rng)
			}
		})
	}
	for i := range uint64(readers) {
		rng := rand.New(rand.NewPCG(seed, 100+i)) //nolint:gosec // a test's seed
		all.Go(func() {
			for range steps {
				l.read(l.doors[2+rng.IntN(2)])
			}
		})
	}
	all.Wait()
	// The end of the history is behind every list.
	l.create(l.doors[0], "the-end")
	l.check(begin, <-history)
	l.t.Logf("%d lists, %d from the index", len(l.lists), l.index)
	if l.index == 0 {
		l.t.Error("no list was answered from the index")
	}
}

func (l *linear) create(a *API, name string) {
	if err := a.do(l.t.Context(), http.MethodPost, l.path, "application/json", body(name), nil); err != nil {
		l.t.Error(err)
	}
}

// body is that of a config map as of an event.
func body(name string) []byte {
	return fmt.Appendf(nil, `{"metadata":{"name":%q,"namespace":"default"},"involvedObject":{"namespace":"default"}}`, name)
}

func (l *linear) write(rng *rand.Rand) {
	a := l.doors[rng.IntN(len(l.doors))]
	name := fmt.Sprintf("x-%d", rng.IntN(8))
	var o struct {
		Metadata struct{ ResourceVersion string }
	}
	var err error
	switch rng.IntN(3) {
	case 0:
		err = a.do(l.t.Context(), http.MethodPost, l.path, "application/json", body(name), &o)
	case 1:
		err = a.do(l.t.Context(), http.MethodPatch, l.path+"/"+name, "application/merge-patch+json", fmt.Appendf(nil, `{"metadata":{"annotations":{"n":"%d"}}}`, rng.IntN(1000)), &o)
	default:
		err = a.do(l.t.Context(), http.MethodDelete, l.path+"/"+name, "application/json", nil, nil)
	}
	var refused *statusError
	switch {
	case errors.As(err, &refused) && refused.code < 500: // taken, or not there
	case err != nil:
		l.t.Error(err)
	case o.Metadata.ResourceVersion != "":
		l.mu.Lock()
		l.acked = max(l.acked, versionOf(l.t, o.Metadata.ResourceVersion))
		l.mu.Unlock()
	}
}

func versionOf(t *testing.T, text string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Errorf("resource version %q", text)
	}
	return n
}

func (l *linear) read(a *API) {
	l.mu.Lock()
	least, name := l.acked, "a write that was acknowledged"
	if l.ended > least {
		least, name = l.ended, "a list that had ended"
	}
	l.mu.Unlock()
	got := l.list(a, &l.index)
	if got.version < least {
		l.t.Errorf("a list is at %d, behind %s at %d", got.version, name, least)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = max(l.ended, got.version)
	l.lists = append(l.lists, got)
}

func (l *linear) list(a *API, index *int) listed {
	req, err := http.NewRequestWithContext(l.t.Context(), http.MethodGet, a.Base+l.path, nil)
	if err != nil {
		l.t.Error(err)
		return listed{}
	}
	resp, err := a.Client.Do(req)
	if err != nil {
		l.t.Error(err)
		return listed{}
	}
	defer resp.Body.Close()
	var list struct {
		Metadata struct{ ResourceVersion string }
		Items    []struct {
			Metadata struct{ Name, ResourceVersion string }
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil || resp.StatusCode != http.StatusOK {
		l.t.Errorf("list: %s, %v", resp.Status, err)
		return listed{}
	}
	if index != nil && resp.Header.Get("X-Deltaplane-Served-By") == "index" {
		l.mu.Lock()
		*index++
		l.mu.Unlock()
	}
	got := listed{version: versionOf(l.t, list.Metadata.ResourceVersion), objects: map[string]string{}}
	for _, o := range list.Items {
		got.objects[o.Metadata.Name] = o.Metadata.ResourceVersion
	}
	return got
}

// change is one event of the API server's own watch.
type change struct {
	version uint64
	name    string
	rv      string // empty for a deletion
}

// follow reads what happens behind a version, up to the end.
func (l *linear) follow(ctx context.Context, behind uint64) (all []change) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s%s?watch=1&resourceVersion=%d", l.doors[0].Base, l.path, behind), nil)
	if err != nil {
		l.t.Error(err)
		return nil
	}
	resp, err := l.doors[0].Client.Do(req)
	if err != nil {
		l.t.Error(err)
		return nil
	}
	defer resp.Body.Close()
	for events := json.NewDecoder(resp.Body); ; {
		var e struct {
			Type   string
			Object struct {
				Metadata struct{ Name, ResourceVersion string }
			}
		}
		if err := events.Decode(&e); err != nil {
			l.t.Errorf("the API server's watch: %v", err)
			return all
		}
		m := e.Object.Metadata
		c := change{version: versionOf(l.t, m.ResourceVersion), name: m.Name, rv: m.ResourceVersion}
		if e.Type == "DELETED" {
			c.rv = ""
		}
		if all = append(all, c); m.Name == "the-end" {
			return all
		}
	}
}

// check compares each list with the state at its version.
func (l *linear) check(begin listed, history []change) {
	slices.SortFunc(l.lists, func(a, b listed) int { return int(int64(a.version) - int64(b.version)) }) //nolint:gosec // versions are small
	state, at := maps.Clone(begin.objects), 0
	for _, got := range l.lists {
		for ; at < len(history) && history[at].version <= got.version; at++ {
			if c := history[at]; c.rv == "" {
				delete(state, c.name)
			} else {
				state[c.name] = c.rv
			}
		}
		if !maps.Equal(state, got.objects) {
			l.t.Errorf("the list at %d has %v, the API server had %v then", got.version, got.objects, state)
			return
		}
	}
}

// withToken shows a bearer token, also without TLS.
func withToken(token string) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+token)
		return http.DefaultTransport.RoundTrip(r)
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// startEtcd starts an etcd of the programs of test/kube, and returns its URL.
func startEtcd(t *testing.T, client, peer string) string {
	t.Helper()
	if os.Getenv(kubeEnv) != "1" {
		t.Skipf("%s is not 1: `make kube-nodes` runs this on real API servers", kubeEnv)
	}
	program, err := kubeProgram()
	if err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), program, "build")
	build.Dir = kubeModule
	dir, err := build.Output()
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + client
	startProgram(t, filepath.Join(strings.TrimSpace(string(dir)), "etcd"), "--data-dir", t.TempDir(), "--listen-client-urls", url, "--listen-peer-urls", "http://"+peer)
	return url
}

// startProgram runs a program until the test ends.
func startProgram(t *testing.T, path string, args ...string) {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait() // how it ends is nobody's matter
		if t.Failed() {
			t.Logf("output of %s:\n%s", path, tail(out.Bytes(), 3000))
		}
	})
}

// secondAPIServer starts another API server on the same etcd, with the arguments of the first.
func (k *kubeCluster) secondAPIServer(t *testing.T) *kubeCluster {
	t.Helper()
	pid, err := os.ReadFile(filepath.Join(k.dir, "pids", "kube-apiserver"))
	if err != nil {
		t.Fatal(err)
	}
	line, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	args := strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
	_, port, _ := strings.Cut(embeddedtest.Ports(t, 1)[0], ":")
	first := ""
	for i := range args {
		if rest, ok := strings.CutPrefix(args[i], "--secure-port="); ok {
			first, args[i] = rest, "--secure-port="+port
		}
	}
	startProgram(t, args[0], args[1:]...)
	text, err := os.ReadFile(k.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	other := &kubeCluster{dir: k.dir, kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	if err := os.WriteFile(other.kubeconfig, bytes.ReplaceAll(text, []byte(":"+first), []byte(":"+port)), 0o600); err != nil {
		t.Fatal(err)
	}
	other.api = loadKubeconfig(t, other.kubeconfig)
	eventually(t, time.Minute, "the second API server is ready", func(ctx context.Context) error {
		resp, err := other.api.Client.Get(other.api.Base + "/readyz") //nolint:noctx // it answers at once
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %w", resp.Status, err)
		}
		return ctx.Err()
	})
	return other
}
