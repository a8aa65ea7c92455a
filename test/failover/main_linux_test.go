package failover

import (
	"context"
	"log/slog"
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
	"github.com/deltaplane/deltaplane/test/child"
)

// leaseTTL is the default of reflectors.
const leaseTTL = 3 * time.Second

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
	child.Main(m, func(ctx context.Context, r role) error {
		if r.Server != nil {
			return r.serve(ctx)
		}
		return r.reflect(ctx)
	})
}

func (r role) log() *slog.Logger { return child.Logger(r.Name, slog.LevelInfo) }

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
