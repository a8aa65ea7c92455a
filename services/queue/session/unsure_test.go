package session_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/rpc"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/memory"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
)

// mute is an engine that answers everything but whose a lease is, while it is away.
type mute struct{ *queuetest.Apart }

type muteQueue struct {
	engine.Queue
	m mute
}

type mutePart struct {
	engine.Partition
	away engine.Partition
}

func (m mute) Configure(ctx context.Context, name string, cfg workqueue.Config) (engine.Queue, bool, error) {
	q, created, err := m.Engine.Configure(ctx, name, cfg)
	return muteQueue{q, m}, created, err
}

func (q muteQueue) Partitions() []engine.Partition {
	p := q.Queue.Partitions()[0]
	return []engine.Partition{mutePart{p, queuetest.ApartPart{Partition: p, Of: q.m.Apart}}}
}

func (p mutePart) Apply(ctx context.Context, t *workqueue.Transaction) (*workqueue.Result, error) {
	for i := range t.Ops {
		if t.Ops[i].Kind == workqueue.OpInspect {
			return p.away.Apply(ctx, t)
		}
	}
	return p.Partition.Apply(ctx, t)
}

// workAs opens a Work stream of a caller and returns its welcome.
func workAs(as context.Context, t *testing.T, r *queuetest.Rig, hello *queuev1.Hello) (queuev1.QueueService_WorkClient, *queuev1.Welcome) {
	t.Helper()
	s, err := r.Work(as)
	if err != nil {
		t.Fatal(err)
	}
	hello.SessionId, hello.Queues = "w", []string{queuetest.Q}
	if err := s.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Hello{Hello: hello}}); err != nil {
		t.Fatal(err)
	}
	m, err := s.Recv()
	if err != nil || m.GetWelcome() == nil {
		t.Fatalf("Work = %v, %v", m, err)
	}
	return s, m.GetWelcome()
}

func asked(t *testing.T, s queuev1.QueueService_WorkClient, req *queuev1.WorkRequest) *queuev1.WorkResponse {
	t.Helper()
	if err := s.Send(req); err != nil {
		t.Fatal(err)
	}
	m, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// While nobody can tell whose a lease is, nothing is done with it, though the store does all else.
func TestALeaseIsLeftAloneWhileNobodyCanTellWhoseItIs(t *testing.T) {
	t.Parallel()
	for name, silent := range map[string]bool{"silent": true, "refused": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, err := memory.New(memory.Config{})
			if err != nil {
				t.Fatal(err)
			}
			away := &queuetest.Apart{Engine: e}
			cfg, a, b := twoCallers(t)
			r := queuetest.Serve(t, cfg, mute{away})
			t.Cleanup(func() {
				if away.Refuse != nil {
					away.Back()
				}
			})
			if _, err := r.ConfigureQueue(a, &queuev1.ConfigureQueueRequest{Config: &queuev1.QueueConfig{Name: queuetest.Q, LeaseDuration: durationpb.New(10 * time.Minute)}}); err != nil {
				t.Fatal(err)
			}
			l := lent(a, t, r, "k")
			b, cancel := context.WithTimeout(b, 30*time.Second)
			defer cancel()
			refs := []*queuev1.LeaseRef{{Queue: queuetest.Q, Key: "k", Token: l.GetToken()}}
			settle := func(id uint64) *queuev1.WorkRequest {
				return &queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Settle{Settle: &queuev1.SettleBatch{RequestId: id, Settlements: settlingOf(l).GetSettlements()}}}
			}
			extend := func(refs ...*queuev1.LeaseRef) *queuev1.WorkRequest {
				return &queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Extend{Extend: &queuev1.ExtendBatch{Leases: refs}}}
			}
			away.Away()
			if !silent {
				away.Deny()
			}

			req := settlingOf(l)
			req.Partial = true
			got, err := r.Settle(b, req)
			if err != nil || got.GetResults()[0].GetStatus() != queuetest.Unavailable {
				t.Errorf("Settle = %v, %v", got, err)
			}
			ext, err := r.Extend(b, &queuev1.ExtendRequest{SessionId: "w", Leases: refs, Partial: true})
			if err != nil || len(ext.GetUnreachable()) != 1 || ext.GetExtended() != 0 {
				t.Errorf("Extend = %v, %v", ext, err)
			}
			s, welcome := workAs(b, t, r, &queuev1.Hello{Partial: true, Resume: refs})
			if len(welcome.GetUnreachable()) != 1 || len(welcome.GetKept()) != 0 {
				t.Errorf("welcome %v", welcome)
			}
			if m := asked(t, s, settle(1)).GetSettled(); m.GetResults()[0].GetStatus() != queuetest.Unavailable {
				t.Errorf("settled %v", m)
			}
			for what, req := range map[string]*queuev1.WorkRequest{"the lease": extend(refs...), "all": extend()} {
				if m := asked(t, s, req).GetExtended(); len(m.GetUnreachable()) != 1 || m.GetExtended() != 0 {
					t.Errorf("extending %s: %v", what, m)
				}
			}
			if !silent { // else these wait, as they say
				_, err := r.Settle(b, settlingOf(l))
				_, err2 := r.Extend(b, &queuev1.ExtendRequest{SessionId: "w", Leases: refs})
				_, err3 := r.SaveState(b, &queuev1.SaveStateRequest{Queue: queuetest.Q, Key: "k", Token: l.GetToken(), State: []byte("x")})
				for what, err := range map[string]error{"Settle": err, "Extend": err2, "SaveState": err3} {
					if rpc.Reason(err) != "STORE_UNAVAILABLE" {
						t.Errorf("%s without partial: %v", what, err)
					}
				}
			}

			away.Back()
			// What was resumed unseen is still somebody else's.
			for id, req := range []*queuev1.WorkRequest{settle(2), extend()} {
				for { // the dispatcher pauses after a failure
					if err := s.Send(req); err != nil {
						t.Fatal(err)
					}
					m, err := s.Recv()
					if err != nil {
						refused(t, "on the stream", err)
						break
					}
					if len(m.GetExtended().GetUnreachable()) == 0 && (len(m.GetSettled().GetResults()) == 0 || m.GetSettled().GetResults()[0].GetStatus() != queuetest.Unavailable) {
						t.Fatalf("request %d: %v", id, m)
					}
				}
				s, _ = workAs(b, t, r, &queuev1.Hello{})
			}
			if _, err := r.Settle(b, settlingOf(l)); rpc.Code(err) != codes.PermissionDenied {
				t.Errorf("Settle = %v", err)
			}
			seen, err := r.Inspect(a, &queuev1.InspectRequest{Queue: queuetest.Q, Key: "k"})
			if left := time.Until(seen.GetItem().GetDeadline().AsTime()); err != nil || left < 5*time.Minute {
				t.Errorf("the lease ends in %v: %v, %v", left, seen, err)
			}
			if got, err := r.Settle(a, settlingOf(l)); err != nil || got.GetResults()[0].GetStatus() != queuetest.SettledOK {
				t.Errorf("its own Settle = %v, %v", got, err)
			}
		})
	}
}
