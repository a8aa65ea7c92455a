package consistency

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/indexer"
	"github.com/deltaplane/deltaplane/services/reflector"
	"github.com/deltaplane/deltaplane/test/child"
)

// role is a reflector of a source, or an indexer with a folder.
type role struct {
	Name, Listen, NATS string
	Servers            int // that keep the log
	Source             string
	Dir                string
}

const leaseTTL = time.Second

func TestMain(m *testing.M) {
	child.Main(m, func(ctx context.Context, r role) error {
		log := child.Logger(r.Name, slog.LevelInfo)
		conn, err := stream.Connect(ctx, stream.Config{URL: r.NATS, Replicas: r.Servers, Log: log})
		for err != nil && ctx.Err() == nil { // the servers may be electing
			conn, err = stream.Connect(ctx, stream.Config{URL: r.NATS, Replicas: r.Servers, Log: log})
		}
		if err != nil {
			return err
		}
		defer conn.Close()
		tel := &telemetry.Telemetry{Log: log, Tracer: tracenoop.NewTracerProvider(), Registry: prometheus.NewRegistry()}
		if r.Source != "" {
			return r.reflect(ctx, conn, tel)
		}
		cfg := indexer.Config{RPC: rpc.ServerConfig{Listen: r.Listen}, Replica: r.Name, DataDir: r.Dir, CheckpointEvery: 2 * time.Second, DiscoverEvery: 100 * time.Millisecond}
		cfg.Admin.Listen = "off"
		svc, err := indexer.New(cfg, conn, tel)
		if err != nil {
			return err
		}
		return svc.Run(ctx)
	})
}

func (r role) reflect(ctx context.Context, conn *stream.Conn, tel *telemetry.Telemetry) error {
	kc, err := kube.Load(kube.Config{URL: r.Source})
	if err != nil {
		return err
	}
	defer kc.Close()
	cfg := reflector.Config{
		RPC: rpc.ServerConfig{Listen: r.Listen}, Holder: r.Name, LeaseTTL: leaseTTL, Resources: []reflector.Resource{{Name: "pods.v1"}},
	}
	cfg.Admin.Listen = "off"
	svc, err := reflector.New(cfg, conn, kc, tel)
	if err != nil {
		return err
	}
	return svc.Run(ctx)
}
