package queue

import (
	"testing"
	"time"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

func TestAWorkerThatWaitsCausesNoTurns(t *testing.T) {
	t.Parallel()
	on(t, func(t *testing.T, kind string) {
		r := start(t, kind, Config{})
		r.configure(t)
		w := r.work(t, &queuev1.Hello{SessionId: "w"})
		w.give(8)
		r.add(t, "a")
		w.settle(done, wait(t, w.leases)) // everything is quiet behind this
		before := r.turns(t)
		<-time.After(200 * time.Millisecond) // what is looked for is that nothing happens
		if n := r.turns(t) - before; n > 5 {
			t.Errorf("%d turns while a worker waited, want a few at most: nothing polls", n)
		}
	})
}

// turns is how many turns all queues have had.
func (r *rig) turns(t *testing.T) (n uint64) {
	t.Helper()
	families, err := r.tel.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "deltaplane_queue_turn_seconds" {
			for _, m := range f.GetMetric() {
				n += m.GetHistogram().GetSampleCount()
			}
		}
	}
	return n
}
