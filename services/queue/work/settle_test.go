package work_test

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/rpc"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/memory"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
)

// halfDown is an engine in which one queue settles nothing.
type halfDown struct {
	engine.Engine
	name string
}

type noSettling struct{ engine.Queue }

func (h halfDown) Configure(ctx context.Context, name string, cfg workqueue.Config) (engine.Queue, bool, error) {
	q, created, err := h.Engine.Configure(ctx, name, cfg)
	if name == h.name {
		q = noSettling{q}
	}
	return q, created, err
}

func (n noSettling) Partitions() []engine.Partition {
	var out []engine.Partition
	for _, p := range n.Queue.Partitions() {
		out = append(out, noSettlingPart{p})
	}
	return out
}

type noSettlingPart struct{ engine.Partition }

func (n noSettlingPart) Apply(ctx context.Context, t *workqueue.Transaction) (*workqueue.Result, error) {
	for _, op := range t.Ops {
		if op.Kind == workqueue.OpSettle {
			return nil, engine.ErrUnavailable
		}
	}
	return n.Partition.Apply(ctx, t)
}

func TestSettlementsOfSeveralQueuesSayWhatIsSure(t *testing.T) {
	t.Parallel()
	e, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	r := queuetest.Serve(t, queue.Config{}, halfDown{e, "down"})
	ctx := t.Context()
	held := map[string]*queuev1.Settlement{}
	for _, name := range []string{"up", "down"} {
		if _, err := r.ConfigureQueue(ctx, &queuev1.ConfigureQueueRequest{Config: &queuev1.QueueConfig{Name: name}}); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Add(ctx, &queuev1.AddRequest{Queue: name, Items: []*queuev1.AddItem{{Key: "a"}}}); err != nil {
			t.Fatal(err)
		}
		got, err := r.Get(ctx, &queuev1.GetRequest{Queue: name, SessionId: "w"})
		if err != nil || len(got.GetLeases()) != 1 {
			t.Fatalf("Get = %v, %v", got, err)
		}
		held[name] = &queuev1.Settlement{Queue: name, Key: "a", Token: got.GetLeases()[0].GetToken(), Outcome: queuetest.Done}
	}
	settle := func(all ...*queuev1.Settlement) error {
		_, err := r.Settle(ctx, &queuev1.SettleRequest{SessionId: "w", Settlements: all})
		return err
	}
	nowhere := &queuev1.Settlement{Queue: "nowhere", Key: "a", Token: 1, Outcome: queuetest.Done}
	if err := settle(held["up"], nowhere); rpc.Reason(err) != "QUEUE_NOT_FOUND" {
		t.Errorf("with a queue that does not exist: %v", err)
	}
	ext, err := r.Extend(ctx, &queuev1.ExtendRequest{SessionId: "w"})
	if err != nil || ext.GetExtended() != 2 {
		t.Errorf("after NOT_FOUND %v are held, %v: want both, nothing was settled", ext, err)
	}
	if err := settle(held["down"]); status.Code(err) != codes.Unavailable {
		t.Errorf("where surely nothing was settled: %v", err)
	}
	if err := settle(held["up"], held["down"]); rpc.Reason(err) != "STORE_OUTCOME_UNKNOWN" {
		t.Errorf("where one of two was settled: %v", err)
	}
}
