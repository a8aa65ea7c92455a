package admin_test

import (
	"context"
	"testing"
	"time"

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
