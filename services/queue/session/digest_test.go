package session_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
)

func marked(epoch uint64, rv string) []*deltav1.CollectionRevision {
	return []*deltav1.CollectionRevision{{Collection: "dev/pods.v1", Revision: &deltav1.Revision{Epoch: epoch, ResourceVersion: rv}}}
}

func TestASettlementNumberUsedForSomethingElseIsRefused(t *testing.T) {
	t.Parallel()
	r := queuetest.Start(t, "memory", queue.Config{})
	r.Configure(t)
	other := "dev/other"
	if _, err := r.ConfigureQueue(t.Context(), &queuev1.ConfigureQueueRequest{Config: &queuev1.QueueConfig{Name: other}}); err != nil {
		t.Fatal(err)
	}
	first := &queuev1.Settlement{
		Queue: queuetest.Q, Key: "a", Token: 7, Outcome: queuev1.Outcome_OUTCOME_RETRY_AFTER, Delay: durationpb.New(time.Second),
		Priority: wrapperspb.Int32(1), Reason: "r", ReadAt: marked(1, "5"), Wrote: marked(1, "6"),
	}
	second := &queuev1.Settlement{Queue: queuetest.Q, Key: "b", Token: 8, Outcome: queuev1.Outcome_OUTCOME_RELEASE}
	id := uint64(0)
	for name, change := range map[string]func(all []*queuev1.Settlement) []*queuev1.Settlement{
		"queue":           func(all []*queuev1.Settlement) []*queuev1.Settlement { all[0].Queue = other; return all },
		"another queue's": func(all []*queuev1.Settlement) []*queuev1.Settlement { all[1].Queue = other; return all },
		"key":             func(all []*queuev1.Settlement) []*queuev1.Settlement { all[0].Key = "c"; return all },
		"token":           func(all []*queuev1.Settlement) []*queuev1.Settlement { all[0].Token++; return all },
		"outcome": func(all []*queuev1.Settlement) []*queuev1.Settlement {
			all[0].Outcome = queuev1.Outcome_OUTCOME_RELEASE
			return all
		},
		"delay":       func(all []*queuev1.Settlement) []*queuev1.Settlement { all[0].Delay = nil; return all },
		"priority":    func(all []*queuev1.Settlement) []*queuev1.Settlement { all[0].Priority.Value++; return all },
		"no priority": func(all []*queuev1.Settlement) []*queuev1.Settlement { all[0].Priority = nil; return all },
		"priority 0": func(all []*queuev1.Settlement) []*queuev1.Settlement {
			all[1].Priority = wrapperspb.Int32(0)
			return all
		},
		"reason": func(all []*queuev1.Settlement) []*queuev1.Settlement { all[0].Reason = "s"; return all },
		"read_at": func(all []*queuev1.Settlement) []*queuev1.Settlement {
			all[0].ReadAt[0].Revision.ResourceVersion = "4"
			return all
		},
		"its epoch": func(all []*queuev1.Settlement) []*queuev1.Settlement { all[0].ReadAt[0].Revision.Epoch = 2; return all },
		"wrote": func(all []*queuev1.Settlement) []*queuev1.Settlement {
			all[0].Wrote[0].Revision.ResourceVersion = "7"
			return all
		},
		"collection": func(all []*queuev1.Settlement) []*queuev1.Settlement {
			all[0].Wrote[0].Collection = "dev/nodes.v1"
			return all
		},
		"read for wrote": func(all []*queuev1.Settlement) []*queuev1.Settlement {
			all[0].ReadAt, all[0].Wrote = all[0].Wrote, all[0].ReadAt
			return all
		},
		"order": func(all []*queuev1.Settlement) []*queuev1.Settlement { all[0], all[1] = all[1], all[0]; return all },
		"one more": func(all []*queuev1.Settlement) []*queuev1.Settlement {
			return append(all, &queuev1.Settlement{Queue: queuetest.Q, Key: "c", Token: 9, Outcome: queuetest.Done})
		},
		"one less": func(all []*queuev1.Settlement) []*queuev1.Settlement { return all[:1] },
	} {
		id++
		ask := func(all []*queuev1.Settlement) error {
			_, err := r.Settle(t.Context(), &queuev1.SettleRequest{SessionId: "w", RequestId: id, Settlements: all})
			return err
		}
		fresh := func() []*queuev1.Settlement {
			return []*queuev1.Settlement{proto.CloneOf(first), proto.CloneOf(second)}
		}
		if err := ask(fresh()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := ask(change(fresh())); rpc.Reason(err) != "REQUEST_ID_REUSED" {
			t.Errorf("%s differs: %v, want REQUEST_ID_REUSED", name, err)
		}
		if err := ask(fresh()); err != nil {
			t.Errorf("%s: the same request again: %v", name, err)
		}
	}
}

func TestWhichSettlementIsOfWhichQueueIsPartOfARequest(t *testing.T) {
	t.Parallel()
	r := queuetest.Start(t, "memory", queue.Config{})
	r.Configure(t)
	other := "dev/other"
	if _, err := r.ConfigureQueue(t.Context(), &queuev1.ConfigureQueueRequest{Config: &queuev1.QueueConfig{Name: other}}); err != nil {
		t.Fatal(err)
	}
	ask := func(queues ...string) error {
		m := &queuev1.SettleRequest{SessionId: "w", RequestId: 1}
		for i, name := range queues {
			m.Settlements = append(m.Settlements, &queuev1.Settlement{Queue: name, Key: "k", Token: uint64(i + 1), Outcome: queuetest.Done})
		}
		_, err := r.Settle(t.Context(), m)
		return err
	}
	if err := ask(queuetest.Q, other, queuetest.Q); err != nil {
		t.Fatal(err)
	}
	if err := ask(queuetest.Q, other, other); rpc.Reason(err) != "REQUEST_ID_REUSED" {
		t.Errorf("another queue of the third: %v, want REQUEST_ID_REUSED", err)
	}
}

func TestABatchNumberUsedForSomethingElseIsRefused(t *testing.T) {
	t.Parallel()
	queuetest.Partitioned(t, func(t *testing.T, r *queuetest.Rig) {
		other := "dev/other"
		if _, err := r.ConfigureQueue(t.Context(), &queuev1.ConfigureQueueRequest{Config: &queuev1.QueueConfig{Name: other}}); err != nil {
			t.Fatal(err)
		}
		ops := func() []*queuev1.ProduceOp {
			return []*queuev1.ProduceOp{
				{Key: "a", Kind: queuev1.ProduceKind_PRODUCE_KIND_ADD_AFTER, Delay: durationpb.New(time.Hour), Priority: 1, Traceparent: "00-x", Barrier: marked(1, "5")},
				{Key: "b"},
			}
		}
		id := uint64(0)
		for name, change := range map[string]func(b *queuev1.ProduceBatch){
			"queue":    func(b *queuev1.ProduceBatch) { b.Queue = other },
			"key":      func(b *queuev1.ProduceBatch) { b.Ops[0].Key = "c" },
			"kind":     func(b *queuev1.ProduceBatch) { b.Ops[1].Kind = queuev1.ProduceKind_PRODUCE_KIND_ADD_RATE_LIMITED },
			"question": func(b *queuev1.ProduceBatch) { b.Ops[1].Kind = queuev1.ProduceKind_PRODUCE_KIND_NUM_REQUEUES },
			"delay":    func(b *queuev1.ProduceBatch) { b.Ops[0].Delay.Seconds++ },
			"policy":   func(b *queuev1.ProduceBatch) { b.Ops[0].Policy = queuev1.DelayPolicy_DELAY_POLICY_LAST },
			"priority": func(b *queuev1.ProduceBatch) { b.Ops[1].Priority = 2 },
			"trace":    func(b *queuev1.ProduceBatch) { b.Ops[0].Traceparent = "" },
			"barrier":  func(b *queuev1.ProduceBatch) { b.Ops[0].Barrier[0].Revision.ResourceVersion = "6" },
			"order":    func(b *queuev1.ProduceBatch) { b.Ops[0], b.Ops[1] = b.Ops[1], b.Ops[0] },
			"one more": func(b *queuev1.ProduceBatch) { b.Ops = append(b.Ops, &queuev1.ProduceOp{Key: "c"}) },
			"one bad":  func(b *queuev1.ProduceBatch) { b.Ops[1].Key = "" },
		} {
			id++
			p := r.OpenProduce(t, "p")
			send := func(b *queuev1.ProduceBatch) string {
				p.Send(b.GetRequestId(), b.GetQueue(), b.GetOps()...)
				return queuetest.Wait(t, p.Produced).GetError().GetReason()
			}
			fresh := &queuev1.ProduceBatch{RequestId: id, Queue: queuetest.Q, Ops: ops()}
			if got := send(fresh); got != "" {
				t.Fatalf("%s: %s", name, got)
			}
			p = r.OpenProduce(t, "p") // the number is the session's
			changed := proto.CloneOf(fresh)
			change(changed)
			if got := send(changed); got != "REQUEST_ID_REUSED" {
				t.Errorf("%s differs: %q, want REQUEST_ID_REUSED", name, got)
			}
			if got := send(fresh); got != "" {
				t.Errorf("%s: the same batch again: %s", name, got)
			}
		}
		p := r.OpenProduce(t, "another")
		p.Send(1, queuetest.Q, queuetest.PlainAdds("x")...)
		if got := queuetest.Wait(t, p.Produced); got.GetError() != nil {
			t.Errorf("the same number in another session: %v", got)
		}
	})
}
