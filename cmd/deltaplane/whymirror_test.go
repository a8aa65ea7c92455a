package main

import (
	"context"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/why"
)

// forever is longer than any test takes.
const forever = time.Hour

func TestWhyNamesAnIndexThatIsBehindOrLacksACollection(t *testing.T) {
	t.Parallel()
	s := serveQueue(t)
	p := startPipeline(t, s.addr, forever)
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
