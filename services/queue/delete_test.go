package queue_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/internal/rpc"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
)

func TestADeletedQueueEndsWhatUsesIt(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		r := queuetest.Start(t, kind, queue.Config{})
		r.Config(t, &queuev1.QueueConfig{Name: queuetest.Q, Partitions: 3, LeaseDuration: queuetest.Seconds(6)})
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		w := r.OpenWork(t, &queuev1.Hello{SessionId: "w", Queues: []string{queuetest.Q}})
		w.Give(1)
		r.AddKeys(t, "a")
		l := <-w.Leases
		p := r.OpenProduce(t, "p")
		p.Do(queuetest.PlainAdds("b")...)

		_, err := r.DeleteQueue(ctx, &queuev1.DeleteQueueRequest{Queue: queuetest.Q})
		if rpc.Code(err) != codes.FailedPrecondition || rpc.Reason(err) != "QUEUE_LEASED" || !strings.Contains(err.Error(), "1 of queue") {
			t.Fatalf("DeleteQueue while a key is leased: %v", err)
		}
		if got := w.Settle(queuev1.Outcome_OUTCOME_DONE, l); got[0].GetStatus() != queuev1.SettleStatus_SETTLE_STATUS_SETTLED {
			t.Fatalf("after a refusal: %v", got)
		}
		w.Give(1)
		<-w.Leases // the queue hands out again
		used, ok := r.Svc.Queues().Known(queuetest.Q)
		if !ok {
			t.Fatal("the queue is not in use")
		}
		waiting := make(chan error, 1)
		go func() {
			_, err := r.Get(ctx, &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "g", Wait: queuetest.Seconds(25)})
			waiting <- err
		}()
		if _, err := r.DeleteQueue(ctx, &queuev1.DeleteQueueRequest{Queue: queuetest.Q, Force: true}); err != nil {
			t.Fatal(err)
		}
		for _, d := range used.Partitions {
			if d.EndedWith() == nil {
				t.Errorf("the dispatcher of partition %d goes on", d.Part)
			}
		}
		if n := queuetest.Series(t, r, queuetest.Q); n != 0 {
			t.Errorf("%d metric series are left", n)
		}
		queuetest.NotFound(t, "a Get that waits", <-waiting)
		select {
		case err := <-w.End:
			queuetest.NotFound(t, "a Work stream", err)
		case <-ctx.Done():
			t.Error("the Work stream goes on")
		}
		if b := p.Do(queuetest.PlainAdds("c")...); b.GetError().GetReason() != "QUEUE_NOT_FOUND" {
			t.Errorf("a producer: %v", b)
		}
		_, err = r.Add(ctx, &queuev1.AddRequest{Queue: queuetest.Q, Items: []*queuev1.AddItem{{Key: "a"}}})
		queuetest.NotFound(t, "Add", err)
		_, err = r.DeleteQueue(ctx, &queuev1.DeleteQueueRequest{Queue: queuetest.Q})
		queuetest.NotFound(t, "DeleteQueue again", err)
		if !strings.Contains(err.Error(), "there are: ") {
			t.Errorf("%v: it does not say which queues there are", err)
		}

		r.Config(t, &queuev1.QueueConfig{Name: queuetest.Q, Partitions: 2, LeaseDuration: queuetest.Seconds(1)})
		if b := p.Do(queuetest.PlainAdds("d")...); b.GetError() != nil {
			t.Errorf("a producer, after the queue was made again: %v", b)
		}
		res, err := r.Get(ctx, &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "g", Wait: queuetest.Seconds(25)})
		if err != nil || len(res.GetLeases()) != 1 || res.GetLeases()[0].GetKey() != "d" {
			t.Errorf("Get = %v, %v, want d", res, err)
		}
	})
}
