package queue

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/internal/rpc"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

func TestRandomSessionIDsLockNobodyOut(t *testing.T) {
	t.Parallel()
	r := start(t, "memory", Config{})
	r.config(t, &queuev1.QueueConfig{Name: q, LeaseDuration: seconds(3000)})
	r.add(t, "old", "new")
	ctx := t.Context()
	got, err := r.Get(ctx, &queuev1.GetRequest{Queue: q, SessionId: "worker"})
	if err != nil || len(got.GetLeases()) != 1 {
		t.Fatal(got, err)
	}
	r.work(t, &queuev1.Hello{SessionId: "streaming", Queues: []string{q}})

	srv := r.svc.server // called without the network, which would take long
	held := got.GetLeases()[0]
	nobodys := []*queuev1.Settlement{{Queue: q, Key: "old", Token: held.GetToken() + 1000, Outcome: queuev1.Outcome_OUTCOME_DONE}}
	for i := range 100_000 {
		id, err := "random"+strconv.Itoa(i), error(nil)
		switch i % 3 {
		case 0:
			_, err = srv.Settle(ctx, &queuev1.SettleRequest{SessionId: id, RequestId: 1, Settlements: nobodys})
		case 1:
			_, err = srv.ShutDown(ctx, &queuev1.ShutDownRequest{SessionId: id})
		case 2:
			_, err = srv.Extend(ctx, &queuev1.ExtendRequest{SessionId: id, Leases: []*queuev1.LeaseRef{{Queue: q, Key: "old", Token: 1000}}})
		}
		if err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
	}
	for id := range 100 {
		if _, err := r.Get(ctx, &queuev1.GetRequest{Queue: q, SessionId: "fresh" + strconv.Itoa(id)}); err != nil {
			t.Fatalf("a new worker after 100,000 sessions: %v", err)
		}
	}
	for _, id := range []string{"worker", "streaming"} {
		if ss := r.svc.sessions.find(id); ss == nil {
			t.Errorf("session %q is in use and was forgotten", id)
		}
	}
}

func TestSessionsInUseAreNotForgottenForOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSessions(4)
		get := func(id string) error {
			t.Helper()
			_, err := s.get(id)
			time.Sleep(time.Minute)
			return err
		}
		for _, id := range []string{"shut", "leasing", "first", "second"} {
			if err := get(id); err != nil {
				t.Fatal(err)
			}
		}
		s.all["shut"].shut = true
		s.all["leasing"].leases[leaseKey{token: 1}] = &leased{deadline: time.Now().Add(time.Hour)}
		if err := get("first"); err != nil { // it is heard of again
			t.Fatal(err)
		}
		for _, want := range []struct{ comes, goes string }{{"third", "second"}, {"fourth", "first"}} {
			if err := get(want.comes); err != nil {
				t.Fatalf("%s: %v", want.comes, err)
			}
			if s.find(want.goes) != nil || len(s.all) != 4 {
				t.Errorf("%s was not forgotten for %s: %v", want.goes, want.comes, s.all)
			}
		}
		for _, id := range []string{"shut", "leasing"} {
			if s.find(id) == nil {
				t.Errorf("%s was forgotten", id)
			}
		}
		for _, ss := range s.all {
			ss.leases[leaseKey{token: 1}] = &leased{deadline: time.Now().Add(10 * time.Minute)}
		}
		if err := rpc.Status(get("fifth"), rules); rpc.Code(err) != codes.ResourceExhausted || rpc.Reason(err) != "TOO_MANY_SESSIONS" {
			t.Errorf("a session while all others are in use: %v", err)
		}
		time.Sleep(10 * time.Minute) // the leases end
		for id, ss := range s.all {
			if ss.touch(); id != "shut" { // a call of each of the others is under way
				continue
			}
			ss.used.Add(-int64(time.Minute))
		}
		if err := get("fifth"); err != nil || s.find("shut") != nil {
			t.Errorf("a session that was shut down stays instead of one that is being used: %v, %v", err, s.all)
		}
	})
}
