package workqueue_test

import (
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/deltaplane/deltaplane/core/workqueue"
)

func at(collection string, epoch uint64, rv string) workqueue.Mark {
	return workqueue.Mark{Collection: collection, Epoch: epoch, RV: rv}
}

// What the next worker of a key has to see after a settlement.
func TestASettlementLeavesInTheBarrierWhatTheNextWorkerMayNotHaveSeen(t *testing.T) {
	t.Parallel()
	type marks = []workqueue.Mark
	for _, c := range []struct {
		name                  string
		added, read, wrote    marks
		addedWhileHeld, after marks
	}{
		{name: "nothing was asked for", read: marks{at("pods", 1, "9")}},
		{name: "nothing was read", added: marks{at("pods", 1, "7")}, after: marks{at("pods", 1, "7")}},
		{name: "it was read at the revision", added: marks{at("pods", 1, "7")}, read: marks{at("pods", 1, "7")}},
		{name: "it was read later", added: marks{at("pods", 1, "7")}, read: marks{at("pods", 1, "10")}},
		{name: "it was read earlier", added: marks{at("pods", 1, "10")}, read: marks{at("pods", 1, "9")}, after: marks{at("pods", 1, "10")}},
		{
			name:  "a collection that was not read stays, whatever was read of others",
			added: marks{at("jobs", 1, "3"), at("nodes", 1, "4"), at("pods", 1, "5")}, read: marks{at("nodes", 1, "99")},
			after: marks{at("jobs", 1, "3"), at("pods", 1, "5")},
		},
		{name: "what was read of another collection alone takes nothing away", added: marks{at("pods", 1, "5")}, read: marks{at("jobs", 1, "99")}, after: marks{at("pods", 1, "5")}},
		{name: "it was read in an epoch before", added: marks{at("pods", 2, "5")}, read: marks{at("pods", 1, "99")}, after: marks{at("pods", 2, "5")}},
		{name: "it was read in an epoch after", added: marks{at("pods", 1, "99")}, read: marks{at("pods", 2, "1")}},
		{name: "what was written is asked for", wrote: marks{at("pods", 1, "8")}, after: marks{at("pods", 1, "8")}},
		{name: "what was written beside what was read of another collection", read: marks{at("jobs", 1, "9")}, wrote: marks{at("pods", 1, "8")}, after: marks{at("pods", 1, "8")}},
		{name: "what was written stays though it was read", read: marks{at("pods", 1, "8")}, wrote: marks{at("pods", 1, "8")}, after: marks{at("pods", 1, "8")}},
		{name: "what was written stays though more was read", read: marks{at("pods", 1, "12")}, wrote: marks{at("pods", 1, "8")}, after: marks{at("pods", 1, "8")}},
		{
			name:  "what was written keeps what was asked for of its collection, and no other's",
			added: marks{at("jobs", 1, "3"), at("pods", 1, "20")}, read: marks{at("jobs", 1, "3"), at("pods", 1, "20")}, wrote: marks{at("pods", 1, "8")},
			after: marks{at("pods", 1, "20")},
		},
		{
			name: "what was written joins what was not read", added: marks{at("jobs", 1, "3")}, wrote: marks{at("pods", 1, "8")},
			after: marks{at("jobs", 1, "3"), at("pods", 1, "8")},
		},
		{
			name:  "what was asked for meanwhile is asked for still, unless it was read",
			added: marks{at("pods", 1, "5")}, read: marks{at("nodes", 1, "9"), at("pods", 1, "6")},
			addedWhileHeld: marks{at("nodes", 1, "9"), at("pods", 1, "7")}, after: marks{at("pods", 1, "7")},
		},
	} {
		for _, outcome := range []workqueue.Outcome{workqueue.Done, workqueue.Forget, workqueue.Retry, workqueue.After, workqueue.Release, workqueue.Dead} {
			t.Run(c.name+"/"+strconv.Itoa(int(outcome)), func(t *testing.T) {
				t.Parallel()
				m := workqueue.New(workqueue.Config{})
				now := int64(1_700_000_000_000_000)
				apply := func(take int, ops ...workqueue.Op) *workqueue.Result {
					return m.Apply(now, &workqueue.Transaction{Ops: ops, Takes: []workqueue.Take{{Holder: "w", Max: take}}})
				}
				add := func(marks marks) workqueue.Op {
					return workqueue.Op{Kind: workqueue.OpAdd, Key: "k", Level: workqueue.Level(0), More: &workqueue.More{Barrier: workqueue.NewBarrier(marks...)}}
				}
				l := apply(1, add(c.added)).Leases[0]
				if diff := cmp.Diff([]workqueue.Mark(l.Barrier), c.added, cmpopts.EquateEmpty()); diff != "" {
					t.Fatalf("of the lease (-got +want):\n%s", diff)
				}
				if c.addedWhileHeld != nil {
					apply(0, add(c.addedWhileHeld))
				}
				if got := apply(0, workqueue.Op{
					Kind: workqueue.OpSettle, Key: "k", Token: l.Token, Outcome: outcome, Delay: 1,
					More: &workqueue.More{Barrier: workqueue.NewBarrier(c.read...), Wrote: workqueue.NewBarrier(c.wrote...)},
				}).Replies[0].Status; got != workqueue.Settled && got != workqueue.Requeued {
					t.Fatalf("settled: status %d", got)
				}
				next := apply(1, add(nil)).Leases[0]
				if diff := cmp.Diff([]workqueue.Mark(next.Barrier), c.after, cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("of the next lease (-got +want):\n%s", diff)
				}
			})
		}
	}
}

func TestASettlementKeepsNoMoreCollectionsThanABarrierHolds(t *testing.T) {
	t.Parallel()
	m := workqueue.New(workqueue.Config{})
	now := int64(1_700_000_000_000_000)
	r := m.Apply(now, &workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpAdd, Key: "k"}}, Takes: []workqueue.Take{{Holder: "w", Max: 1}}})
	var wrote workqueue.Barrier
	for i := range workqueue.MaxMarks + 1 {
		wrote = wrote.Merge([]workqueue.Mark{at("c"+strconv.Itoa(100+i), 1, "1")})
	}
	r = m.Apply(now, &workqueue.Transaction{Ops: []workqueue.Op{
		{Kind: workqueue.OpSettle, Key: "k", Token: r.Leases[0].Token, Outcome: workqueue.Done, More: &workqueue.More{Wrote: wrote}},
		{Kind: workqueue.OpAdd, Key: "k"},
	}, Takes: []workqueue.Take{{Holder: "w", Max: 1}}})
	if diff := cmp.Diff(r.Leases[0].Barrier, wrote[:workqueue.MaxMarks]); diff != "" {
		t.Errorf("of the next lease (-got +want):\n%s", diff)
	}
}
