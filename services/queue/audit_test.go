package queue_test

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/memory"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
)

// orphaned is an engine whose audits are answered by a test.
type orphaned struct {
	engine.Engine
	audits *[]time.Duration // when there was one, since it was made
	answer func(at int) (workqueue.Reply, error)
}

type orphanedQueue struct {
	engine.Queue
	e *orphaned
}

type orphanedPart struct {
	engine.Partition
	e     *orphaned
	began time.Time
}

func (e *orphaned) Configure(ctx context.Context, name string, cfg workqueue.Config) (engine.Queue, bool, error) {
	q, created, err := e.Engine.Configure(ctx, name, cfg)
	return orphanedQueue{q, e}, created, err
}

func (q orphanedQueue) Partitions() []engine.Partition {
	return []engine.Partition{&orphanedPart{q.Queue.Partitions()[0], q.e, time.Now()}}
}

func (p *orphanedPart) Apply(ctx context.Context, t *workqueue.Transaction) (*workqueue.Result, error) {
	r, err := p.Partition.Apply(ctx, t)
	for i, op := range t.Ops {
		if op.Kind == workqueue.OpAudit {
			*p.e.audits = append(*p.e.audits, time.Since(p.began).Round(time.Second))
			var failed error
			if r.Replies[i], failed = p.e.answer(op.Count); failed != nil {
				return nil, failed
			}
		}
	}
	return r, err
}

func TestKeysHeldWithoutALeaseAreLookedForWhileAnyAreHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var (
			audits []time.Duration
			from   []int
			told   bytes.Buffer
		)
		m, err := memory.New(memory.Config{})
		if err != nil {
			t.Fatal(err)
		}
		e := &orphaned{Engine: m, audits: &audits, answer: func(at int) (workqueue.Reply, error) {
			from = append(from, at)
			switch len(from) {
			case 1:
				return workqueue.Reply{Next: 7}, nil
			case 2:
				return workqueue.Reply{}, engine.ErrUnavailable
			case 3:
				return workqueue.Reply{Count: 2, Next: 9}, nil
			}
			return workqueue.Reply{}, nil
		}}
		sleep := func(d time.Duration) { time.Sleep(d); synctest.Wait() }
		s, gather := shell(t, e, slog.New(slog.NewTextHandler(&told, nil)))
		ctx := t.Context()
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		_, err = s.ConfigureQueue(ctx, &queuev1.ConfigureQueueRequest{Config: &queuev1.QueueConfig{Name: queuetest.Q, LeaseDuration: queuetest.Seconds(45)}})
		must(err)
		sleep(3 * time.Hour)
		if len(audits) != 0 {
			t.Fatalf("audits of a queue that holds nothing after %v", audits)
		}
		_, err = s.Add(ctx, &queuev1.AddRequest{Queue: queuetest.Q, Items: []*queuev1.AddItem{{Key: "a"}}})
		must(err)
		began := 3 * time.Hour // the first transaction that somebody asked for
		res, err := s.Get(ctx, &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "w"})
		must(err)
		sleep(41 * time.Second)
		for i, at := range audits {
			audits[i] = at - began
		}
		if want := []time.Duration{0, 10 * time.Second, 20 * time.Second, 30 * time.Second, 40 * time.Second}; !slices.Equal(audits, want) {
			t.Errorf("audits after %v, want %v", audits, want)
		}
		if want := []int{0, 7, 7, 9, 0}; !slices.Equal(from, want) {
			t.Errorf("they began at %v, want %v: one that failed is made again", from, want)
		}
		if n := gather()["deltaplane_queue_leases_repaired_total"].GetCounter().GetValue(); n != 2 {
			t.Errorf("deltaplane_queue_leases_repaired_total is %v, want 2", n)
		}
		if log := told.String(); strings.Count(log, "held without a lease") != 1 || !strings.Contains(log, "queue="+queuetest.Q+" count=2 after=45s") {
			t.Errorf("logged %q, want one line with queue and number", log)
		}
		_, err = s.Settle(ctx, &queuev1.SettleRequest{SessionId: "w", Settlements: []*queuev1.Settlement{{Queue: queuetest.Q, Key: "a", Token: res.GetLeases()[0].GetToken(), Outcome: queuetest.Done}}})
		must(err)
		synctest.Wait()
		n := len(audits)
		sleep(time.Hour)
		if len(audits) > n {
			t.Errorf("%d more audits when nothing was held any more", len(audits)-n)
		}
	})
}
