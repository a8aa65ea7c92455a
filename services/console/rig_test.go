package console_test

import (
	"context"
	"io"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"

	"github.com/deltaplane/deltaplane/internal/devcluster"
	"github.com/deltaplane/deltaplane/internal/devcluster/devclustertest"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/explain"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	consolev1 "github.com/deltaplane/deltaplane/proto/deltaplane/console/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/console"
	"github.com/deltaplane/deltaplane/services/indexer/servetest"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
	"github.com/deltaplane/deltaplane/services/reflector"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a console with all that stands behind it.
type rig struct {
	t      *testing.T
	url    string
	http   *http.Client
	kube   *kube.Client
	queues queuev1.QueueAdminServiceClient
	adds   queuev1.QueueServiceClient
	deps   console.Deps
	token  string
}

// start starts a console before a dev cluster, with its queues in Redis.
func start(t *testing.T, change func(*console.Config, *console.Deps)) *rig {
	t.Helper()
	cluster := devclustertest.Start(t, devcluster.Config{FreshTimeout: 100 * time.Millisecond, BookmarkEvery: time.Second})
	r := &rig{t: t}
	var err error
	if r.kube, err = kube.Load(kube.Config{URL: cluster.URL()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.kube.Close)
	log := servetest.Log(t)
	mirror, err := reflector.New(reflector.Config{
		Resources: []reflector.Resource{{Name: "configmaps"}, {Name: "pods"}, {Name: "nodes"}, {Name: "leases.coordination.k8s.io"}},
		Admin:     telemetry.AdminConfig{Listen: "off"}, LivenessEvery: 500 * time.Millisecond,
	}, log, r.kube, quiet(t, "reflector"))
	if err != nil {
		t.Fatal(err)
	}
	run(t, "reflector", mirror.Run)
	at, err := mirror.Addr(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r.deps.Reflector = part(t, at)
	at, _ = servetest.Serve(t, log, nil)
	r.deps.Index = part(t, at)
	r.deps.Queue = part(t, queuetest.Address(t, queue.Config{RedisURL: embeddedtest.Redis(t).URL(), Admin: telemetry.AdminConfig{Listen: "off"}}, "error"))
	r.queues, r.adds = queuev1.NewQueueAdminServiceClient(r.deps.Queue.Conn), queuev1.NewQueueServiceClient(r.deps.Queue.Conn)
	return r.serve(change)
}

// bare is a console before services that do not answer.
func bare(t *testing.T, change func(*console.Config, *console.Deps)) *rig {
	t.Helper()
	r := &rig{t: t}
	for _, p := range []*explain.Part{&r.deps.Reflector, &r.deps.Index, &r.deps.Queue} {
		*p = part(t, "127.0.0.1:1")
	}
	return r.serve(change)
}

func (r *rig) serve(change func(*console.Config, *console.Deps)) *rig {
	r.t.Helper()
	cfg, deps := console.Config{Listen: "127.0.0.1:0", Admin: telemetry.AdminConfig{Listen: "off"}, Version: "test"}, r.deps
	if change != nil {
		change(&cfg, &deps)
	}
	svc, err := console.New(cfg, deps, quiet(r.t, "console"))
	if err != nil {
		r.t.Fatal(err)
	}
	run(r.t, "console", svc.Run)
	at, err := svc.Addr(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 8}
	r.t.Cleanup(transport.CloseIdleConnections)
	r.url, r.http = "http://"+at, &http.Client{Transport: transport}
	return r
}

func part(t *testing.T, address string) explain.Part {
	t.Helper()
	conn, err := rpc.Dial(address, rpc.DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return explain.Part{Address: address, Conn: conn}
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

// call makes a call of the console's pages.
func call[Req, Res any](r *rig, method string, in *Req) (*Res, error) {
	r.t.Helper()
	request := connect.NewRequest(in)
	if r.token != "" {
		request.Header().Set("Authorization", "Bearer "+r.token)
	}
	answer, err := connect.NewClient[Req, Res](r.http, r.url+method).CallUnary(r.t.Context(), request)
	if err != nil {
		return nil, err
	}
	return answer.Msg, nil
}

// tab is what one page has open.
type tab struct {
	*rig
	opened *consolev1.Opened
	stream *connect.ServerStreamForClient[consolev1.OpenResponse]
	close  func()
}

// open opens a page.
func (r *rig) open() *tab {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.t.Context()))
	request := connect.NewRequest(&consolev1.OpenRequest{})
	if r.token != "" {
		request.Header().Set("Authorization", "Bearer "+r.token)
	}
	stream, err := connect.NewClient[consolev1.OpenRequest, consolev1.OpenResponse](r.http, r.url+consolev1.ConsoleService_Open_FullMethodName).CallServerStream(ctx, request)
	if err != nil {
		cancel()
		r.t.Fatal(err)
	}
	p := &tab{rig: r, stream: stream, close: sync.OnceFunc(func() { cancel(); _ = stream.Close() })}
	r.t.Cleanup(p.close)
	if !stream.Receive() {
		r.t.Fatalf("the stream ended: %v", stream.Err())
	}
	if p.opened = stream.Msg().GetOpened(); p.opened == nil {
		r.t.Fatalf("the stream begins with %v", stream.Msg())
	}
	return p
}

// refused is why a page is not opened; nil where it is.
func (r *rig) refused() error {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	defer cancel()
	request := connect.NewRequest(&consolev1.OpenRequest{})
	if r.token != "" {
		request.Header().Set("Authorization", "Bearer "+r.token)
	}
	stream, err := connect.NewClient[consolev1.OpenRequest, consolev1.OpenResponse](r.http, r.url+consolev1.ConsoleService_Open_FullMethodName).CallServerStream(ctx, request)
	if err != nil {
		return err
	}
	stream.Receive()
	err = stream.Err()
	cancel()
	_ = stream.Close()
	return err
}

// subscribe shows a view.
func (p *tab) subscribe(id uint32, r *consolev1.SubscribeRequest) {
	p.t.Helper()
	if err := p.subscribes(id, r); err != nil {
		p.t.Fatal(err)
	}
}

func (p *tab) subscribes(id uint32, r *consolev1.SubscribeRequest) error {
	p.t.Helper()
	r.Session, r.Subscription = p.opened.GetSession(), id
	_, err := call[consolev1.SubscribeRequest, consolev1.SubscribeResponse](p.rig, consolev1.ConsoleService_Subscribe_FullMethodName, r)
	return err
}

// until receives updates until one of a subscription is as it should be.
func (p *tab) until(what string, is func(*consolev1.OpenResponse) bool) *consolev1.OpenResponse {
	p.t.Helper()
	late := time.AfterFunc(60*time.Second, p.close) // a bound for what never comes
	defer late.Stop()
	var last *consolev1.OpenResponse
	for p.stream.Receive() {
		if last = p.stream.Msg(); is(last) {
			return last
		}
	}
	p.t.Fatalf("%s did not come: %v; the last was %v", what, p.stream.Err(), last)
	return nil
}
