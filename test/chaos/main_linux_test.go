package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/sys/unix"

	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/test/chaos/history"
)

const (
	queueName = "chaos/keys"
	leaseTime = 2 * time.Second
	// limiterMax is the longest that the queue's limiter makes a key wait.
	limiterMax = time.Second
	// margin is what a worker's clock gives away: it takes a lease for its own for so much less.
	margin = 500 * time.Millisecond
	// afterCut is how long a worker takes its leases for its own after its stream broke; the server leaves it a second.
	afterCut = 400 * time.Millisecond
)

// roleVariable, set in the environment, makes the test binary one of the processes of a run.
const roleVariable = "DELTAPLANE_CHAOS_ROLE"

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
	text := os.Getenv(roleVariable)
	if text == "" {
		os.Exit(m.Run())
	}
	var r role
	err := json.Unmarshal([]byte(text), &r)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err == nil {
		err = r.run(ctx)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", r.Name, err)
		os.Exit(1) //nolint:gocritic // nothing that stop would undo outlives the process
	}
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

// shared turns a time of the store's clock, which is this machine's wall clock, into the shared one.
func shared(wall time.Time) int64 {
	now, at := time.Now(), clock()
	return at + wall.Sub(now.Round(0)).Nanoseconds()
}

// serve is a queue server.
func (r role) serve(ctx context.Context) error {
	level := slog.LevelError + 4
	if os.Getenv("DELTAPLANE_CHAOS_VERBOSE") != "" {
		level = slog.LevelWarn
	}
	tel := &telemetry.Telemetry{
		Log:    slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})).With(slog.String("server", r.Name)),
		Tracer: tracenoop.NewTracerProvider(), Registry: prometheus.NewRegistry(),
	}
	cfg := queue.Config{RedisURL: r.Redis, RPC: rpc.ServerConfig{Listen: r.Listen}}
	cfg.Admin.Listen = "off"
	s, err := queue.New(cfg, tel)
	if err != nil {
		return err
	}
	return s.Run(ctx)
}

// process is one of the processes of a run, seen from the test.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // set before done is closed
}

// start starts this binary in a role. It dies with the test.
func start(t *testing.T, r role) *process {
	t.Helper()
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: exec.Command(os.Args[0], "-test.run=^$"), done: make(chan struct{})} //nolint:gosec // it is ourselves
	p.cmd.Env = append(os.Environ(), roleVariable+"="+string(text), "GOMAXPROCS=2")
	p.cmd.Stderr = os.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.err = p.cmd.Wait(); close(p.done) }()
	t.Cleanup(p.kill)
	return p
}

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) } // it may have ended

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// stop asks the process to end and returns how it did.
func (p *process) stop(patience time.Duration) error {
	p.signal(syscall.SIGTERM)
	select {
	case <-p.done:
		if state, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && state.Signal() == syscall.SIGTERM {
			return nil // it had only just been started
		}
		return p.err
	case <-time.After(patience):
		p.kill()
		return errors.New("it did not end when it was asked to")
	}
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
