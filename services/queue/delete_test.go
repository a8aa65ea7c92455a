package queue

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/rpc"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/redis"
)

func notFound(t *testing.T, what string, err error) {
	t.Helper()
	if rpc.Code(err) != codes.NotFound || rpc.Reason(err) != "QUEUE_NOT_FOUND" {
		t.Errorf("%s: %v, want QUEUE_NOT_FOUND", what, err)
	}
}

func series(t *testing.T, r *rig, name string) (n int) {
	t.Helper()
	families, err := r.tel.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "name" && l.GetValue() == name {
					n++
				}
			}
		}
	}
	return n
}

func TestADeletedQueueEndsWhatUsesIt(t *testing.T) {
	t.Parallel()
	on(t, func(t *testing.T, kind string) {
		r := start(t, kind, Config{})
		r.config(t, &queuev1.QueueConfig{Name: q, Partitions: 3, LeaseDuration: seconds(6)})
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		w := r.work(t, &queuev1.Hello{SessionId: "w", Queues: []string{q}})
		w.give(1)
		r.add(t, "a")
		l := <-w.leases
		p := r.produce(t, "p")
		p.do(plainAdds("b")...)

		_, err := r.DeleteQueue(ctx, &queuev1.DeleteQueueRequest{Queue: q})
		if rpc.Code(err) != codes.FailedPrecondition || rpc.Reason(err) != "QUEUE_LEASED" || !strings.Contains(err.Error(), "1 of queue") {
			t.Fatalf("DeleteQueue while a key is leased: %v", err)
		}
		if got := w.settle(queuev1.Outcome_OUTCOME_DONE, l); got[0].GetStatus() != queuev1.SettleStatus_SETTLE_STATUS_SETTLED {
			t.Fatalf("after a refusal: %v", got)
		}
		w.give(1)
		<-w.leases // the queue hands out again
		used, ok := r.svc.queues.Known(q)
		if !ok {
			t.Fatal("the queue is not in use")
		}
		waiting := make(chan error, 1)
		go func() {
			_, err := r.Get(ctx, &queuev1.GetRequest{Queue: q, SessionId: "g", Wait: seconds(25)})
			waiting <- err
		}()
		if _, err := r.DeleteQueue(ctx, &queuev1.DeleteQueueRequest{Queue: q, Force: true}); err != nil {
			t.Fatal(err)
		}
		for _, d := range used.Partitions {
			if d.EndedWith() == nil {
				t.Errorf("the dispatcher of partition %d goes on", d.Part)
			}
		}
		if n := series(t, r, q); n != 0 {
			t.Errorf("%d metric series are left", n)
		}
		notFound(t, "a Get that waits", <-waiting)
		select {
		case err := <-w.end:
			notFound(t, "a Work stream", err)
		case <-ctx.Done():
			t.Error("the Work stream goes on")
		}
		if b := p.do(plainAdds("c")...); b.GetError().GetReason() != "QUEUE_NOT_FOUND" {
			t.Errorf("a producer: %v", b)
		}
		_, err = r.Add(ctx, &queuev1.AddRequest{Queue: q, Items: []*queuev1.AddItem{{Key: "a"}}})
		notFound(t, "Add", err)
		_, err = r.DeleteQueue(ctx, &queuev1.DeleteQueueRequest{Queue: q})
		notFound(t, "DeleteQueue again", err)
		if !strings.Contains(err.Error(), "there are: ") {
			t.Errorf("%v: it does not say which queues there are", err)
		}

		r.config(t, &queuev1.QueueConfig{Name: q, Partitions: 2, LeaseDuration: seconds(1)})
		if b := p.do(plainAdds("d")...); b.GetError() != nil {
			t.Errorf("a producer, after the queue was made again: %v", b)
		}
		res, err := r.Get(ctx, &queuev1.GetRequest{Queue: q, SessionId: "g", Wait: seconds(25)})
		if err != nil || len(res.GetLeases()) != 1 || res.GetLeases()[0].GetKey() != "d" {
			t.Errorf("Get = %v, %v, want d", res, err)
		}
	})
}

func TestOtherServersDropAQueueThatWasDeleted(t *testing.T) {
	t.Parallel()
	node := embeddedtest.DurableRedis(t)
	var servers [2]*rig
	for i := range servers {
		e, err := redis.New(redis.Config{URL: node.URL()})
		if err != nil {
			t.Fatal(err)
		}
		servers[i] = serve(t, Config{}, e)
	}
	a, b := servers[0], servers[1]
	a.config(t, &queuev1.QueueConfig{Name: q})
	w := b.work(t, &queuev1.Hello{SessionId: "w", Queues: []string{q}})
	if _, err := a.DeleteQueue(t.Context(), &queuev1.DeleteQueueRequest{Queue: q}); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-w.end:
		notFound(t, "a Work stream of the other server", err)
	case <-time.After(30 * time.Second):
		t.Fatal("the Work stream goes on")
	}
	for until := time.Now().Add(30 * time.Second); series(t, b, q) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("metric series are left")
		}
	}
	res, err := b.ListQueues(t.Context(), &queuev1.ListQueuesRequest{})
	if err != nil || len(res.GetQueues()) != 0 {
		t.Errorf("the other server made it again: %v, %v", res, err)
	}
}
