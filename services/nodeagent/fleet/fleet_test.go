package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/nodeagent/fleet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// index tells what a test sends.
type index struct {
	events  chan client.Event
	refused int // watches that are refused first
}

func (x *index) Watch(ctx context.Context, collection string, _ client.WatchOptions) iter.Seq2[client.Event, error] {
	return func(yield func(client.Event, error) bool) {
		if x.refused > 0 || collection != "dev/nodes.v1" {
			x.refused--
			yield(client.Event{}, client.ErrCollectionNotFound)
			return
		}
		for {
			select {
			case <-ctx.Done():
				return
			case e := <-x.events:
				if !yield(e, nil) {
					return
				}
			}
		}
	}
}

// agents are the agents of a fleet, and what became of them.
type agents struct {
	mu      sync.Mutex
	running map[string]int
	starts  map[string]int
	fails   map[string]error // what Run of a node's agent returns at once
	linger  time.Duration    // how long an agent takes to stop
}

type agent struct {
	all  *agents
	name string
}

func (a agent) Run(ctx context.Context) error {
	a.all.mu.Lock()
	a.all.running[a.name]++
	a.all.starts[a.name]++
	err := a.all.fails[a.name]
	a.all.mu.Unlock()
	if err == nil {
		<-ctx.Done()
		time.Sleep(a.all.linger)
	}
	a.all.mu.Lock()
	defer a.all.mu.Unlock()
	a.all.running[a.name]--
	return err
}

func (a agent) Ready(context.Context) telemetry.Readiness { return telemetry.Readiness{Ready: true} }

func quiet() *telemetry.Telemetry {
	return &telemetry.Telemetry{Log: slog.New(slog.DiscardHandler), Tracer: noop.NewTracerProvider(), Registry: prometheus.NewRegistry()}
}

// up is the nodes whose agent runs, sorted; one that runs twice is there twice.
func (a *agents) up() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []string
	for name, n := range a.running {
		for range n {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

func (a *agents) want(t *testing.T, why string, names ...string) {
	t.Helper()
	synctest.Wait()
	if got := a.up(); !slices.Equal(got, names) {
		t.Errorf("%s: agents of %v run, want %v", why, got, names)
	}
}

// start runs a fleet of three nodes in a bubble.
func start(t *testing.T, x *index, a *agents) (stop func() error) {
	t.Helper()
	a.running, a.starts = map[string]int{}, map[string]int{}
	f, err := fleet.New(fleet.Config{Nodes: []string{"node-1", "node-2", "node-3"}, Admin: telemetry.AdminConfig{Listen: "off"}}, fleet.Deps{
		Index: x, Telemetry: quiet(),
		Agent: func(name string, tel *telemetry.Telemetry) (fleet.Agent, error) {
			tel.Registry.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "pods_total", Help: "Pods."}))
			return agent{a, name}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	return func() error { cancel(); return <-done }
}

func node(kind client.EventType, name, stopped string) client.Event {
	return client.Event{Type: kind, Object: client.Object{
		Key: name, Payload: fmt.Appendf(nil, `{"metadata":{"name":%q,"annotations":{%q:%q}}}`, name, fleet.StoppedAnnotation, stopped),
	}}
}

func TestAgentsFollowTheAnnotationOfTheirNode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x, a := &index{events: make(chan client.Event), refused: 3}, &agents{linger: time.Second}
		stop := start(t, x, a)
		a.want(t, "before the index has told what nodes there are")
		x.events <- node(client.EventAdded, "node-1", "")
		a.want(t, "a node that exists", "node-1")
		x.events <- node(client.EventAdded, "node-2", "true")
		x.events <- node(client.EventAdded, "somebody-elses", "")
		x.events <- client.Event{Type: client.EventInitialEnd}
		a.want(t, "a node that was stopped before stays so, a new one is started", "node-1", "node-3")

		x.events <- node(client.EventUpdated, "node-2", "false")
		a.want(t, "started", "node-1", "node-2", "node-3")
		x.events <- node(client.EventUpdated, "node-1", "true")
		x.events <- node(client.EventUpdated, "node-1", "")
		x.events <- node(client.EventUpdated, "node-1", "true")
		time.Sleep(5 * time.Second)
		a.want(t, "the last word counts", "node-2", "node-3")
		x.events <- node(client.EventDeleted, "node-1", "true")
		a.want(t, "a node that was deleted registers itself again", "node-1", "node-2", "node-3")

		x.events <- client.Event{Type: client.EventGap}
		x.events <- node(client.EventAdded, "node-3", "true")
		x.events <- client.Event{Type: client.EventInitialEnd}
		time.Sleep(5 * time.Second)
		a.want(t, "what was lost in a gap is told again", "node-1", "node-2")
		if err := stop(); err != nil {
			t.Errorf("Run() = %v, want nil on a clean stop", err)
		}
		a.want(t, "after the stop")
	})
}

func TestAnAgentThatIsStartedAgainWaitsForTheOneBeforeIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x, a := &index{events: make(chan client.Event)}, &agents{linger: time.Minute}
		stop := start(t, x, a)
		x.events <- client.Event{Type: client.EventInitialEnd}
		a.want(t, "all", "node-1", "node-2", "node-3")
		for range 20 {
			x.events <- node(client.EventUpdated, "node-2", "true")
			synctest.Wait()
			x.events <- node(client.EventUpdated, "node-2", "")
		}
		a.want(t, "never two at once", "node-1", "node-2", "node-3")
		time.Sleep(2 * time.Minute)
		a.want(t, "it runs in the end", "node-1", "node-2", "node-3")
		if n := a.starts["node-2"]; n != 2 {
			t.Errorf("the agent was started %d times, want 2: the middle of a flap is no reason", n)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestAnAgentThatEndsByItselfEndsTheFleetWithItsError(t *testing.T) {
	t.Parallel()
	taken := errors.New("node is taken")
	synctest.Test(t, func(t *testing.T) {
		x, a := &index{events: make(chan client.Event)}, &agents{fails: map[string]error{"node-2": taken}}
		stop := start(t, x, a)
		x.events <- client.Event{Type: client.EventInitialEnd}
		synctest.Wait()
		if err := stop(); !errors.Is(err, taken) || !strings.Contains(err.Error(), "node-2") {
			t.Errorf("Run() = %v, want the fault of node-2", err)
		}
		a.want(t, "after the end")
	})
}

func TestNewReportsEveryFaultOfTheNames(t *testing.T) {
	t.Parallel()
	for _, nodes := range [][]string{nil, {""}, {"a", "a"}} {
		if _, err := fleet.New(fleet.Config{Nodes: nodes}, fleet.Deps{Telemetry: quiet()}); err == nil {
			t.Errorf("New() of %q = nil, want a fault", nodes)
		}
	}
}
