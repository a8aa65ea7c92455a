package memory_test

import (
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/enginetest"
	"github.com/deltaplane/deltaplane/services/queue/memory"
)

func TestExpiryLosesNoAcknowledgedAdd(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"", t.TempDir()} {
		for _, parts := range []int{1, 3} {
			fx := open(t, "")
			if dir != "" {
				fx = open(t, t.TempDir())
			}
			enginetest.ExpiryLosesNothing(t, []engine.Engine{fx.Engine}, parts, uint64(time.Now().UnixNano()), 40)
		}
	}
}

func TestTheLastUseOutlivesARestart(t *testing.T) {
	t.Parallel()
	dir, c := t.TempDir(), newClock()
	start := func() *memory.Engine {
		e, err := memory.New(memory.Config{Dir: dir, Now: c.Now})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	e := start()
	q, _, err := e.Configure(t.Context(), "dev/used", workqueue.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := e.Configure(t.Context(), "dev/new", workqueue.Config{}); err != nil {
		t.Fatal(err)
	}
	in := &workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpAdd, Key: "k"}, {Kind: workqueue.OpDelete, Key: "k"}}}
	if _, err := q.Partitions()[0].Apply(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	c.Advance(3 * time.Hour)
	e = start()
	defer e.Close()
	for name, want := range map[string]time.Duration{"dev/used": 3 * time.Hour, "dev/new": 0} { // of one without transactions nothing is known
		idle, err := e.Idle(t.Context(), name)
		if err != nil || !idle.Empty || idle.For < want || idle.For > want+time.Minute {
			t.Errorf("%s: Idle = %+v, %v, want %v", name, idle, err, want)
		}
	}
}
