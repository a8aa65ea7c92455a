package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/plane"
	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/certs"
	"github.com/deltaplane/deltaplane/internal/embedded"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/gateway"
	"github.com/deltaplane/deltaplane/services/indexer"
	"github.com/deltaplane/deltaplane/services/reflector"
)

type config struct {
	// Part is "pipeline" (log, reflector and index) or "gateway".
	Part       string `json:"part"`
	Dir        string `json:"dir"`
	Kubeconfig string `json:"kubeconfig"`
	Index      string `json:"index"`
}

// Server is the servant of one part.
func Server(ctx context.Context, raw json.RawMessage) (*harness.Servant, error) {
	var cfg config
	if err := json.Unmarshal(raw, &cfg); err != nil {
		return nil, err
	}
	if cfg.Part == "gateway" {
		return serveGateway(ctx, cfg)
	}
	return servePipeline(ctx, cfg)
}

func servePipeline(ctx context.Context, cfg config) (*harness.Servant, error) {
	nats, err := embedded.StartNATS(embedded.NATSConfig{Dir: filepath.Join(cfg.Dir, "nats")})
	if err != nil {
		return nil, err
	}
	conn, err := stream.Connect(ctx, stream.Config{Options: []stream.Option{nats.InProcess()}})
	if err != nil {
		return nil, err
	}
	kc, err := kube.Load(kube.Config{Kubeconfig: cfg.Kubeconfig})
	if err != nil {
		return nil, err
	}
	off := telemetry.AdminConfig{Listen: "off"}
	tel, err := plane.PlaneTelemetry(ctx, "reflector")
	if err != nil {
		return nil, err
	}
	mirror, err := reflector.New(reflector.Config{
		RPC: rpc.ServerConfig{Listen: "127.0.0.1:0"}, Admin: off, KeepManagedFields: true, Resources: []reflector.Resource{{Name: "pods"}, {Name: "configmaps"}},
	}, conn, kc, tel)
	if err != nil {
		return nil, err
	}
	if tel, err = plane.PlaneTelemetry(ctx, "indexer"); err != nil {
		return nil, err
	}
	index, err := indexer.New(indexer.Config{RPC: rpc.ServerConfig{Listen: "127.0.0.1:0"}, Admin: off}, conn, tel)
	if err != nil {
		return nil, err
	}
	stopMirror, stopIndex := harness.InBackground(ctx, mirror.Run), harness.InBackground(ctx, index.Run)
	addr, err := index.Addr(ctx)
	return &harness.Servant{Info: addr, Stop: func() error {
		err := errors.Join(stopMirror(), stopIndex())
		conn.Close()
		nats.Stop()
		return err
	}}, err
}

func serveGateway(ctx context.Context, cfg config) (*harness.Servant, error) {
	source := kube.Config{Kubeconfig: cfg.Kubeconfig}
	kc, err := kube.Load(source)
	if err != nil {
		return nil, err
	}
	upstream, err := kube.LoadUpstream(source, kube.Credentials{})
	if err != nil {
		return nil, err
	}
	conn, err := rpc.Dial(cfg.Index, rpc.DialConfig{})
	if err != nil {
		return nil, err
	}
	tel, err := plane.PlaneTelemetry(ctx, "gateway")
	if err != nil {
		return nil, err
	}
	s, err := gateway.New(gateway.Config{
		Listen: "127.0.0.1:0", Admin: telemetry.AdminConfig{Listen: "off"},
		TLS: certs.Config{CertFile: filepath.Join(cfg.Dir, "cert.pem"), KeyFile: filepath.Join(cfg.Dir, "key.pem")},
	}, gateway.Deps{Index: client.NewIndex(conn), Kube: kc, Upstream: upstream}, tel)
	if err != nil {
		return nil, err
	}
	stop := harness.InBackground(ctx, s.Run)
	addr, err := s.Addr(ctx)
	return &harness.Servant{Info: "https://" + addr, Stop: func() error { return errors.Join(stop(), conn.Close()) }}, err
}
