package queue

import (
	"fmt"
	"strings"
	"testing"
	"time"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// tell is a history in words, newest first.
func tell(events []*queuev1.HistoryEvent) string {
	var out []string
	for _, e := range events {
		s := []string{strings.ToLower(strings.TrimPrefix(e.GetKind().String(), "EVENT_KIND_"))}
		for _, more := range []string{e.GetSessionId(), strings.ToLower(strings.TrimPrefix(e.GetOutcome().String(), "OUTCOME_")), e.GetReason(), e.GetTraceparent()} {
			if more != "" && more != "unspecified" {
				s = append(s, more)
			}
		}
		if e.GetRepeats() > 0 {
			s = append(s, fmt.Sprintf("+%d", e.GetRepeats()))
		}
		out = append(out, strings.Join(s, " "))
	}
	return strings.Join(out, ", ")
}

func TestInspectTellsWhatHappenedToAKey(t *testing.T) {
	t.Parallel()
	on(t, func(t *testing.T, kind string) {
		r := start(t, kind, Config{})
		r.config(t, &queuev1.QueueConfig{Partitions: 2})
		ctx := t.Context()
		history := func() []*queuev1.HistoryEvent {
			t.Helper()
			res, err := r.Inspect(ctx, &queuev1.InspectRequest{Queue: q, Key: "k"})
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
			if _, err := r.Add(ctx, &queuev1.AddRequest{Queue: q, SessionId: "p", Items: []*queuev1.AddItem{{Key: "k", Traceparent: cause}}}); err != nil {
				t.Fatal(err)
			}
		}
		take := func(session string) *queuev1.Lease {
			t.Helper()
			res, err := r.Get(ctx, &queuev1.GetRequest{Queue: q, SessionId: session, Wait: seconds(10), LeaseDuration: seconds(2)})
			if err != nil || len(res.GetLeases()) != 1 {
				t.Fatalf("Get = %v, %v", res, err)
			}
			return res.GetLeases()[0]
		}
		settle := func(session string, l *queuev1.Lease, o queuev1.Outcome, reason string) {
			t.Helper()
			if _, err := r.Settle(ctx, &queuev1.SettleRequest{SessionId: session, Settlements: []*queuev1.Settlement{{
				Queue: q, Key: l.GetKey(), Token: l.GetToken(), Outcome: o, Reason: reason,
			}}}); err != nil {
				t.Fatal(err)
			}
		}
		l := take("w1")
		settle("w1", l, queuev1.Outcome_OUTCOME_DEAD, "no such node")
		if got, want := tell(history()), "settled w1 dead no such node, leased w1, added p "+cause+" +2"; got != want {
			t.Errorf("history %q, want %q", got, want)
		}
		if e := history()[0]; e.GetToken() != 0 || e.GetTime() == nil || e.GetHeld().AsDuration() < 0 || e.GetHeld().AsDuration() > time.Minute {
			t.Errorf("settled: %v", e)
		}
		if _, err := r.RetryNow(ctx, &queuev1.RetryNowRequest{Queue: q, Keys: []string{"k"}}); err != nil {
			t.Fatal(err)
		}
		gone := take("w1")
		r.advance(3 * time.Second) // its lease expires
		l = take("w2")
		settle("w1", gone, done, "") // too late
		settle("w2", l, forget, "")
		if got, want := tell(history()), "settled w2 forget, leased w2, lost w1, leased w1, operator RetryNow, settled w1 dead no such node, leased w1, added p "+cause+" +2"; got != want {
			t.Errorf("history %q, want %q", got, want)
		}
		if e := history()[2]; e.GetToken() != 0 || e.GetHeld().AsDuration() < 2*time.Second {
			t.Errorf("lost: %v", e)
		}
		r.add(t, "k")
		if got, want := tell(history()[:2]), "added, settled w2 forget"; got != want || len(history()) != 8 {
			t.Errorf("%d events, the last %q, want the oldest gone and %q", len(history()), got, want)
		}
	})
}

// told tells a history of a turn.
