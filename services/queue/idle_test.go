package queue_test

import (
	"testing"
	"time"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
)

func TestAWorkerThatWaitsCausesNoTransactions(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		r := queuetest.Start(t, kind, queue.Config{})
		r.Configure(t)
		w := r.OpenWork(t, &queuev1.Hello{SessionId: "w"})
		w.Give(8)
		r.AddKeys(t, "a")
		w.Settle(queuetest.Done, queuetest.Wait(t, w.Leases)) // everything is quiet behind this
		before := r.Transactions(t)
		<-time.After(200 * time.Millisecond) // what is looked for is that nothing happens
		if n := r.Transactions(t) - before; n > 5 {
			t.Errorf("%d transactions while a worker waited, want a few at most: nothing polls", n)
		}
	})
}
