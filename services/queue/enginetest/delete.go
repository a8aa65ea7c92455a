package enginetest

import (
	"errors"
	"slices"
	"strconv"
	"testing"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

func deletion(t *testing.T, fx Fixture) {
	ctx := t.Context()
	mustBeGone := func(t *testing.T, name string) {
		t.Helper()
		if _, err := fx.Engine.Open(ctx, name); !errors.Is(err, engine.ErrNoQueue) {
			t.Errorf("Open = %v, want ErrNoQueue", err)
		}
		if names, err := fx.Engine.Names(ctx); err != nil || slices.Contains(names, name) {
			t.Errorf("it is among the names %v, %v", names, err)
		}
	}
	t.Run("an unknown queue is refused", func(t *testing.T) {
		if err := fx.Engine.Delete(ctx, "test/none", true); !errors.Is(err, engine.ErrNoQueue) {
			t.Errorf("Delete = %v, want ErrNoQueue", err)
		}
	})
	t.Run("a deleted queue is gone and begins empty when it is made again", func(t *testing.T) {
		e := newEnv(t, fx, workqueue.Config{})
		e.adds(workqueue.Queued, "a", "b")
		was := fx.Engine.Generation()
		if err := fx.Engine.Delete(ctx, e.name, false); err != nil {
			t.Fatal(err)
		}
		mustBeGone(t, e.name)
		if fx.Engine.Generation() == was {
			t.Error("the generation is the same although keys are gone")
		}
		if _, err := e.q.Apply(ctx, &workqueue.Transaction{Ops: []workqueue.Op{add("a")}}); !errors.Is(err, engine.ErrNoQueue) {
			t.Errorf("Apply = %v, want ErrNoQueue", err)
		}
		if err := fx.Engine.Delete(ctx, e.name, false); !errors.Is(err, engine.ErrNoQueue) {
			t.Errorf("Delete of what was deleted = %v, want ErrNoQueue", err)
		}
		q, created, err := fx.Engine.Configure(ctx, e.name, workqueue.Config{})
		if err != nil || !created {
			t.Fatalf("Configure = created %v, %v", created, err)
		}
		e.q = q.Partitions()[0]
		e.adds(workqueue.Queued, "a")
		if r := e.apply(workqueue.Transaction{Takes: []workqueue.Take{{Holder: "w", Max: 9}}}); len(r.Leases) != 1 || r.Leases[0].Key != "a" {
			t.Errorf("leases %v, want a alone", r.Leases)
		}
	})
	t.Run("a queue with leased keys is deleted by force only", func(t *testing.T) {
		e := newEnv(t, fx, workqueue.Config{})
		e.adds(workqueue.Queued, "a", "b")
		lease := e.apply(workqueue.Transaction{Takes: []workqueue.Take{{Holder: "w", Max: 1}}}).Leases[0]
		if err := fx.Engine.Delete(ctx, e.name, false); !errors.Is(err, engine.ErrLeased) {
			t.Fatalf("Delete = %v, want ErrLeased", err)
		}
		e.adds(workqueue.Queued, "c")
		if r := e.apply(workqueue.Transaction{Ops: []workqueue.Op{settle(lease, workqueue.Done)}}); r.Replies[0].Status != workqueue.Settled {
			t.Errorf("after a refusal the lease is %v, want Settled", r.Replies[0].Status)
		}
		e.apply(workqueue.Transaction{Takes: []workqueue.Take{{Holder: "w", Max: 1}}})
		if err := fx.Engine.Delete(ctx, e.name, true); err != nil {
			t.Fatal(err)
		}
		mustBeGone(t, e.name)
	})
	t.Run("an empty queue leaves the generation as it is", func(t *testing.T) {
		e := newEnv(t, fx, workqueue.Config{})
		was := fx.Engine.Generation()
		if err := fx.Engine.Delete(ctx, e.name, false); err != nil {
			t.Fatal(err)
		}
		if now := fx.Engine.Generation(); now != was {
			t.Errorf("generation %q became %q", was, now)
		}
	})
	if fx.Remote {
		return
	}
	t.Run("all partitions are gone and their number may be another one", func(t *testing.T) {
		const name, parts = "test/deleted", 4
		q, _, err := fx.Engine.Configure(ctx, name, workqueue.Config{Partitions: parts})
		if err != nil {
			t.Fatal(err)
		}
		for i, p := range q.Partitions() {
			if _, err := p.Apply(ctx, &workqueue.Transaction{Ops: []workqueue.Op{add("key" + strconv.Itoa(i))}}); err != nil {
				t.Fatal(err)
			}
		}
		last := q.Partitions()[parts-1]
		r, err := last.Apply(ctx, &workqueue.Transaction{Takes: []workqueue.Take{{Holder: "w", Max: 1}}})
		if err != nil || len(r.Leases) != 1 {
			t.Fatal(r, err)
		}
		if err := fx.Engine.Delete(ctx, name, false); !errors.Is(err, engine.ErrLeased) {
			t.Fatalf("Delete = %v, want ErrLeased", err)
		}
		if _, err := last.Apply(ctx, &workqueue.Transaction{Ops: []workqueue.Op{settle(r.Leases[0], workqueue.Done)}}); err != nil {
			t.Fatal(err)
		}
		if err := fx.Engine.Delete(ctx, name, false); err != nil {
			t.Fatal(err)
		}
		mustBeGone(t, name)
		again, created, err := fx.Engine.Configure(ctx, name, workqueue.Config{Partitions: 2})
		if err != nil || !created {
			t.Fatalf("Configure = created %v, %v", created, err)
		}
		for i, p := range again.Partitions() {
			if st, err := p.Status(ctx); err != nil || st.Counts != (workqueue.Counts{}) {
				t.Errorf("partition %d holds %+v, %v", i, st.Counts, err)
			}
		}
		for i, p := range q.Partitions() {
			if _, err := p.Apply(ctx, &workqueue.Transaction{Ops: []workqueue.Op{add("k")}}); !errors.Is(err, engine.ErrNoQueue) {
				t.Errorf("a transaction of the partition %d before = %v, want ErrNoQueue", i, err)
			}
		}
	})
}
