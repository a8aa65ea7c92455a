package admin_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
)

func TestInspectTellsWhatDecidesWhenAKeyRuns(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		r := queuetest.Start(t, kind, queue.Config{})
		r.Configure(t)
		look := func() *queuev1.Surroundings {
			t.Helper()
			answer, err := r.Inspect(context.Background(), &queuev1.InspectRequest{Queue: queuetest.Q, Key: "k", Surroundings: true})
			if err != nil {
				t.Fatal(err)
			}
			return answer.GetSurroundings()
		}
		if s := look(); s.GetWorkers() != 0 || s.GetHolder() != nil || s.GetClockStep() != nil || s.GetRefusesAdds() != "" || s.GetQueue().GetConfig().GetName() != queuetest.Q {
			t.Errorf("of an idle queue: %v", s)
		}
		w := r.OpenWork(t, &queuev1.Hello{SessionId: "w", Client: "controllers-0/test"})
		r.OpenWork(t, &queuev1.Hello{SessionId: "none"}) // without credit
		w.Give(2)
		r.AddKeys(t, "k")
		queuetest.Wait(t, w.Leases)
		s := look()
		h := s.GetHolder()
		if s.GetWorkers() != 2 || s.GetWorkersFree() != 1 || !h.GetConnected() || h.GetClient() != "controllers-0/test" || h.GetLease().AsDuration() != 30*time.Second {
			t.Errorf("while a worker holds the key: %v", s)
		}
		r.Advance(10 * time.Second)
		w.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Extend{Extend: &queuev1.ExtendBatch{}}})
		queuetest.Wait(t, w.Extended)
		if later := look().GetHolder().GetExtendedAt().AsTime(); later.Sub(h.GetExtendedAt().AsTime()) < 10*time.Second {
			t.Errorf("extended at %v, and before at %v", later, h.GetExtendedAt().AsTime())
		}
		answer, err := r.Inspect(context.Background(), &queuev1.InspectRequest{Queue: queuetest.Q, Key: "k"})
		if err != nil || answer.GetSurroundings() != nil {
			t.Errorf("nobody asked for %v (%v)", answer.GetSurroundings(), err)
		}
	})
}

func TestTheHistoryNamesTheChangesOfAnAddAndTheWritesOfASettlement(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		r := queuetest.Start(t, kind, queue.Config{})
		r.Configure(t)
		ctx := t.Context()
		cause := &deltav1.CollectionRevision{Collection: "dev/pods.v1", Revision: &deltav1.Revision{Epoch: 1785012345, ResourceVersion: "41"}}
		const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
		if _, err := r.Add(ctx, &queuev1.AddRequest{Queue: queuetest.Q, Items: []*queuev1.AddItem{{
			Key: "k", Traceparent: trace, Barrier: []*deltav1.CollectionRevision{cause},
		}}}); err != nil {
			t.Fatal(err)
		}
		got, err := r.Get(ctx, &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "w", Wait: queuetest.Seconds(10)})
		if err != nil || len(got.GetLeases()) != 1 {
			t.Fatalf("Get = %v, %v", got, err)
		}
		settle := func(writes ...*queuev1.Write) error {
			_, err := r.Settle(ctx, &queuev1.SettleRequest{SessionId: "w", Settlements: []*queuev1.Settlement{{
				Queue: queuetest.Q, Key: "k", Token: got.GetLeases()[0].GetToken(), Outcome: queuev1.Outcome_OUTCOME_DONE, Reason: "wrote one", Writes: writes,
			}}})
			return err
		}
		long := &queuev1.Write{Verb: "update", Collection: "dev/pods.v1", Key: strings.Repeat("k", 1000), ResourceVersion: "43"}
		for name, bad := range map[string]*queuev1.Write{
			"verb": {Verb: strings.Repeat("v", 17)}, "key": {Key: "a\x1fb"}, "resource_version": {ResourceVersion: strings.Repeat("1", 129)}, "collection": {Collection: strings.Repeat("c", 513)},
		} {
			if v := rpc.Violations(settle(bad)); v["settlements[0].writes."+name] == "" {
				t.Errorf("a wrong %s: %v", name, v)
			}
		}
		if err := settle(&queuev1.Write{Verb: "create", Collection: "dev/pods.v1", Key: "ns/a", ResourceVersion: "42"}, long); err != nil {
			t.Fatal(err)
		}
		answer, err := r.Inspect(ctx, &queuev1.InspectRequest{Queue: queuetest.Q, Key: "k"})
		if err != nil || len(answer.GetHistory()) != 3 {
			t.Fatalf("Inspect = %v, %v", answer, err)
		}
		settled, added := answer.GetHistory()[0], answer.GetHistory()[2]
		if w := settled.GetWrites(); len(w) != 1 || w[0].GetKey() != "ns/a" || w[0].GetResourceVersion() != "42" || w[0].GetVerb() != "create" || settled.GetReason() != "wrote one" {
			t.Errorf("settled: %v; want the write that fits", settled)
		}
		if b := added.GetBarrier(); len(b) != 1 || b[0].GetRevision().GetResourceVersion() != "41" || b[0].GetRevision().GetEpoch() != 1785012345 || added.GetTraceparent() != trace {
			t.Errorf("added: %v; want its trace and its change", added)
		}
	})
}
