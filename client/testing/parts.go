package testing

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/client/deltalog"
	"github.com/deltaplane/deltaplane/internal/devcluster"
	"github.com/deltaplane/deltaplane/internal/embedded"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/indexer"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/reflector"
)

const (
	cluster = "dev"
	// startTimeout is how long an environment may take to serve everything.
	startTimeout = time.Minute
	// bookmarkEvery is how often the API server says how far it is. A quiet collection is
	// known to be current only by that.
	bookmarkEvery = 25 * time.Millisecond
	// lookEvery is how often what is waited for is looked at.
	lookEvery = 25 * time.Millisecond
)

// parts starts servers that end with the test, the last one first.
type parts struct {
	t   testing.TB
	log io.Writer
	api *devcluster.Cluster
	lag *lag // of the index replica that answers stale reads
}

// startAll starts what "deltaplane up" does, each part on a port of its own.
func (e *Env) startAll() {
	p := &e.parts
	p.lag = newLag(e.cfg.Lag)
	resources, err := e.cfg.mirrored()
	e.fail(err, "resources")
	e.kube = p.cluster()
	for _, object := range e.cfg.Objects {
		e.Apply(object)
	}
	nats, err := embedded.StartNATS(embedded.NATSConfig{Dir: filepath.Join(p.t.TempDir(), "nats")})
	e.fail(err, "NATS")
	p.t.Cleanup(nats.Stop)
	connect := func(name string) *stream.Conn {
		cfg := stream.Config{Name: name, Memory: true}
		cfg.Options = append(cfg.Options, nats.InProcess())
		conn, err := stream.Connect(p.t.Context(), cfg)
		e.fail(err, "the log")
		p.t.Cleanup(conn.Close)
		return conn
	}

	e.deltas = func() (*deltalog.Conn, error) {
		cfg := deltalog.Config{Name: "test"}
		cfg.Options = append(cfg.Options, nats.InProcess())
		return deltalog.Connect(e.t.Context(), cfg)
	}
	queues, err := queue.New(queue.Config{Admin: noAdmin}, p.telemetry("queue"))
	e.fail(err, "queue")
	queueAddr := p.run("queue", queues)
	conn := connect("indexer")
	current, err := indexer.New(indexConfig("current"), conn, p.telemetry("indexer"))
	e.fail(err, "index")
	replicas := []string{p.run("index", current)}
	if e.cfg.Seed != 0 {
		late, err := indexer.New(indexConfig("lagging"), &lagging{Conn: connect("indexer-lagging"), lag: p.lag}, p.telemetry("indexer"))
		e.fail(err, "index")
		replicas = append(replicas, p.run("index", late))
	}
	mirror, err := reflector.New(reflector.Config{
		Admin: noAdmin, Cluster: cluster, Resources: resources, DiscoverEvery: time.Second,
	}, connect("reflector"), e.kube, p.telemetry("reflector"))
	e.fail(err, "reflector")
	p.run("reflector", mirror)

	for _, addr := range replicas {
		e.replicas = append(e.replicas, p.dial(addr))
	}
	queueConn := p.dial(queueAddr)
	e.admin = queuev1.NewQueueAdminServiceClient(queueConn)
	reads := &reads{adversary: e.adversary, activity: e.activity, stale: e.replicas[len(e.replicas)-1]}
	keys := &keys{adversary: e.adversary, activity: e.activity, admin: e.admin, queue: queuev1.NewQueueServiceClient(queueConn), base: context.WithoutCancel(p.t.Context())}
	p.t.Cleanup(keys.wait)
	e.index = p.dial(replicas[0], grpc.WithChainUnaryInterceptor(reads.unary), grpc.WithChainStreamInterceptor(reads.stream))
	e.queue = p.dial(queueAddr, grpc.WithChainUnaryInterceptor(keys.unary), grpc.WithChainStreamInterceptor(keys.stream))
	e.url = p.serve(&writes{next: p.api.Handler(), adversary: e.adversary, activity: e.activity})
	e.awaitSynced(len(resources))
	p.lag.begin()
}

// noAdmin serves no metrics: several environments would contend for the port.
var noAdmin = telemetry.AdminConfig{Listen: "off"}

func indexConfig(replica string) indexer.Config {
	return indexer.Config{Admin: noAdmin, Replica: replica, DiscoverEvery: 100 * time.Millisecond}
}

// cluster starts the API server and returns a client of it.
func (p *parts) cluster() *kube.Client {
	p.t.Helper()
	api, err := devcluster.New(devcluster.Config{Listen: "127.0.0.1:0", BookmarkEvery: bookmarkEvery}, p.telemetry("devcluster").Log)
	if err != nil {
		p.t.Fatalf("testing: API server: %v", err)
	}
	p.api = api
	p.background("API server", api.Run)
	select {
	case <-api.Ready():
	case <-p.t.Context().Done():
		p.t.Fatal("testing: the API server did not start")
	}
	client, err := kube.Load(kube.Config{URL: api.URL()})
	if err != nil {
		p.t.Fatalf("testing: API server: %v", err)
	}
	p.t.Cleanup(client.Close)
	return client
}

type service interface {
	Run(ctx context.Context) error
	Addr(ctx context.Context) (string, error)
}

func (p *parts) run(name string, s service) (addr string) {
	p.t.Helper()
	p.background(name, s.Run)
	addr, err := s.Addr(p.t.Context())
	if err != nil {
		p.t.Fatalf("testing: %s: %v", name, err)
	}
	return addr
}

// background runs a part until the test ends.
func (p *parts) background(name string, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(p.t.Context()))
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	p.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			p.t.Errorf("testing: %s: %v", name, err)
		}
	})
}

// serve serves a handler on a port of its own.
func (p *parts) serve(h http.Handler) (url string) {
	p.t.Helper()
	lis, err := (&net.ListenConfig{}).Listen(p.t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		p.t.Fatalf("testing: API server: %v", err)
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := srv.Serve(lis); !errors.Is(err, http.ErrServerClosed) {
			p.t.Errorf("testing: API server: %v", err)
		}
	})
	p.t.Cleanup(func() {
		_ = srv.Close()
		serving.Wait()
	})
	return "http://" + lis.Addr().String()
}

func (p *parts) dial(addr string, extra ...grpc.DialOption) *grpc.ClientConn {
	p.t.Helper()
	conn, err := rpc.Dial(addr, rpc.DialConfig{Extra: extra})
	if err != nil {
		p.t.Fatalf("testing: %v", err)
	}
	p.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (p *parts) telemetry(service string) *telemetry.Telemetry {
	p.t.Helper()
	tel, err := telemetry.Setup(p.t.Context(), telemetry.Config{Service: service, LogOutput: p.log})
	if err != nil {
		p.t.Fatalf("testing: %v", err)
	}
	return tel
}

// awaitSynced waits until each replica of the index serves so many collections.
func (e *Env) awaitSynced(n int) {
	ctx, cancel := context.WithTimeout(e.t.Context(), startTimeout)
	defer cancel()
	e.fail(await(ctx, func() string {
		for _, conn := range e.replicas {
			answer, err := indexv1.NewIndexServiceClient(conn).ListCollections(ctx, &indexv1.ListCollectionsRequest{})
			if err != nil {
				return err.Error()
			}
			synced := 0
			for _, c := range answer.GetCollections() {
				if c.GetSynced() {
					synced++
				}
			}
			if synced < n {
				return fmt.Sprintf("%d of %d resources are mirrored: is each of them served by the API server, or defined by Config.Objects?", synced, n)
			}
		}
		return ""
	}), "start")
}

// await looks until there is no problem, or ctx ends: then the problem is the error.
func await(ctx context.Context, look func() (problem string)) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	last := "it was not looked at"
	for {
		problem := look()
		if problem == "" {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s: %w", last, context.Cause(ctx))
		}
		last = problem
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", last, context.Cause(ctx))
		case <-tick.C:
		}
	}
}
