// Package fleet runs the agents of several nodes in one process, as a cluster of
// simulated nodes needs them, and lets each be made to fail from outside.
//
// A node whose object carries the annotation [StoppedAnnotation] has no running
// agent: it falls silent, takes no pods and reports none, while the containers it
// started go on in the runtime, as on a machine whose agent died. The annotation is
// read from the index and is level-triggered: what it says holds however often it
// was changed, and across restarts of the process.
package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/telemetry"
)

// StoppedAnnotation on a node, "true", stops its agent; anything else, or nothing, runs it.
const StoppedAnnotation = "deltaplane.io/stopped"

// staleAfter is how long the index may be without the nodes before anybody is notified.
const staleAfter = 5 * time.Second

// Agent is the agent of one node. Run blocks until ctx ends and then returns nil;
// what it returns by itself is a fault that trying again does not heal.
type Agent interface {
	Run(ctx context.Context) error
	Ready(ctx context.Context) telemetry.Readiness
}

// Config says which nodes there are.
type Config struct {
	// Cluster is the cluster's name in collections. Default "dev".
	Cluster string
	// Nodes are the names of the nodes, at least one, each once.
	Nodes []string
	// Retry is the pause before the collection of nodes is asked for again that is not
	// served yet. Default 500 ms.
	Retry time.Duration
	// Admin is where the metrics, readiness and profiles of all nodes are served.
	Admin telemetry.AdminConfig
}

// index is what a fleet asks of a [client.Index].
type index interface {
	Watch(ctx context.Context, collection string, o client.WatchOptions) iter.Seq2[client.Event, error]
}

// Deps are what a fleet is built on.
type Deps struct {
	// Index answers what nodes there are; a [client.Index].
	Index index
	// Agent makes the agent of a node; it is called at every start of one. The agent
	// reports through tel, which is its own.
	Agent func(node string, tel *telemetry.Telemetry) (Agent, error)
	// Telemetry is the process's.
	Telemetry *telemetry.Telemetry
}

// Fleet is a number of agents. Make it with New, run it once.
type Fleet struct {
	cfg   Config
	deps  Deps
	log   *slog.Logger
	admin *telemetry.Admin
	nodes map[string]*node
}

// New makes a fleet; it contacts nobody. The error holds every fault of the configuration.
func New(cfg Config, deps Deps) (*Fleet, error) {
	cfg.Cluster, cfg.Retry = cmp.Or(cfg.Cluster, "dev"), cmp.Or(cfg.Retry, 500*time.Millisecond)
	f := &Fleet{cfg: cfg, deps: deps, log: deps.Telemetry.Log, nodes: map[string]*node{}}
	errs := []error{cfg.Admin.Validate()}
	if len(cfg.Nodes) == 0 {
		errs = append(errs, errors.New("fleet: no node is named"))
	}
	for _, name := range cfg.Nodes {
		if name == "" || f.nodes[name] != nil {
			errs = append(errs, fmt.Errorf("fleet: node %q is empty or named twice", name))
		}
		f.nodes[name] = &node{name: name, moved: make(chan struct{}, 1)}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	var err error
	if f.admin, err = telemetry.NewAdmin(cfg.Admin, f.metrics(), f.log); err != nil {
		return nil, err
	}
	for name, n := range f.nodes {
		f.admin.Ready(name, n.ready)
	}
	return f, nil
}

// Run runs the agents until ctx ends, and returns nil. No agent runs before the
// index has told what nodes there are: one that was stopped stays stopped. It ends
// with the error of the first agent that ends by itself.
func (f *Fleet) Run(ctx context.Context) error {
	lis, err := f.admin.Listen(ctx)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return f.admin.Serve(ctx, lis) })
	for _, n := range f.nodes {
		g.Go(func() error { return n.run(ctx, f.deps) })
	}
	g.Go(func() error { return f.follow(ctx) })
	return g.Wait()
}

// follow tells every node what its annotation says, until ctx ends.
func (f *Fleet) follow(ctx context.Context) error {
	nodes := delta.Collection{Cluster: f.cfg.Cluster, Version: "v1", Resource: "nodes"}.String()
	for began := time.Now(); ; {
		err := f.watch(ctx, nodes)
		if ctx.Err() != nil {
			return nil
		}
		level := slog.LevelDebug
		if time.Since(began) > staleAfter { // parts that start together need a moment
			level = slog.LevelWarn
		}
		f.log.LogAttrs(ctx, level, "nodes cannot be watched yet", telemetry.Err(err))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(f.cfg.Retry):
		}
	}
}

// watch follows the collection until its watch is refused.
func (f *Fleet) watch(ctx context.Context, collection string) error {
	seen := map[string]bool{} // of the initial state that is being told
	whole := false
	for e, err := range f.deps.Index.Watch(ctx, collection, client.WatchOptions{View: client.ViewMetadata, Log: f.log}) {
		if err != nil {
			return err
		}
		switch e.Type {
		case client.EventGap:
			seen, whole = map[string]bool{}, false
		case client.EventInitialEnd:
			whole = true
			for name, n := range f.nodes {
				if !seen[name] { // nobody can have stopped what does not exist
					n.want(true)
				}
			}
		case client.EventAdded, client.EventUpdated, client.EventDeleted:
			if n := f.nodes[e.Object.Key]; n != nil {
				seen[e.Object.Key] = seen[e.Object.Key] || !whole
				n.want(e.Type == client.EventDeleted || !stopped(e.Object.Payload))
			}
		}
	}
	return nil
}
