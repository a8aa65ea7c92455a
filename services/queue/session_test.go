package queue_test

import (
	"strconv"
	"testing"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
)

func TestRandomSessionIDsLockNobodyOut(t *testing.T) {
	t.Parallel()
	r := queuetest.Start(t, "memory", queue.Config{})
	r.Config(t, &queuev1.QueueConfig{Name: queuetest.Q, LeaseDuration: queuetest.Seconds(3000)})
	r.AddKeys(t, "old", "new")
	ctx := t.Context()
	got, err := r.Get(ctx, &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "worker"})
	if err != nil || len(got.GetLeases()) != 1 {
		t.Fatal(got, err)
	}
	r.OpenWork(t, &queuev1.Hello{SessionId: "streaming", Queues: []string{queuetest.Q}})

	srv := r.Svc.Server() // called without the network, which would take long
	held := got.GetLeases()[0]
	nobodys := []*queuev1.Settlement{{Queue: queuetest.Q, Key: "old", Token: held.GetToken() + 1000, Outcome: queuev1.Outcome_OUTCOME_DONE}}
	for i := range 100_000 {
		id, err := "random"+strconv.Itoa(i), error(nil)
		switch i % 3 {
		case 0:
			_, err = srv.Settle(ctx, &queuev1.SettleRequest{SessionId: id, RequestId: 1, Settlements: nobodys})
		case 1:
			_, err = srv.ShutDown(ctx, &queuev1.ShutDownRequest{SessionId: id})
		case 2:
			_, err = srv.Extend(ctx, &queuev1.ExtendRequest{SessionId: id, Leases: []*queuev1.LeaseRef{{Queue: queuetest.Q, Key: "old", Token: 1000}}})
		}
		if err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
	}
	for id := range 100 {
		if _, err := r.Get(ctx, &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "fresh" + strconv.Itoa(id)}); err != nil {
			t.Fatalf("a new worker after 100,000 sessions: %v", err)
		}
	}
	for _, id := range []string{"worker", "streaming"} {
		if ss := r.Svc.Sessions().Find(id); ss == nil {
			t.Errorf("session %q is in use and was forgotten", id)
		}
	}
}
