package testing

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/client/deltalog"
	"github.com/deltaplane/deltaplane/internal/kube"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// Env is a whole Deltaplane in this process, with an API server to write to. It ends with
// the test. Its methods are safe for concurrent use; those that have no error fail the test
// and belong on its goroutine.
type Env struct {
	t         testing.TB
	cfg       Config
	adversary *adversary
	activity  *activity
	parts     parts
	kube      *kube.Client // not adverse, as the rest is not that follows
	admin     queuev1.QueueAdminServiceClient
	replicas  []*grpc.ClientConn // of the index

	index, queue *grpc.ClientConn // for the code under test
	deltas       func() (*deltalog.Conn, error)
	url          string
	code         *code
}

// Start starts an environment and returns when everything that is mirrored is served.
// What it cannot start fails the test.
func Start(t testing.TB, cfg Config) *Env {
	t.Helper()
	return start(t, cfg, "")
}

func start(t testing.TB, cfg Config, variables string) *Env {
	t.Helper()
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		t.Fatalf("testing: config: %v", err)
	}
	e := &Env{t: t, cfg: cfg, adversary: newAdversary(cfg.Seed, cfg.Rates), activity: newActivity()}
	t.Cleanup(func() {
		if t.Failed() && cfg.Seed != 0 {
			t.Logf("testing: seed %d: %s\nto run it again: %s", cfg.Seed, e.adversary.summary(), again(variables, t.Name()))
		}
	})
	e.parts = parts{t: t, log: cfg.Log}
	e.startAll()
	e.code = newCode(t)
	return e
}

// Index is a connection to the index: for controller.New, client.NewIndex, informers.
func (e *Env) Index() *grpc.ClientConn {
	e.activity.expect(&e.activity.index)
	return e.index
}

// Queue is a connection to the queue: for controller.New, client.NewWorker, work queues.
func (e *Env) Queue() *grpc.ClientConn {
	e.activity.expect(&e.activity.queue)
	return e.queue
}

// Deltas is a connection to the delta log: for controller.Options.Deltas and triggers. It ends with
// the test. Nothing is done to what is read there.
func (e *Env) Deltas() *deltalog.Conn {
	e.t.Helper()
	conn, err := e.deltas()
	e.fail(err, "the log")
	e.t.Cleanup(conn.Close)
	return conn
}

// API is the URL of the API server, which needs no credentials. Every client of Kubernetes
// may be used: it speaks JSON over HTTP/1.1, and takes protobuf.
func (e *Env) API() string { return e.url }

// Seed is Config.Seed.
func (e *Env) Seed() uint64 { return e.cfg.Seed }

// Calm ends what is done to the code under test: from here on reads are current, calls are
// answered and leases last. What was done before may still have consequences; wait for
// them with [Env.Settled].
func (e *Env) Calm() {
	e.adversary.rest()
	e.parts.lag.end()
}

// Go runs the code under test until the test ends or stop is called, and waits for it:
// run has to return when its context ends. What it returns fails the test, unless it is
// nil or the context's error.
func (e *Env) Go(run func(ctx context.Context) error) (stop func()) {
	return e.code.run(run)
}

// code is what runs in an environment. It ends before the services do.
type code struct {
	t   testing.TB
	ctx context.Context //nolint:containedctx // the life of what runs
	all sync.WaitGroup
}

func newCode(t testing.TB) *code {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	c := &code{t: t, ctx: ctx}
	t.Cleanup(func() {
		cancel()
		c.all.Wait()
	})
	return c
}

func (c *code) run(run func(ctx context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(c.ctx)
	done := make(chan struct{})
	c.all.Go(func() {
		defer close(done)
		if err := run(ctx); err != nil && (ctx.Err() == nil || !errors.Is(err, ctx.Err())) {
			c.t.Errorf("testing: what runs in the environment: %v", err)
		}
	})
	return func() {
		cancel()
		<-done
	}
}

// fail ends the test.
func (e *Env) fail(err error, format string, args ...any) {
	if err == nil {
		return
	}
	e.t.Helper()
	e.t.Fatalf("testing: %s: %v", fmt.Sprintf(format, args...), err)
}
