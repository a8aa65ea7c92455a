package session

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

func TestSessionsInUseAreNotForgottenForOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := NewSessions(4)
		get := func(id string) error {
			t.Helper()
			_, err := s.Get(id)
			time.Sleep(time.Minute)
			return err
		}
		for _, id := range []string{"shut", "leasing", "first", "second"} {
			if err := get(id); err != nil {
				t.Fatal(err)
			}
		}
		s.all["shut"].shut = true
		s.all["leasing"].leases[LeaseKey{Token: 1}] = &leased{deadline: time.Now().Add(time.Hour)}
		if err := get("first"); err != nil { // it is heard of again
			t.Fatal(err)
		}
		for _, want := range []struct{ comes, goes string }{{"third", "second"}, {"fourth", "first"}} {
			if err := get(want.comes); err != nil {
				t.Fatalf("%s: %v", want.comes, err)
			}
			if s.Find(want.goes) != nil || len(s.all) != 4 {
				t.Errorf("%s was not forgotten for %s: %v", want.goes, want.comes, s.all)
			}
		}
		for _, id := range []string{"shut", "leasing"} {
			if s.Find(id) == nil {
				t.Errorf("%s was forgotten", id)
			}
		}
		for _, ss := range s.all {
			ss.leases[LeaseKey{Token: 1}] = &leased{deadline: time.Now().Add(10 * time.Minute)}
		}
		if err := rpc.Status(get("fifth"), wire.Rules); rpc.Code(err) != codes.ResourceExhausted || rpc.Reason(err) != "TOO_MANY_SESSIONS" {
			t.Errorf("a session while all others are in use: %v", err)
		}
		time.Sleep(10 * time.Minute) // the leases end
		for id, ss := range s.all {
			if ss.touch(); id != "shut" { // a call of each of the others is under way
				continue
			}
			ss.used.Add(-int64(time.Minute))
		}
		if err := get("fifth"); err != nil || s.Find("shut") != nil {
			t.Errorf("a session that was shut down stays instead of one that is being used: %v, %v", err, s.all)
		}
	})
}
