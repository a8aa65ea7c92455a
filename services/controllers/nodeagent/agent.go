package nodeagent

import (
	"context"
	"errors"

	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/telemetry"
)

// Deps are what the agent is built on. The caller closes them after Run.
type Deps struct {
	// Kube is the API server that is written to, and that volumes and environments are read from.
	Kube *kube.Client
	// Index is a connection to the index service.
	Index grpc.ClientConnInterface
	// Runtime is a connection to a CRI server in this process; nil dials [Config.CRI].
	Runtime grpc.ClientConnInterface
	// Telemetry is reported through. Agents that share a process need one each.
	Telemetry *telemetry.Telemetry
}

// Agent is the agent of one node. Make it with New, run it once.
type Agent struct {
	cfg  Config
	deps Deps
}

// New builds the agent; it contacts nobody and writes nothing. The error holds
// every fault of the configuration.
func New(cfg Config, deps Deps) (*Agent, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Agent{cfg: cfg.withDefaults(), deps: deps}, nil
}

// Ready reports the readiness that the admin page shows.
func (a *Agent) Ready(context.Context) telemetry.Readiness { return telemetry.Readiness{} }

// Run runs the node's pods until ctx ends, and returns nil then; containers go
// on. It returns an error when another agent holds the root directory
// (dirlock.ErrTaken) or the node (node.ErrNodeTaken), or the admin port cannot
// be opened. A runtime, an index or an API server that is away is waited for.
func (a *Agent) Run(context.Context) error { return errors.New("nodeagent: not wired yet") }
