// Package nodeagenttest runs simulated nodes for tests: real agents over the
// simulated container runtime, in the test's process.
package nodeagenttest

import (
	"cmp"
	"context"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/internal/criruntime"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/nodeagent"
)

// Config says which nodes a test needs.
type Config struct {
	// Kube is the cluster's API server, Index serves its pods and nodes.
	Kube  *kube.Client
	Index grpc.ClientConnInterface
	// Nodes is how many there are: node-1, node-2, ... Default 2.
	Nodes int
	// Heartbeat is the time between two renewals of a lease. Default 10 s.
	Heartbeat time.Duration
	// Agent changes the configuration of an agent, if set.
	Agent func(*nodeagent.Config)
}

// Nodes are the nodes of a test. Stop and Start are for one goroutine.
type Nodes struct {
	t       testing.TB
	cfg     Config
	dir     string
	runtime *criruntime.Server
	running map[string]*run
}

// run is an agent that runs.
type run struct {
	cancel context.CancelFunc
	done   chan error
}

// Start runs the nodes until the test ends. It returns before they are registered.
func Start(t testing.TB, cfg Config) *Nodes {
	t.Helper()
	cfg.Nodes = cmp.Or(cfg.Nodes, 2)
	n := &Nodes{t: t, cfg: cfg, dir: t.TempDir(), running: map[string]*run{}}
	var err error
	if n.runtime, err = criruntime.New(criruntime.Config{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for name := range n.running {
			n.Stop(name)
		}
		if err := n.runtime.Close(); err != nil {
			t.Error(err)
		}
	})
	for i := range cfg.Nodes {
		n.Start("node-" + strconv.Itoa(i+1))
	}
	return n
}

// Start starts the agent of a node that has none.
func (n *Nodes) Start(name string) {
	n.t.Helper()
	if n.running[name] != nil {
		n.t.Fatalf("the agent of %s runs already", name)
	}
	tel, err := telemetry.Setup(n.t.Context(), telemetry.Config{Service: name, LogOutput: n.t.Output(), LogLevel: "error"})
	if err != nil {
		n.t.Fatal(err)
	}
	cfg := nodeagent.Config{
		Node: name, RootDir: filepath.Join(n.dir, name), LogRoot: filepath.Join(n.dir, "logs"), MaxPods: 10_000,
		Heartbeat: n.cfg.Heartbeat, Admin: telemetry.AdminConfig{Listen: "off"},
	}
	if n.cfg.Agent != nil {
		n.cfg.Agent(&cfg)
	}
	agent, err := nodeagent.New(cfg, nodeagent.Deps{Kube: n.cfg.Kube, Index: n.cfg.Index, Runtime: n.runtime.Conn(), Telemetry: tel})
	if err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(n.t.Context())) // stops come in the order of the cleanups
	r := &run{cancel: cancel, done: make(chan error, 1)}
	n.running[name] = r
	go func() { r.done <- agent.Run(ctx) }()
}

// Stop makes a node fall silent: its agent ends, its containers go on.
func (n *Nodes) Stop(name string) {
	n.t.Helper()
	r := n.running[name]
	if r == nil {
		n.t.Fatalf("no agent of %s runs", name)
	}
	delete(n.running, name)
	r.cancel()
	select {
	case err := <-r.done:
		if err != nil {
			n.t.Errorf("agent of %s: %v", name, err)
		}
	case <-time.After(30 * time.Second):
		n.t.Errorf("the agent of %s does not stop", name)
	}
}
