package reflector_test

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/devcluster"
	"github.com/deltaplane/deltaplane/internal/devcluster/devclustertest"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
	"github.com/deltaplane/deltaplane/services/reflector"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// The server in the test's process leaves these behind when a stream is removed, and one clock
		// permanently.
		goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server.(*fileStore).flushStreamStateLoop"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server/ats.Register.func1"),
		// client-go keeps the TLS transports of a kubeconfig for the life of the process.
		goleak.IgnoreAnyFunction("golang.org/x/net/http2.(*clientConnReadLoop).run"),
	)
}

// start runs a reflector until the test ends or stop is called.
func start(t testing.TB, cfg reflector.Config, url, nats string) (svc *reflector.Service, stop func()) {
	t.Helper()
	return startOn(t, cfg, clientOf(t, url), nats)
}

// startOn is start with a client, which it closes.
func startOn(t testing.TB, cfg reflector.Config, kc *kube.Client, nats string) (svc *reflector.Service, stop func()) {
	t.Helper()
	svc, _, stop = startSeen(t, cfg, kc, nats, logs(t))
	return svc, stop
}

// startSeen is startOn with what it reports: its log goes to out.
func startSeen(t testing.TB, cfg reflector.Config, kc *kube.Client, nats string, out io.Writer) (svc *reflector.Service, tel *telemetry.Telemetry, stop func()) {
	t.Helper()
	return startWith(t, cfg, kc, stream.Config{URL: nats}, out)
}

// startWith is startSeen with a connection of its own settings.
func startWith(t testing.TB, cfg reflector.Config, kc *kube.Client, log stream.Config, out io.Writer) (svc *reflector.Service, tel *telemetry.Telemetry, stop func()) {
	t.Helper()
	tel, err := telemetry.Setup(t.Context(), telemetry.Config{Service: "reflector", LogOutput: out})
	if err != nil {
		t.Fatal(err)
	}
	log.Log = tel.Log
	conn, err := stream.Connect(t.Context(), log)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Admin.Listen = "off"
	svc, err = reflector.New(cfg, conn, kc, tel)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- svc.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v, want nil on a clean stop", err)
		}
		conn.Close()
		kc.Close()
	}
	t.Cleanup(stop)
	return svc, tel, stop
}

// clientOf is a client of the API server at url.
func clientOf(t testing.TB, url string) *kube.Client {
	t.Helper()
	kc, err := kube.Load(kube.Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	return kc
}

func logs(t testing.TB) io.Writer {
	t.Helper()
	if testing.Verbose() {
		return t.Output()
	}
	return io.Discard
}

func cluster(t testing.TB) *devcluster.Cluster {
	t.Helper()
	c, err := devcluster.New(devcluster.Config{Listen: "127.0.0.1:0"}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("dev cluster: %v", err)
		}
	})
	select {
	case <-c.Ready():
	case err := <-done:
		t.Fatal(err)
	case <-time.After(10 * time.Second):
		t.Fatal("the dev cluster does not become ready")
	}
	return c
}

func TestTheDefaultCollectionsOfADevClusterReachTheLog(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	nats := embeddedtest.NATS(t).URL()
	start(t, reflector.Config{}, c.URL(), nats)
	nodes := follow(t, nats, delta.Collection{Cluster: "dev", Version: "v1", Resource: "nodes"})
	devclustertest.Nodes(t, c.URL(), 2)
	nodes.until(t, "two nodes", func() bool { return nodes.readable() && len(nodes.live()) == 2 })
	leases := follow(t, nats, delta.Collection{Cluster: "dev", Version: "v1", Group: "coordination.k8s.io", Resource: "leases"})
	leases.until(t, "two leases", func() bool { return leases.readable() && len(leases.live()) == 2 })
	pods := follow(t, nats, delta.Collection{Cluster: "dev", Version: "v1", Resource: "pods"})
	kc, err := kube.Load(kube.Config{URL: c.URL()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kc.Close)
	res := kube.Resource{Version: "v1", Name: "pods", Kind: "Pod", Namespaced: true}
	ref := kube.Ref{Resource: res, Namespace: "default"}
	_, err = kc.Create(t.Context(), ref, []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"one","annotations":{"deltaplane.io/run-seconds":"1"}},
		"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"x"}]}}`), kube.WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pods.until(t, "the pod on a node", func() bool {
		r, ok := pods.get("default/one")
		return ok && len(r.Hints["node"]) == 1
	})
	ref.Name = "one"
	if _, err := kc.Delete(t.Context(), ref, kube.DeleteOptions{Grace: new(int64(0))}); err != nil {
		t.Fatal(err)
	}
	pods.until(t, "the pod's tombstone", func() bool {
		r, ok := pods.get("default/one")
		return ok && r.Tombstone() && r.DeleteReason == delta.Observed && len(r.Hints["node"]) == 1
	})
}

func TestEverythingIsMirroredOnceBesideWhatIsNamed(t *testing.T) {
	t.Parallel()
	cfg := quick()
	cfg.LeaseTTL, cfg.DiscoverEvery = 30*time.Second, time.Second // no replica is there, and dozens of collections begin at once
	cfg.Resources = []reflector.Resource{{Name: "*"}, {Name: "pods"}, {Name: "jobs.batch"}, {Name: "leases"}}
	svc, _ := start(t, cfg, cluster(t).URL(), embeddedtest.NATS(t).URL())
	c := dial(t, svc)
	for _, name := range []string{"dev/pods.v1", "dev/nodes.v1", "dev/jobs.v1.batch", "dev/leases.v1.coordination.k8s.io"} {
		reflection(t, c, name, name+" watched", watching)
	}
	resp, err := c.ListReflections(t.Context(), &reflectorv1.ListReflectionsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, r := range resp.GetReflections() {
		name := r.GetCollection()
		if seen[name] || name == "dev/secrets.v1" || strings.HasSuffix(name, ".events.k8s.io") {
			t.Errorf("%s is mirrored twice, or unasked", name)
		}
		seen[name] = true
	}
}
