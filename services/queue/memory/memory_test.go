package memory_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/services/queue/enginetest"
	"github.com/deltaplane/deltaplane/services/queue/memory"
)

type clock struct{ ns atomic.Int64 }

func newClock() *clock {
	c := &clock{}
	c.ns.Store(time.Now().UnixNano())
	return c
}

func (c *clock) Now() time.Time          { return time.Unix(0, c.ns.Load()) }
func (c *clock) Advance(d time.Duration) { c.ns.Add(int64(d)) }

func open(t *testing.T, dir string) enginetest.Fixture {
	t.Helper()
	c := newClock()
	e, err := memory.New(memory.Config{Dir: dir, Now: c.Now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return enginetest.Fixture{Engine: e, Advance: c.Advance, Orphan: func(t *testing.T, queue, key string) { memory.Orphan(t, e, queue, key) }}
}

func TestEngine(t *testing.T) {
	t.Parallel()
	enginetest.Run(t, func(t *testing.T) enginetest.Fixture { return open(t, "") })
}

func TestEngineWithALog(t *testing.T) {
	t.Parallel()
	enginetest.Run(t, func(t *testing.T) enginetest.Fixture { return open(t, t.TempDir()) })
}

func TestRandomHistoriesMatchTheOracle(t *testing.T) {
	t.Parallel()
	enginetest.Model(t, open(t, t.TempDir()), 1, enginetest.Ops(t))
}
