package gateway_test

import (
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/devcluster"
	"github.com/deltaplane/deltaplane/internal/devcluster/devclustertest"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/gateway"
	"github.com/deltaplane/deltaplane/services/gateway/answer"
	"github.com/deltaplane/deltaplane/services/indexer/servetest"
	"github.com/deltaplane/deltaplane/services/reflector"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a gateway with all that stands behind it.
type rig struct {
	t *testing.T
	// url and client are of the gateway, direct and api of the API server.
	url, direct string
	client, api *http.Client
	kube        *kube.Client
	index       *client.Index
	svc         *gateway.Service
	own         *kube.Client   // of the gateway; that of the rig where it is nil
	vouching    *kube.Upstream // of the gateway
	stopGateway func()
	gather      func() map[string]float64
	another     func() string // starts one more gateway, with an index of its own, and is its URL
}

// onDevCluster is a gateway before a dev cluster.
func onDevCluster(t *testing.T, change func(*gateway.Config)) *rig {
	t.Helper()
	c := devclustertest.Start(t, devcluster.Config{FreshTimeout: 100 * time.Millisecond, BookmarkEvery: time.Second})
	r := &rig{t: t, direct: c.URL(), api: plain(t)}
	return r.start(kube.Config{URL: c.URL()}, func(cfg *gateway.Config) {
		cfg.AllowAll = true
		if change != nil {
			change(cfg)
		}
	})
}

// onRealServer is one before the API server of DELTAPLANE_KUBECONFIG.
func onRealServer(t *testing.T, change func(*gateway.Config)) *rig {
	t.Helper()
	r, file := realServer(t)
	return r.start(kube.Config{Kubeconfig: file}, change)
}

// realServer is that API server, before anything is started, and its kubeconfig.
func realServer(t *testing.T) (r *rig, file string) {
	t.Helper()
	file = os.Getenv("DELTAPLANE_KUBECONFIG")
	if file == "" {
		t.Skip("DELTAPLANE_KUBECONFIG is not set: `make kube` starts a real API server and prints one")
	}
	rc, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		t.Fatal(err)
	}
	rc.NextProtos = []string{"http/1.1"} // a connection for each watch ends with its test
	hc, err := rest.HTTPClientFor(rc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { utilnet.CloseIdleConnectionsFor(hc.Transport) })
	return &rig{t: t, direct: rc.Host, api: hc}, file
}

// plain is a client without credentials.
func plain(t *testing.T) *http.Client {
	t.Helper()
	tr := &http.Transport{MaxIdleConnsPerHost: 64, TLSClientConfig: &tls.Config{}} //nolint:gosec // of plain text
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// start starts what stands behind a gateway, and the gateway.
func (r *rig) start(source kube.Config, change func(*gateway.Config)) *rig {
	t := r.t
	t.Helper()
	var err error
	if r.kube, err = kube.Load(source); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.kube.Close)
	upstream, err := kube.LoadUpstream(source, kube.Credentials{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(upstream.Close)
	log := servetest.Log(t)
	svc, err := reflector.New(reflector.Config{
		Resources: []reflector.Resource{{Name: "*"}}, KeepManagedFields: true, LivenessEvery: 500 * time.Millisecond, DiscoverEvery: time.Second, QuietAfter: 3 * time.Second,
		Admin: telemetry.AdminConfig{Listen: "off"},
	}, log, r.kube, quiet(t, "reflector"))
	if err != nil {
		t.Fatal(err)
	}
	run(t, "reflector", svc.Run)
	index := func() *client.Index {
		address, _ := servetest.Serve(t, log, nil)
		conn, err := rpc.Dial(address, rpc.DialConfig{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return client.NewIndex(conn)
	}
	r.index = index()
	cfg := gateway.Config{Listen: "127.0.0.1:0", Admin: telemetry.AdminConfig{Listen: "off"}}
	if change != nil {
		change(&cfg)
	}
	tel := quiet(t, "gateway")
	r.gather = func() map[string]float64 { return answered(t, tel) }
	if r.own == nil {
		r.own = r.kube
	}
	if r.svc, err = gateway.New(cfg, gateway.Deps{Index: r.index, Kube: r.own, Upstream: upstream, Vouching: r.vouching}, tel); err != nil {
		t.Fatal(err)
	}
	r.stopGateway = run(t, "gateway", r.svc.Run)
	r.another = func() string {
		svc, err := gateway.New(cfg, gateway.Deps{Index: index(), Kube: r.own, Upstream: upstream, Vouching: r.vouching}, quiet(t, "gateway 2"))
		if err != nil {
			t.Fatal(err)
		}
		run(t, "gateway 2", svc.Run)
		address, err := svc.Addr(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return "http://" + address
	}
	address, err := r.svc.Addr(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r.url, r.client = "http://"+address, r.api
	if source.URL == "" { // with the same token, without the API server's certificates
		rc, err := clientcmd.BuildConfigFromFlags("", source.Kubeconfig)
		if err != nil {
			t.Fatal(err)
		}
		r.client = &http.Client{Transport: bearer{rc.BearerToken, plain(t).Transport}}
	}
	return r
}

// bearer shows a token.
type bearer struct {
	token string
	next  http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if r.Header.Get("Authorization") == "" {
		r.Header.Set("Authorization", "Bearer "+b.token)
	}
	return b.next.RoundTrip(r)
}

func quiet(t *testing.T, service string) *telemetry.Telemetry {
	t.Helper()
	out := io.Discard
	if testing.Verbose() {
		out = os.Stderr
	}
	tel, err := telemetry.Setup(t.Context(), telemetry.Config{Service: service, LogOutput: out, LogLevel: "warn"})
	if err != nil {
		t.Fatal(err)
	}
	return tel
}

func run(t *testing.T, name string, fn func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- fn(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// answered counts requests by "verb by reason".
func answered(t *testing.T, tel *telemetry.Telemetry) map[string]float64 {
	t.Helper()
	families, err := tel.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		if f.GetName() != "deltaplane_gateway_requests_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			out[labels["verb"]+" "+labels["by"]+" "+labels["reason"]] = m.GetCounter().GetValue()
		}
	}
	return out
}

// mirrored waits until lists of resources are answered from the index.
func (r *rig) mirrored(paths ...string) {
	r.t.Helper()
	for _, path := range paths {
		for !r.served(path + "?resourceVersion=0") {
			select {
			case <-r.t.Context().Done():
				r.t.Fatalf("%s is not mirrored", path)
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
}

// served reports whether the index answers a request.
func (r *rig) served(path string) bool {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, r.url+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	resp, err := r.client.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.Header.Get(answer.ServedBy) == "index"
}
