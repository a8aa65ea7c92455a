package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/tidwall/gjson"

	"github.com/deltaplane/deltaplane/internal/telemetry"
)

var errEnded = errors.New("fleet: the agent ended by itself")

// stopped reads the annotation of a node object.
func stopped(object []byte) bool {
	return gjson.GetBytes(object, `metadata.annotations.deltaplane\.io/stopped`).String() == "true"
}

// node is one node of a fleet and whether its agent is to run.
type node struct {
	name string

	mu     sync.Mutex
	wanted bool
	agent  Agent                // nil while none runs
	tel    *telemetry.Telemetry // of the agent
	moved  chan struct{}        // one slot: wanted may have changed
}

// want says whether the agent is to run. It never blocks.
func (n *node) want(runs bool) {
	n.mu.Lock()
	n.wanted = runs
	n.mu.Unlock()
	select {
	case n.moved <- struct{}{}:
	default:
	}
}

// await blocks until the agent is to run or not; false when ctx ended before.
func (n *node) await(ctx context.Context, runs bool) bool {
	for {
		n.mu.Lock()
		now := n.wanted
		n.mu.Unlock()
		if now == runs {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-n.moved:
		}
	}
}

// run starts and stops the agent as it is wanted. One agent ends before the next begins.
func (n *node) run(ctx context.Context, deps Deps) error {
	log := deps.Telemetry.Log.With(slog.String(telemetry.KeyNode, n.name))
	for ctx.Err() == nil && n.await(ctx, true) {
		tel := &telemetry.Telemetry{Log: deps.Telemetry.Log, Tracer: deps.Telemetry.Tracer, Registry: prometheus.NewRegistry()}
		agent, err := deps.Agent(n.name, tel)
		if err != nil {
			return fmt.Errorf("node %s: %w", n.name, err)
		}
		log.Info("node agent starts")
		n.set(agent, tel)
		err = n.turn(ctx, agent)
		n.set(nil, nil)
		if err != nil {
			return fmt.Errorf("node %s: %w", n.name, err)
		}
		log.Info("node agent has stopped")
	}
	return nil
}

// turn runs one agent until it is no longer wanted. Its error is that of an agent
// that ended by itself: one that was asked to stop has nothing to say that matters.
func (n *node) turn(ctx context.Context, agent Agent) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var err error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer cancel()
		if err = agent.Run(ctx); ctx.Err() != nil {
			err = nil
		} else if err == nil {
			err = errEnded
		}
	}()
	n.await(ctx, false)
	cancel()
	<-ended
	return err
}
