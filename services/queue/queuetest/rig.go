package queuetest

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/internal/embedded"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/memory"
	"github.com/deltaplane/deltaplane/services/queue/redis"
)

// Quiet is telemetry that nobody reads but the test.
func Quiet() *telemetry.Telemetry {
	return &telemetry.Telemetry{
		Log: slog.New(slog.DiscardHandler), Tracer: tracenoop.NewTracerProvider(), Registry: prometheus.NewRegistry(),
	}
}

// Rig is a running service, its engine's clock and a client.
type Rig struct {
	queuev1.QueueServiceClient
	queuev1.QueueAdminServiceClient
	Backoff queuev1.BackoffServiceClient
	Svc     *queue.Service
	Engine  engine.Engine
	Tel     *telemetry.Telemetry
	Advance func(time.Duration)
	Stop    func() error // ends Run and returns its error
	Addr    string
}

// Calling is a rig of the clients alone, of a server elsewhere.
func Calling(conn grpc.ClientConnInterface) *Rig {
	return &Rig{
		QueueServiceClient: queuev1.NewQueueServiceClient(conn), QueueAdminServiceClient: queuev1.NewQueueAdminServiceClient(conn),
		Backoff: queuev1.NewBackoffServiceClient(conn),
	}
}

// engines are the stores every test of the service runs on.
var engines = map[string]func(t testing.TB, now *atomic.Int64) engine.Engine{
	"memory": func(t testing.TB, skew *atomic.Int64) engine.Engine {
		e, err := memory.New(memory.Config{Now: func() time.Time { return time.Now().Add(time.Duration(skew.Load())) }})
		if err != nil {
			t.Fatal(err)
		}
		return e
	},
	"redis": func(t testing.TB, skew *atomic.Int64) engine.Engine {
		srv, err := embedded.StartRedis(context.Background(), filepath.Join(t.TempDir(), "redis"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(srv.Stop)
		e, err := redis.New(redis.Config{URL: srv.URL(), Skew: func() time.Duration { return time.Duration(skew.Load()) }})
		if err != nil {
			t.Fatal(err)
		}
		return e
	},
}

// Start runs a service on an engine of a kind until the test ends.
func Start(t testing.TB, kind string, cfg queue.Config) *Rig {
	t.Helper()
	var skew atomic.Int64
	r := Serve(t, cfg, engines[kind](t, &skew))
	r.Advance = func(d time.Duration) { skew.Add(int64(d)) }
	return r
}

// Serve runs a service on an engine until the test ends.
func Serve(t testing.TB, cfg queue.Config, e engine.Engine) *Rig {
	t.Helper()
	cfg.Admin.Listen = "off"
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	tel := Quiet()
	svc, err := queue.NewOn(cfg, e, tel)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- svc.Run(ctx) }()
	addr, err := svc.Addr(ctx)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := rpc.Dial(addr, rpc.DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	var stopped atomic.Bool
	r := Calling(conn)
	r.Svc, r.Engine, r.Tel, r.Addr = svc, e, tel, addr
	r.Stop = func() error {
		if stopped.Swap(true) {
			return nil
		}
		cancel()
		return <-ended
	}
	t.Cleanup(func() {
		_ = conn.Close()
		if err := r.Stop(); err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
	})
	return r
}

// OnEngines runs a test on every engine.
func OnEngines(t *testing.T, f func(t *testing.T, kind string)) {
	t.Helper()
	for kind := range engines {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			f(t, kind)
		})
	}
}

// Q is the queue that most tests use.
const Q = "dev/job"

// Configure makes the queue [Q] with its defaults.
func (r *Rig) Configure(t testing.TB) {
	t.Helper()
	if _, err := r.ConfigureQueue(context.Background(), &queuev1.ConfigureQueueRequest{Config: &queuev1.QueueConfig{Name: Q}}); err != nil {
		t.Fatal(err)
	}
}

// Two is two servers on one Redis.
func Two(t *testing.T) (a, b *Rig) {
	t.Helper()
	srv, err := embedded.StartRedis(t.Context(), filepath.Join(t.TempDir(), "redis"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Stop)
	one := func() *Rig {
		e, err := redis.New(redis.Config{URL: srv.URL()})
		if err != nil {
			t.Fatal(err)
		}
		return Serve(t, queue.Config{}, e)
	}
	return one(), one()
}
