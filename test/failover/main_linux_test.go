package failover

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/deltaplane/deltaplane/internal/embedded"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/reflector"
)

// leaseTTL is the default of reflectors.
const leaseTTL = 3 * time.Second

// roleVariable, set in the environment, makes the test binary one of the processes of a run.
const roleVariable = "DELTAPLANE_FAILOVER_ROLE"

// role is what a process does.
type role struct {
	Name   string
	Listen string
	// NATS is the log of a reflector, and Source its API server.
	NATS, Source string
	Replicas     int
	// Namespace narrows what a reflector mirrors.
	Namespace string
	// Server makes the process one of the log's.
	Server *embedded.NATSConfig
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
	switch {
	case err != nil:
	case r.Server != nil:
		err = r.serve(ctx)
	default:
		err = r.reflect(ctx)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", r.Name, err)
		os.Exit(1) //nolint:gocritic // nothing that stop would undo outlives the process
	}
}

func (r role) log() *slog.Logger {
	level := slog.LevelError + 4
	if os.Getenv("DELTAPLANE_FAILOVER_VERBOSE") != "" {
		level = slog.LevelInfo
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})).With(slog.String("process", r.Name))
}

// serve is a server of the log.
func (r role) serve(ctx context.Context) error {
	cfg := *r.Server
	cfg.Log = r.log()
	n, err := embedded.StartNATS(cfg)
	if err != nil {
		return err
	}
	<-ctx.Done()
	n.Stop()
	return nil
}

// reflect is a reflector.
func (r role) reflect(ctx context.Context) error {
	log := r.log()
	conn, err := stream.Connect(ctx, stream.Config{URL: r.NATS, Replicas: r.Replicas, Log: log})
	for err != nil && ctx.Err() == nil { // the servers may be electing, as they may when `deltaplane serve` starts, which tries again too
		log.Warn("cannot reach the log yet", telemetry.Err(err))
		conn, err = stream.Connect(ctx, stream.Config{URL: r.NATS, Replicas: r.Replicas, Log: log})
	}
	if err != nil {
		return err
	}
	defer conn.Close()
	kc, err := kube.Load(kube.Config{URL: r.Source})
	if err != nil {
		return err
	}
	defer kc.Close()
	cfg := reflector.Config{
		RPC: rpc.ServerConfig{Listen: r.Listen}, Holder: r.Name, LeaseTTL: leaseTTL,
		Resources: []reflector.Resource{{Name: "pods.v1", Scope: kube.Scope{Namespace: r.Namespace}}},
	}
	cfg.Admin.Listen = "off"
	svc, err := reflector.New(cfg, conn, kc, &telemetry.Telemetry{
		Log: log, Tracer: tracenoop.NewTracerProvider(), Registry: prometheus.NewRegistry(),
	})
	if err != nil {
		return err
	}
	return svc.Run(ctx)
}

// process is one of the processes of a run, seen from the test.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
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
	go func() { _ = p.cmd.Wait(); close(p.done) }()
	t.Cleanup(p.kill)
	return p
}

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) } // it may have ended

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}
