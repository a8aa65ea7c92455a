package memory_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/memory"
)

func TestTimeGoesOnAfterRestartsOfAMachineWhoseClockWasSetBack(t *testing.T) {
	t.Parallel()
	for _, restarts := range []int{1, 2} {
		t.Run(fmt.Sprint(restarts), func(t *testing.T) {
			t.Parallel()
			now, dir := time.Now(), t.TempDir()
			cfg := memory.Config{Dir: dir, Now: func() time.Time { return now }}
			e, err := memory.New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			q, _, err := e.Configure(t.Context(), "dev/job", workqueue.Config{})
			if err != nil {
				t.Fatal(err)
			}
			add := workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpAdd, Key: "a", Delay: 10e6}}}
			if _, err := q.Partitions()[0].Apply(t.Context(), &add); err != nil {
				t.Fatal(err)
			}
			now = now.Add(-time.Hour)
			for range restarts {
				if err := e.Close(); err != nil {
					t.Fatal(err)
				}
				if e, err = memory.New(cfg); err != nil {
					t.Fatal(err)
				}
			}
			t.Cleanup(func() { _ = e.Close() })
			if q, err = e.Open(t.Context(), "dev/job"); err != nil {
				t.Fatal(err)
			}
			now = now.Add(10 * time.Second)
			r, err := q.Partitions()[0].Apply(t.Context(), &workqueue.Transaction{Takes: []workqueue.Take{{Holder: "w", Max: 1}}})
			if err != nil || len(r.Leases) != 1 {
				t.Errorf("after the delay: %+v, %v; want the key", r, err)
			}
		})
	}
}

func TestAStepOfTheMachinesClockIsCountedAndNotFollowed(t *testing.T) {
	t.Parallel()
	for _, by := range []time.Duration{time.Hour, -time.Hour, time.Second, -time.Second} {
		t.Run(by.String(), func(t *testing.T) {
			t.Parallel()
			var step atomic.Int64
			e, err := memory.New(memory.Config{Step: func() time.Duration { return time.Duration(step.Load()) }})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = e.Close() })
			q, _, err := e.Configure(t.Context(), "dev/job", workqueue.Config{})
			if err != nil {
				t.Fatal(err)
			}
			apply := func() *workqueue.Result {
				r, err := q.Partitions()[0].Apply(t.Context(), &workqueue.Transaction{})
				if err != nil {
					t.Fatal(err)
				}
				return r
			}
			before, began := apply().Now, time.Now()
			step.Add(int64(by))
			moved := time.Duration(apply().Now-before) * time.Microsecond
			if most := time.Since(began) + time.Millisecond; moved < 0 || moved > most {
				t.Errorf("the store's clock moved by %v, want at most %v", moved, most)
			}
			apply()
			if got := e.ClockSteps(); got != 1 {
				t.Errorf("%d steps counted, want 1", got)
			}
		})
	}
}
