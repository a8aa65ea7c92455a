package enginetest

import (
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/core/backoff"
	"github.com/deltaplane/deltaplane/core/workqueue"
)

// partitions checks transactions that are away from the queue's buckets.
func partitions(t *testing.T, fx Fixture) {
	do := func(t *testing.T, e *env, p int, in workqueue.Transaction) *workqueue.Result {
		t.Helper()
		if n := len(e.of.Partitions()); p >= n {
			t.Fatalf("%d partitions, want more than %d", n, p)
		}
		r, err := e.of.Partitions()[p].Apply(t.Context(), &in)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	bucket := func(rate float64, burst int) backoff.Limiter {
		return backoff.Limiter{Kind: backoff.Bucket, Rate: rate, Burst: burst}
	}
	t.Run("each holds keys, order and leases of its own", func(t *testing.T) {
		e := newEnv(t, fx, workqueue.Config{Partitions: 4})
		if n := len(e.of.Partitions()); n != 4 {
			t.Fatalf("%d partitions, want 4", n)
		}
		for p := range 4 {
			do(t, e, p, workqueue.Transaction{Away: p > 0, Ops: []workqueue.Op{add("k" + strconv.Itoa(p))}})
		}
		for p := range 4 {
			r := do(t, e, p, workqueue.Transaction{Away: p > 0, Takes: []workqueue.Take{{Holder: "w", Max: 9}}})
			if diff := cmp.Diff(names(r.Leases), []string{"k" + strconv.Itoa(p)}); diff != "" {
				t.Errorf("partition %d leased (-got +want):\n%s", p, diff)
			}
			st, err := e.of.Partitions()[p].Status(t.Context())
			if want := (workqueue.Counts{Processing: 1}); err != nil || st.Counts != want {
				t.Errorf("partition %d: Status = %+v, %v", p, st, err)
			}
		}
	})
	t.Run("one is paused and closed apart from the others", func(t *testing.T) {
		e := newEnv(t, fx, workqueue.Config{Partitions: 2})
		do(t, e, 1, workqueue.Transaction{Away: true, Ops: []workqueue.Op{{Kind: workqueue.OpPause}, {Kind: workqueue.OpClose}}})
		for p, want := range []bool{false, true} {
			if st, err := e.of.Partitions()[p].Status(t.Context()); err != nil || st.Paused != want || st.Closed != want {
				t.Errorf("partition %d: Status = %+v, %v", p, st, err)
			}
		}
	})
	t.Run("tokens that the first reserved are spent by another", func(t *testing.T) {
		l := backoff.Limiter{Kind: backoff.MaxOf, Of: []backoff.Limiter{bucket(0.5, 2), bucket(0.1, 10)}}
		e := newEnv(t, fx, workqueue.Config{Partitions: 2, Limiter: &l})
		r := do(t, e, 0, workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpReserve, Count: 3}, limited("here", 0), {Kind: workqueue.OpReserve}}})
		from := float64(r.Now)
		want := workqueue.Reply{Count: 3, From: []float64{from, from}}
		if diff := cmp.Diff(r.Replies[0], want); diff != "" {
			t.Fatalf("reserved (-got +want):\n%s", diff)
		}
		if diff := cmp.Diff(r.Replies[2], workqueue.Reply{}); diff != "" {
			t.Errorf("reserving nothing (-got +want):\n%s", diff)
		}
		if got := r.Replies[1].ReadyAt - r.Now; got != 4e6 { // the fourth token of two at once, one in 2 s
			t.Errorf("a charge behind the reserved ones waits %d us, want 4 s", got)
		}
		away := workqueue.Transaction{Away: true, Reserved: []workqueue.Reserved{{From: from, Count: 3}, {From: from, Count: 3}}}
		away.Ops = []workqueue.Op{limited("a", 0), limited("b", 0), limited("c", 0)}
		got := do(t, e, 1, away)
		late := got.Now - r.Now
		for i, at := range []int64{0, 0, 2e6} {
			want := workqueue.Reply{Status: workqueue.Queued, Requeues: 1}
			if at -= late; at > 0 {
				want = workqueue.Reply{Status: workqueue.Delayed, Requeues: 1, ReadyAt: got.Now + at}
			}
			if diff := cmp.Diff(got.Replies[i], want); diff != "" {
				t.Errorf("charge %d (-got +want):\n%s", i, diff)
			}
		}
		if got.Spent != 3 || r.Spent != 0 {
			t.Errorf("spent %d away and %d at home, want 3 and 0", got.Spent, r.Spent)
		}
	})
	t.Run("tokens that were not spent are given back", func(t *testing.T) {
		l := bucket(0.01, 2)
		e := newEnv(t, fx, workqueue.Config{Partitions: 2, Limiter: &l})
		r := do(t, e, 0, workqueue.Transaction{Ops: []workqueue.Op{
			{Kind: workqueue.OpReserve, Count: 2}, {Kind: workqueue.OpReserve, Count: -1}, limited("a", 0), limited("b", 0),
		}})
		want := []workqueue.Reply{
			{Count: 2, From: []float64{float64(r.Now)}},
			{},
			{Status: workqueue.Queued, Requeues: 1},
			{Status: workqueue.Delayed, Requeues: 1, ReadyAt: r.Now + 100e6},
		}
		if diff := cmp.Diff(r.Replies, want); diff != "" {
			t.Errorf("(-got +want):\n%s", diff)
		}
	})
	t.Run("the dispatch limiter admits leases of another", func(t *testing.T) {
		e := newEnv(t, fx, workqueue.Config{Partitions: 2, Dispatch: &workqueue.Rate{QPS: 0.01, Burst: 5}})
		admit := func(n int) workqueue.Reply {
			return do(t, e, 0, workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpAdmit, Count: n}}}).Replies[0]
		}
		if got := admit(3); got.Count != 3 || got.Next != 0 {
			t.Errorf("three of five: %+v", got)
		}
		r := do(t, e, 0, workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpAdmit, Count: 9}}})
		if got := r.Replies[0]; got.Count != 2 || got.Next < r.Now+90e6 || got.Next > r.Now+100e6 {
			t.Errorf("nine of two: %+v, want the next in about 100 s", got)
		}
		admit(-2)
		if got := admit(9); got.Count != 2 {
			t.Errorf("after two came back: %+v", got)
		}
		in := workqueue.Transaction{Away: true, Admitted: 2, Takes: []workqueue.Take{{Holder: "v", Max: 1}, {Holder: "w", Max: 5}}}
		for i := range 4 {
			in.Ops = append(in.Ops, add("k"+strconv.Itoa(i)))
		}
		got := do(t, e, 1, in)
		if diff := cmp.Diff(names(got.Leases), []string{"k0", "k1"}); diff != "" {
			t.Errorf("leased (-got +want):\n%s", diff)
		}
		if got.NextDue != got.Leases[0].Deadline {
			t.Errorf("next due %d, want the deadline: the tokens are the first partition's", got.NextDue)
		}
	})
	t.Run("without a dispatch limiter all are admitted", func(t *testing.T) {
		e := newEnv(t, fx, workqueue.Config{Partitions: 2})
		r := do(t, e, 0, workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpAdmit, Count: 7}, {Kind: workqueue.OpAdmit, Count: -7}}})
		if diff := cmp.Diff(r.Replies, []workqueue.Reply{{Count: 7}, {}}); diff != "" {
			t.Errorf("(-got +want):\n%s", diff)
		}
		r = do(t, e, 1, workqueue.Transaction{Away: true, Ops: []workqueue.Op{add("a")}, Takes: []workqueue.Take{{Holder: "w", Max: 1}}})
		if len(r.Leases) != 1 {
			t.Error("no lease although nothing limits them")
		}
	})
	t.Run("a transaction counts the keys that became dead", func(t *testing.T) {
		e := newEnv(t, fx, workqueue.Config{})
		e.adds(workqueue.Queued, "a", "b")
		ls := e.keys("a", "b")
		r := e.apply(workqueue.Transaction{Ops: []workqueue.Op{add("b"), settle(ls[0], workqueue.Dead), settle(ls[1], workqueue.Dead)}})
		if r.Died != 1 {
			t.Errorf("%d keys became dead, want 1: the other was dirty", r.Died)
		}
	})
	t.Run("aging counts the leases of a partition, in any number of transactions", func(t *testing.T) {
		e := newEnv(t, fx, workqueue.Config{Aging: time.Second})
		e.do(addP("low", -4))
		e.advance(2 * time.Second)
		for i := range 8 {
			e.do(addP("top", 3))
			l := e.get(1)[0]
			if want := []string{"top", "low"}[i/7]; l.Key != want {
				t.Fatalf("lease %d is %q, want %q", i+1, l.Key, want)
			}
			e.end(l, workqueue.Forget, workqueue.Settled)
		}
	})
}
