package admin_test

import (
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
	"github.com/deltaplane/deltaplane/services/queue/redis"
)

func TestOtherServersDropAQueueThatWasDeleted(t *testing.T) {
	t.Parallel()
	node := embeddedtest.DurableRedis(t)
	var servers [2]*queuetest.Rig
	for i := range servers {
		e, err := redis.New(redis.Config{URL: node.URL()})
		if err != nil {
			t.Fatal(err)
		}
		servers[i] = queuetest.Serve(t, queue.Config{}, e)
	}
	a, b := servers[0], servers[1]
	a.Config(t, &queuev1.QueueConfig{Name: queuetest.Q})
	w := b.OpenWork(t, &queuev1.Hello{SessionId: "w", Queues: []string{queuetest.Q}})
	if _, err := a.DeleteQueue(t.Context(), &queuev1.DeleteQueueRequest{Queue: queuetest.Q}); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-w.End:
		queuetest.NotFound(t, "a Work stream of the other server", err)
	case <-time.After(30 * time.Second):
		t.Fatal("the Work stream goes on")
	}
	for until := time.Now().Add(30 * time.Second); queuetest.Series(t, b, queuetest.Q) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("metric series are left")
		}
	}
	res, err := b.ListQueues(t.Context(), &queuev1.ListQueuesRequest{})
	if err != nil || len(res.GetQueues()) != 0 {
		t.Errorf("the other server made it again: %v, %v", res, err)
	}
}
