package system

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/population"
	"github.com/deltaplane/deltaplane/internal/embedded"
)

// PipelineConfig is one part of the pipeline in a child.
type PipelineConfig struct {
	Part       string `json:"part"` // nats, indexer or reflector
	Dir        string `json:"dir"`
	NATS       string `json:"nats"`
	Kubeconfig string `json:"kubeconfig"`
}

// PipelineServer is the servant for one part of the pipeline. NATS runs at once,
// the services when they are instructed to start.
func PipelineServer(_ context.Context, raw json.RawMessage) (*harness.Servant, error) {
	var cfg PipelineConfig
	if err := json.Unmarshal(raw, &cfg); err != nil {
		return nil, err
	}
	if cfg.Part == "nats" {
		nats, err := embedded.StartNATS(embedded.NATSConfig{Dir: cfg.Dir, Listen: "127.0.0.1:0"})
		if err != nil {
			return nil, err
		}
		return &harness.Servant{Info: nats.URL(), Stop: func() error { nats.Stop(); return nil }}, nil
	}
	start := map[string]func(context.Context, PipelineConfig) (string, func() error, error){
		"indexer": startPodIndexer, "reflector": startPodReflector,
	}[cfg.Part]
	if start == nil {
		return nil, fmt.Errorf("unknown part %q", cfg.Part)
	}
	s := &harness.Servant{}
	s.Ops = map[string]harness.Op{"start": func(ctx context.Context, _ json.RawMessage) (addr any, err error) {
		addr, s.Stop, err = start(ctx, cfg)
		return addr, err
	}}
	return s, nil
}

func startPodIndexer(ctx context.Context, cfg PipelineConfig) (string, func() error, error) {
	addr, stop, _, err := startReplica(ctx, ReplicaConfig{NATS: cfg.NATS, Collection: population.PodsCollection.String()})
	return addr, stop, err
}

func startPodReflector(ctx context.Context, cfg PipelineConfig) (string, func() error, error) {
	return StartReflector(ctx, ReflectorConfig{NATS: cfg.NATS, Kubeconfig: cfg.Kubeconfig})
}
