package admin_test

import (
	"testing"
	"time"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
)

func TestInspectTellsWhatHappenedToAKey(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		r := queuetest.Start(t, kind, queue.Config{})
		r.Config(t, &queuev1.QueueConfig{Partitions: 2})
		ctx := t.Context()
		history := func() []*queuev1.HistoryEvent {
			t.Helper()
			res, err := r.Inspect(ctx, &queuev1.InspectRequest{Queue: queuetest.Q, Key: "k"})
			if err != nil {
				t.Fatal(err)
			}
			return res.GetHistory()
		}
		if got := history(); len(got) != 0 {
			t.Errorf("of a key never seen: %v", got)
		}
		const cause = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
		for range 3 {
			if _, err := r.Add(ctx, &queuev1.AddRequest{Queue: queuetest.Q, SessionId: "p", Items: []*queuev1.AddItem{{Key: "k", Traceparent: cause}}}); err != nil {
				t.Fatal(err)
			}
		}
		take := func(session string) *queuev1.Lease {
			t.Helper()
			res, err := r.Get(ctx, &queuev1.GetRequest{Queue: queuetest.Q, SessionId: session, Wait: queuetest.Seconds(10), LeaseDuration: queuetest.Seconds(2)})
			if err != nil || len(res.GetLeases()) != 1 {
				t.Fatalf("Get = %v, %v", res, err)
			}
			return res.GetLeases()[0]
		}
		settle := func(session string, l *queuev1.Lease, o queuev1.Outcome, reason string) {
			t.Helper()
			if _, err := r.Settle(ctx, &queuev1.SettleRequest{SessionId: session, Settlements: []*queuev1.Settlement{{
				Queue: queuetest.Q, Key: l.GetKey(), Token: l.GetToken(), Outcome: o, Reason: reason,
			}}}); err != nil {
				t.Fatal(err)
			}
		}
		l := take("w1")
		settle("w1", l, queuev1.Outcome_OUTCOME_DEAD, "no such node")
		if got, want := queuetest.Tell(history()), "settled w1 dead no such node, leased w1, added p "+cause+" +2"; got != want {
			t.Errorf("history %q, want %q", got, want)
		}
		if e := history()[0]; e.GetTime() == nil || e.GetHeld().AsDuration() < 0 || e.GetHeld().AsDuration() > time.Minute {
			t.Errorf("settled: %v", e)
		}
		if _, err := r.RetryNow(ctx, &queuev1.RetryNowRequest{Queue: queuetest.Q, Keys: []string{"k"}}); err != nil {
			t.Fatal(err)
		}
		gone := take("w1")
		r.Advance(3 * time.Second) // its lease expires
		l = take("w2")
		settle("w1", gone, queuetest.Done, "") // too late
		settle("w2", l, queuetest.Forget, "")
		if got, want := queuetest.Tell(history()), "settled w2 forget, leased w2, lost w1, leased w1, operator RetryNow, settled w1 dead no such node, leased w1, added p "+cause+" +2"; got != want {
			t.Errorf("history %q, want %q", got, want)
		}
		if e := history()[2]; e.GetHeld().AsDuration() < 2*time.Second {
			t.Errorf("lost: %v", e)
		}
		r.AddKeys(t, "k")
		if got, want := queuetest.Tell(history()[:2]), "added, settled w2 forget"; got != want || len(history()) != 8 {
			t.Errorf("%d events, the last %q, want the oldest gone and %q", len(history()), got, want)
		}
	})
}
