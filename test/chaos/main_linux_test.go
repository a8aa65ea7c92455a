package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/sys/unix"

	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/test/chaos/history"
	"github.com/deltaplane/deltaplane/test/child"
)

const (
	queueName = "chaos/keys"
	leaseTime = 2 * time.Second
	// limiterMax is the longest that the queue's limiter makes a key wait.
	limiterMax = time.Second
	// margin is what a worker's clock gives away: it takes a lease for its own for so much less.
	margin = 500 * time.Millisecond
	// afterCut is how long a worker takes its leases for its own after its stream broke; the server
	// leaves it a second.
	afterCut = 400 * time.Millisecond
)

// role is what a process does.
type role struct {
	Kind string // server, worker or producer
	Name string
	// Servers are the addresses of the queue servers, as this process sees them.
	Servers []string
	Log     string // its history
	Listen  string // server
	Redis   string // server: URL
	Seed    uint64
}

func TestMain(m *testing.M) {
	child.Main(m, func(ctx context.Context, r role) error { return r.run(ctx) })
}

func (r role) run(ctx context.Context) error {
	switch r.Kind {
	case "server":
		return r.serve(ctx)
	case "worker":
		return r.work(ctx)
	case "producer":
		return r.produce(ctx)
	}
	return fmt.Errorf("unknown role %q", r.Kind)
}

// clock is read by all processes: it neither steps nor differs between them.
func clock() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // the kernel has had it for twenty years
	}
	return t.Nano()
}

// shared turns a time of the store's clock, which is this machine's wall clock, into the shared
// one. Both are read at once, or again: anyone who is preempted between them would be off by as
// much.
func shared(wall time.Time) int64 {
	for {
		before, now, after := clock(), time.Now(), clock()
		if after-before <= int64(time.Millisecond) {
			return after + wall.Sub(now.Round(0)).Nanoseconds()
		}
	}
}

// serve is a queue server.
func (r role) serve(ctx context.Context) error {
	tel := &telemetry.Telemetry{
		Log: child.Logger(r.Name, slog.LevelWarn), Tracer: tracenoop.NewTracerProvider(), Registry: prometheus.NewRegistry(),
	}
	cfg := queue.Config{RedisURL: r.Redis, RPC: rpc.ServerConfig{Listen: r.Listen}}
	cfg.Admin.Listen = "off"
	s, err := queue.New(cfg, tel)
	if err != nil {
		return err
	}
	return s.Run(ctx)
}

// histories reads every log of a run.
func histories(t *testing.T, dir string) []history.Event {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.history"))
	if err != nil {
		t.Fatal(err)
	}
	var all []history.Event
	for _, path := range paths {
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		events, err := history.Read(file)
		if err := errors.Join(err, file.Close()); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		all = append(all, events...)
	}
	return all
}

// notes writes events and remembers the first failure to.
type notes struct {
	*history.Log
	once sync.Once
	err  error
}

func (n *notes) note(e history.Event) {
	if err := n.Write(e); err != nil {
		n.once.Do(func() {
			n.err = err
			_, _ = io.WriteString(os.Stderr, err.Error()+"\n")
			os.Exit(1) // a history with holes proves nothing
		})
	}
}

func openNotes(path, name string) (*notes, error) {
	l, err := history.Create(path, name, clock)
	return &notes{Log: l}, err
}
