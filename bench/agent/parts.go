package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/plane"
	"github.com/deltaplane/deltaplane/internal/criruntime"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/services/nodeagent"
	"github.com/deltaplane/deltaplane/services/nodeagent/kuberuntime"
)

// RuntimeServer is the servant that simulates a container runtime on the unix socket it is given.
func RuntimeServer(_ context.Context, raw json.RawMessage) (*harness.Servant, error) {
	var path string
	if err := json.Unmarshal(raw, &path); err != nil {
		return nil, err
	}
	s, err := criruntime.New(criruntime.Config{})
	if err != nil {
		return nil, err
	}
	if err := s.Listen(path); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	var mu sync.Mutex
	release := func() {}
	return &harness.Servant{
		Ops: map[string]harness.Op{
			// hang makes the runtime silent about one sandbox; about none when it is empty.
			"hang": func(_ context.Context, args json.RawMessage) (any, error) {
				var sandbox string
				if err := json.Unmarshal(args, &sandbox); err != nil {
					return nil, err
				}
				mu.Lock()
				defer mu.Unlock()
				release()
				release = func() {}
				if sandbox != "" {
					release = s.Inject("PodSandboxStatus", criruntime.Fault{Hang: true, Match: func(r any) bool {
						asked, ok := r.(*runtimeapi.PodSandboxStatusRequest)
						return ok && asked.GetPodSandboxId() == sandbox
					}})
				}
				return nil, nil
			},
		},
		Stop: s.Close,
	}, nil
}

// agentConfig is an agent in a child of its own.
type agentConfig struct {
	Node, API, Index, CRI, Dir string

	NoEvents       bool
	MaxPods        int
	Initial, Limit time.Duration // of CrashLoopBackOff; 0 for the defaults
}

// relists is what an agent tells of its looks at the runtime.
type relists struct {
	Count uint64  `json:"count"`
	Sum   float64 `json:"sum"` // seconds
	// Below are the counts of looks that took at most so many seconds.
	Below map[string]uint64 `json:"below"`
}

// AgentServer is the servant that runs a node agent.
func AgentServer(ctx context.Context, raw json.RawMessage) (*harness.Servant, error) {
	var cfg agentConfig
	if err := json.Unmarshal(raw, &cfg); err != nil {
		return nil, err
	}
	tel, err := plane.PlaneTelemetry(ctx, "node")
	if err != nil {
		return nil, err
	}
	client, err := plane.PlaneConfig{API: cfg.API}.Client()
	if err != nil {
		return nil, err
	}
	index, err := rpc.Dial(cfg.Index, rpc.DialConfig{})
	if err != nil {
		return nil, err
	}
	a, err := nodeagent.New(nodeagent.Config{
		Node: cfg.Node, CRI: cfg.CRI, RootDir: cfg.Dir + "/root", LogRoot: cfg.Dir + "/logs", HostNetworkOnly: true,
		NoEvents: cfg.NoEvents, MaxPods: cfg.MaxPods, CrashLoop: kuberuntime.Backoff{Initial: cfg.Initial, Max: cfg.Limit},
	}, nodeagent.Deps{Kube: client, Index: index, Telemetry: tel})
	if err != nil {
		return nil, errors.Join(err, index.Close())
	}
	stop := harness.InBackground(ctx, a.Run)
	return &harness.Servant{
		Ops: map[string]harness.Op{
			"ready": func(ctx context.Context, _ json.RawMessage) (any, error) { return a.Ready(ctx).Ready, nil },
			"relists": func(context.Context, json.RawMessage) (any, error) {
				families, err := tel.Registry.Gather()
				if err != nil {
					return nil, err
				}
				return relistsOf(families)
			},
		},
		Stop: func() error { return errors.Join(stop(), index.Close()) },
	}, nil
}

func relistsOf(families []*dto.MetricFamily) (relists, error) {
	for _, f := range families {
		if f.GetName() != "kubelet_pleg_relist_duration_seconds" || len(f.GetMetric()) == 0 {
			continue
		}
		h := f.GetMetric()[0].GetHistogram()
		out := relists{Count: h.GetSampleCount(), Sum: h.GetSampleSum(), Below: map[string]uint64{}}
		for _, b := range h.GetBucket() {
			out.Below[fmt.Sprint(b.GetUpperBound())] = b.GetCumulativeCount()
		}
		return out, nil
	}
	return relists{}, errors.New("the agent has no kubelet_pleg_relist_duration_seconds")
}

// since is what two readings differ by: looks, their mean, and their 99th percentile.
func (r relists) since(was relists) (n uint64, mean, p99 float64) {
	n = r.Count - was.Count
	if n == 0 {
		return 0, 0, 0
	}
	p99 = math.Inf(1)
	for text, below := range r.Below {
		var bound float64
		if _, err := fmt.Sscan(text, &bound); err != nil {
			continue // +Inf
		}
		if float64(below-was.Below[text]) >= 0.99*float64(n) {
			p99 = min(p99, bound)
		}
	}
	return n, (r.Sum - was.Sum) / float64(n), p99
}

// bareID is a container's ID without the runtime's name before it.
func bareID(id string) string {
	_, bare, found := strings.Cut(id, "://")
	if !found {
		return id
	}
	return bare
}
