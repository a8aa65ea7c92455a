package queue_test

import (
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
	"github.com/deltaplane/deltaplane/services/queue/redis"
)

func TestThePauseAfterARestartBeginsWithoutAnyUse(t *testing.T) {
	t.Parallel()
	node := embeddedtest.DurableRedis(t)
	e, err := redis.New(redis.Config{URL: node.URL()})
	if err != nil {
		t.Fatal(err)
	}
	made, _, err := e.Configure(t.Context(), queuetest.Q, workqueue.Config{LeaseFor: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := made.Partitions()[0].Apply(t.Context(), &workqueue.Transaction{}); err != nil {
		t.Fatal(err)
	}
	r := queuetest.Serve(t, queue.Config{}, e)
	node.Kill()
	node.Start()

	other, err := redis.New(redis.Config{URL: node.URL()}) // it looks and has no transaction
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := other.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	first := int64(0)
	for {
		opened, err := other.Open(t.Context(), queuetest.Q)
		if err != nil {
			t.Fatal(err)
		}
		st, err := opened.Partitions()[0].Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if first == 0 {
			first = st.HeldUntil
		}
		// Before the first transaction, Status counts the pause from the present, so its end moves.
		if st.HeldUntil != 0 && st.HeldUntil == first && time.Since(began) > 100*time.Millisecond {
			break
		}
		first = st.HeldUntil
		if time.Since(began) > 20*time.Second {
			t.Fatal("the pause has not begun")
		}
		time.Sleep(10 * time.Millisecond)
	}
	if _, ok := r.Svc.Queues().Known(queuetest.Q); ok {
		t.Error("a queue that nobody used here has a dispatcher")
	}
	if _, err := r.Add(t.Context(), &queuev1.AddRequest{Queue: queuetest.Q, Items: []*queuev1.AddItem{{Key: "a"}}}); err != nil {
		t.Fatal(err)
	}
}
