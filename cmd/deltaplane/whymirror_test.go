package main

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/why"
	"github.com/deltaplane/deltaplane/internal/kube"
)

// forever is longer than any test takes.
const forever = time.Hour

func TestWhyNamesAnIndexThatIsBehindOrLacksACollection(t *testing.T) {
	t.Parallel()
	s := serveQueue(t)
	p := startPipeline(t, s.addr, forever)
	p.showsWrites(s)
	p.awaits(s, "dev/not-mirrored", "dev/gadgets.v1", "5")
	p.names(why.NotMirrored, "dev/not-mirrored", "late", "dev/gadgets.v1", "reflection add gadgets.v1")
	p.gate.set("nodes", hold)
	p.node("second")
	p.awaits(s, "dev/lagging", "dev/nodes.v1", p.node("third"))
	p.names(why.IndexLagging, "dev/lagging", "late", "dev/nodes.v1", "records behind the end of the log")
}

func TestWhyNamesAnIndexThatIsFrozen(t *testing.T) {
	t.Parallel()
	s := serveQueue(t)
	p := startPipeline(t, s.addr, forever)
	p.gate.set("nodes", func(_ context.Context, b *delta.Batch) { // a later build writes the log now
		*b = delta.Batch{Newer: &delta.NewerError{Sequence: 9, Unknown: &delta.UnknownError{Part: delta.PartVersion, Value: "2"}, Writer: "r9", Build: "v9"}}
	})
	p.awaits(s, "dev/frozen", "dev/nodes.v1", p.node("second"))
	p.names(why.IndexFrozen, "dev/frozen", "late", "dev/nodes.v1", "stood still since", "needs version 2")
}

func TestWhyNamesAReflectorThatIsDead(t *testing.T) {
	t.Parallel()
	s := serveQueue(t)
	p := startPipeline(t, s.addr, 300*time.Millisecond)
	p.stopReflector()
	p.awaits(s, "dev/dead-reflector", "dev/nodes.v1", p.node("second"))
	p.names(why.ReflectorDead, "dev/dead-reflector", "late", "dev/nodes.v1", "start a reflector")
	s.must("queue", "configure", "dev/idle")
	p.names(why.ReflectorDead, "dev/idle", "never-added", "have not come", "start a reflector")
}

func TestWhyNamesALogThatIsDead(t *testing.T) {
	t.Parallel()
	s := serveQueue(t)
	p := startPipeline(t, s.addr, 300*time.Millisecond)
	p.log.Stop()
	p.awaits(s, "dev/dead-log", "dev/nodes.v1", p.node("second"))
	p.names(why.LogDead, "dev/dead-log", "late", "dev/nodes.v1", "bring NATS")
}

// showsWrites has a run write a node, and wants the write and its return in the timeline.
func (p *pipeline) showsWrites(s *servedQueue) {
	p.t.Helper()
	s.must("queue", "configure", "dev/writes")
	s.works(p.t, "dev/writes", func(ctx context.Context, _ client.Item) (client.Result, error) {
		_, err := p.kube.Patch(ctx, kube.Ref{Resource: kube.Resource{Version: "v1", Name: "nodes"}, Name: "first"}, kube.MergePatch,
			[]byte(`{"metadata":{"labels":{"a":"b"}}}`), kube.WriteOptions{})
		return client.Result{}, err
	})
	s.must("queue", "add", "dev/writes", "first")
	until(p.t, func() bool {
		a := p.why("queue", "dev/writes", "first")
		has := func(what, detail string) bool {
			return slices.ContainsFunc(a.Timeline, func(e why.Entry) bool { return e.What == what && strings.HasPrefix(e.Detail, detail) })
		}
		return a.Cause == why.None && has("wrote", "patch dev/nodes.v1 first ") && has("came back", "dev/nodes.v1 first")
	})
}
