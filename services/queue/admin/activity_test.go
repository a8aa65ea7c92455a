package admin_test

import (
	"testing"
	"time"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
)

func TestAListOfQueuesTellsWhatTheServerDidWithEach(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		r := queuetest.Start(t, kind, queue.Config{})
		r.Configure(t)
		ctx := t.Context()
		look := func() *queuev1.QueueActivity {
			t.Helper()
			answer, err := r.ListQueues(ctx, &queuev1.ListQueuesRequest{Prefix: queuetest.Q})
			if err != nil || len(answer.GetQueues()) != 1 {
				t.Fatalf("ListQueues = %v, %v", answer, err)
			}
			return answer.GetQueues()[0].GetActivity()
		}
		before := look()
		r.AddKeys(t, "a", "b", "b")
		r.Advance(3 * time.Second)
		got, err := r.Get(ctx, &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "w", MaxItems: 2, Wait: queuetest.Seconds(5)})
		if err != nil || len(got.GetLeases()) != 2 {
			t.Fatalf("Get = %v, %v", got, err)
		}
		r.Advance(2 * time.Second)
		held, err := r.ListItems(ctx, &queuev1.ListItemsRequest{Queue: queuetest.Q, State: queuev1.State_STATE_PROCESSING})
		if err != nil || len(held.GetItems()) != 2 {
			t.Fatalf("ListItems = %v, %v", held, err)
		}
		for i, item := range held.GetItems() {
			lease := got.GetLeases()[i]
			begins := lease.GetDeadline().AsTime().Add(-30 * time.Second)
			if at := item.GetLeasedAt().AsTime(); at.Sub(begins).Abs() > 10*time.Millisecond || at.Nanosecond()%int(time.Millisecond) != 0 {
				t.Errorf("%s was leased at %v, told as %v", item.GetKey(), begins, at)
			}
		}
		lease := got.GetLeases()[0]
		if _, err := r.Settle(ctx, &queuev1.SettleRequest{SessionId: "w", Settlements: []*queuev1.Settlement{
			{Queue: queuetest.Q, Key: lease.GetKey(), Token: lease.GetToken(), Outcome: queuev1.Outcome_OUTCOME_DONE},
			{Queue: queuetest.Q, Key: lease.GetKey(), Token: lease.GetToken() + 1, Outcome: queuev1.Outcome_OUTCOME_DONE}, // lost
		}}); err != nil {
			t.Fatal(err)
		}
		a := look()
		if a.GetAdds()-before.GetAdds() != 2 || a.GetLeases()-before.GetLeases() != 2 || a.GetSettlements()-before.GetSettlements() != 1 || !a.GetSince().AsTime().Equal(before.GetSince().AsTime()) {
			t.Errorf("before %v, then %v", before, a)
		}
		if waited, worked := a.GetWaited().AsDuration(), a.GetWorked().AsDuration(); waited < 6*time.Second || worked < 2*time.Second {
			t.Errorf("two keys waited 3 s each, told as %v; one was worked on for 2 s, told as %v", waited, worked)
		}
		item, err := r.Inspect(ctx, &queuev1.InspectRequest{Queue: queuetest.Q, Key: lease.GetKey()})
		if err != nil || item.GetItem().GetLeasedAt() != nil {
			t.Errorf("a settled key is leased since %v (%v)", item.GetItem().GetLeasedAt(), err)
		}
	})
}
