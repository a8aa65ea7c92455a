package session_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/internal/embedded"
	"github.com/deltaplane/deltaplane/internal/rpc"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
	"github.com/deltaplane/deltaplane/services/queue/redis"
)

// twoCallers are contexts of two authenticated callers, and a configuration that knows them.
func twoCallers(t *testing.T) (cfg queue.Config, a, b context.Context) {
	t.Helper()
	const tokenA, tokenB = "aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb"
	file := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(file, []byte(tokenA+" a\n"+tokenB+" b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg.RPC = rpc.ServerConfig{Auth: rpc.AuthConfig{TokenFile: file}}
	as := func(token string) context.Context {
		return metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token)
	}
	return cfg, as(tokenA), as(tokenB)
}

// lent adds a key as a caller and leases it.
func lent(as context.Context, t *testing.T, r *queuetest.Rig, key string) *queuev1.Lease {
	t.Helper()
	if _, err := r.Add(as, &queuev1.AddRequest{Queue: queuetest.Q, Items: []*queuev1.AddItem{{Key: key}}}); err != nil {
		t.Fatal(err)
	}
	res, err := r.Get(as, &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "w", Wait: durationpb.New(30 * time.Second)})
	if err != nil || len(res.GetLeases()) != 1 || res.GetLeases()[0].GetKey() != key {
		t.Fatalf("Get = %v, %v", res, err)
	}
	return res.GetLeases()[0]
}

func settlingOf(l *queuev1.Lease) *queuev1.SettleRequest {
	return &queuev1.SettleRequest{SessionId: "w", Settlements: []*queuev1.Settlement{{
		Queue: queuetest.Q, Key: l.GetKey(), Token: l.GetToken(), Outcome: queuev1.Outcome_OUTCOME_FORGET,
	}}}
}

func refused(t *testing.T, what string, err error) {
	t.Helper()
	if rpc.Code(err) != codes.PermissionDenied || rpc.Reason(err) != "LEASE_OF_ANOTHER_CALLER" {
		t.Errorf("%s: %v (%s), want PermissionDenied LEASE_OF_ANOTHER_CALLER", what, err, rpc.Reason(err))
	}
}

// foreign tries what only the holder of a lease may do, with the right token and session id.
func foreign(as context.Context, t *testing.T, r *queuetest.Rig, l *queuev1.Lease) {
	t.Helper()
	ref := []*queuev1.LeaseRef{{Queue: queuetest.Q, Key: l.GetKey(), Token: l.GetToken()}}
	_, err := r.Settle(as, settlingOf(l))
	refused(t, "Settle", err)
	_, err = r.Extend(as, &queuev1.ExtendRequest{SessionId: "w", Leases: ref})
	refused(t, "Extend", err)
	_, err = r.SaveState(as, &queuev1.SaveStateRequest{Queue: queuetest.Q, Key: l.GetKey(), Token: l.GetToken(), State: []byte("x")})
	refused(t, "SaveState", err)
	_, err = r.Expect(as, &queuev1.ExpectRequest{Queue: queuetest.Q, Key: l.GetKey(), Token: l.GetToken(), OwnerUid: "u", Creations: []string{"c"}})
	refused(t, "Expect", err)
	work := func(resume []*queuev1.LeaseRef, then *queuev1.WorkRequest) error {
		s, err := r.Work(as)
		if err != nil {
			return err
		}
		if err := s.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Hello{Hello: &queuev1.Hello{SessionId: "w", Queues: []string{queuetest.Q}, Resume: resume}}}); err != nil {
			return err
		}
		if then != nil {
			if _, err := s.Recv(); err != nil {
				return fmt.Errorf("welcome: %w", err)
			}
			if err := s.Send(then); err != nil {
				return err
			}
		}
		_, err = s.Recv()
		return err
	}
	refused(t, "Work resuming", work(ref, nil))
	refused(t, "Work settling", work(nil, &queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Settle{Settle: &queuev1.SettleBatch{
		RequestId: 1, Settlements: settlingOf(l).GetSettlements(),
	}}}))
	refused(t, "Work extending", work(nil, &queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Extend{Extend: &queuev1.ExtendBatch{Leases: ref}}}))
}

func TestALeaseIsItsCallers(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		cfg, a, b := twoCallers(t)
		r := queuetest.Start(t, kind, cfg)
		if _, err := r.ConfigureQueue(a, &queuev1.ConfigureQueueRequest{Config: &queuev1.QueueConfig{Name: queuetest.Q}}); err != nil {
			t.Fatal(err)
		}
		l := lent(a, t, r, "k")
		foreign(b, t, r, l)

		// The session of the same name is another one.
		if _, err := r.ShutDown(b, &queuev1.ShutDownRequest{SessionId: "w"}); err != nil {
			t.Fatal(err)
		}
		for who, c := range map[string]struct {
			as   context.Context
			want bool
		}{"a": {a, false}, "b": {b, true}} {
			added, err := r.Add(c.as, &queuev1.AddRequest{Queue: queuetest.Q, SessionId: "w", Items: []*queuev1.AddItem{{Key: "other"}}})
			if err != nil || (added.GetResults()[0].GetStatus() == queuev1.AddStatus_ADD_STATUS_SHUT_DOWN) != c.want {
				t.Errorf("an add of the session of %s: %v %v, want it shut down %t", who, added, err, c.want)
			}
		}
		if ext, err := r.Extend(a, &queuev1.ExtendRequest{SessionId: "w"}); err != nil || ext.GetExtended() != 1 {
			t.Errorf("its own Extend = %v, %v", ext, err)
		}
		if st, err := r.SaveState(a, &queuev1.SaveStateRequest{Queue: queuetest.Q, Key: "k", Token: l.GetToken(), State: []byte("mine")}); err != nil ||
			st.GetStatus() != queuev1.SettleStatus_SETTLE_STATUS_SETTLED {
			t.Errorf("its own SaveState = %v, %v", st, err)
		}
		res, err := r.Settle(a, settlingOf(l))
		if err != nil || res.GetResults()[0].GetStatus() != queuev1.SettleStatus_SETTLE_STATUS_SETTLED {
			t.Errorf("its own Settle = %v, %v", res, err)
		}
		// A lease that has ended is nobody's: the status says so, as to its holder.
		res, err = r.Settle(b, settlingOf(l))
		if err != nil || res.GetResults()[0].GetStatus() != queuev1.SettleStatus_SETTLE_STATUS_NOT_LEASED {
			t.Errorf("Settle of a lease that has ended = %v, %v", res, err)
		}
	})
}

func TestAnotherServerKnowsWhoseALeaseIs(t *testing.T) {
	t.Parallel()
	srv, err := embedded.StartRedis(t.Context(), filepath.Join(t.TempDir(), "redis"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Stop)
	cfg, a, b := twoCallers(t)
	var servers [2]*queuetest.Rig
	for i := range servers {
		e, err := redis.New(redis.Config{URL: srv.URL()})
		if err != nil {
			t.Fatal(err)
		}
		servers[i] = queuetest.Serve(t, cfg, e)
	}
	if _, err := servers[0].ConfigureQueue(a, &queuev1.ConfigureQueueRequest{Config: &queuev1.QueueConfig{Name: queuetest.Q}}); err != nil {
		t.Fatal(err)
	}
	l := lent(a, t, servers[0], "k")
	foreign(b, t, servers[1], l)
	s, err := servers[1].Work(a)
	if err != nil {
		t.Fatal(err)
	}
	ref := []*queuev1.LeaseRef{{Queue: queuetest.Q, Key: "k", Token: l.GetToken()}}
	if err := s.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Hello{Hello: &queuev1.Hello{SessionId: "w", Queues: []string{queuetest.Q}, Resume: ref}}}); err != nil {
		t.Fatal(err)
	}
	m, err := s.Recv()
	if err != nil || len(m.GetWelcome().GetKept()) != 1 {
		t.Fatalf("its own resumption = %v, %v", m, err)
	}
	if st, err := servers[1].SaveState(a, &queuev1.SaveStateRequest{Queue: queuetest.Q, Key: "k", Token: l.GetToken()}); err != nil ||
		st.GetStatus() != queuev1.SettleStatus_SETTLE_STATUS_SETTLED {
		t.Errorf("its own SaveState = %v, %v", st, err)
	}
}

func TestWhatPeopleAreShownHasNoToken(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		cfg, a, b := twoCallers(t)
		r := queuetest.Start(t, kind, cfg)
		if _, err := r.ConfigureQueue(a, &queuev1.ConfigureQueueRequest{Config: &queuev1.QueueConfig{Name: queuetest.Q}}); err != nil {
			t.Fatal(err)
		}
		l := lent(a, t, r, "k")
		if _, err := r.Expect(a, &queuev1.ExpectRequest{Queue: queuetest.Q, Key: "k", Token: l.GetToken(), OwnerUid: "u", Creations: []string{"c"}}); err != nil {
			t.Fatal(err)
		}
		seen, err := r.Inspect(b, &queuev1.InspectRequest{Queue: queuetest.Q, Key: "k"})
		if err != nil {
			t.Fatal(err)
		}
		listed, err := r.ListItems(b, &queuev1.ListItemsRequest{Queue: queuetest.Q})
		if err != nil || len(listed.GetItems()) != 1 {
			t.Fatalf("ListItems = %v, %v", listed, err)
		}
		if seen.GetItem().GetHolder() != "w" || listed.GetItems()[0].GetHolder() != "w" || len(seen.GetHistory()) == 0 || seen.GetHistory()[0].GetSessionId() != "w" {
			t.Errorf("the holder is %v, listed %v, in history %v, want w", seen.GetItem(), listed, seen.GetHistory())
		}
		token := fmt.Sprint(l.GetToken())
		for what, text := range map[string]string{"Inspect": seen.String(), "ListItems": listed.String()} {
			if strings.Contains(text, token) {
				t.Errorf("%s shows the token: %s", what, text)
			}
		}
	})
}
