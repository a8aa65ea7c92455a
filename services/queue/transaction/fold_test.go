package transaction

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/core/workqueue"
)

// TestFoldedTransactionsDoWhatTheUnfoldedDo holds transactions with duplicates made one
// against the same transactions as they came, by random histories on two machines.
func TestFoldedTransactionsDoWhatTheUnfoldedDo(t *testing.T) {
	t.Parallel()
	for round := range uint64(300) {
		rnd := rand.New(rand.NewPCG(round, 1))
		folded, plain := workqueue.New(workqueue.Config{}), workqueue.New(workqueue.Config{})
		var f fold
		var held []workqueue.Lease
		saved := 0
		for tx := range int64(20) {
			now := 1_000_000 + tx*1000
			var calls []*Call
			for range 1 + rnd.IntN(6) {
				c := &Call{Done: func(*Call) {}, ReadsReplies: rnd.IntN(2) == 0}
				for range 1 + rnd.IntN(8) {
					c.Ops = append(c.Ops, anyOp(rnd, held))
				}
				calls = append(calls, c)
			}
			take := []workqueue.Take{{Holder: "w", Max: rnd.IntN(4)}}
			short, long := workqueue.Transaction{Takes: take}, workqueue.Transaction{Takes: take}
			if n := f.take(&short, calls, 1<<20); n != len(calls) {
				t.Fatalf("%d of %d calls taken", n, len(calls))
			}
			for _, c := range calls {
				long.Ops = append(long.Ops, c.Ops...)
			}
			saved += len(long.Ops) - len(short.Ops)
			got, want := folded.Apply(now, &short), plain.Apply(now, &long)
			at := 0
			for n, c := range calls {
				if c.folded == nil {
					c.Replies = got.Replies[c.first : c.first+len(c.Ops)]
				} else {
					c.folded.replies = got.Replies
				}
				for i := range c.Ops {
					if diff := cmp.Diff(want.Replies[at], c.Reply(i)); diff != "" {
						t.Fatalf("round %d, transaction %d, call %d, operation %d %+v (-unfolded +folded):\n%s", round, tx, n, i, c.Ops[i], diff)
					}
					at++
				}
			}
			if diff := cmp.Diff(want.Leases, got.Leases); diff != "" {
				t.Fatalf("round %d, transaction %d: leases (-unfolded +folded):\n%s", round, tx, diff)
			}
			if want.Counts != got.Counts || want.Added != got.Added || want.Retried != got.Retried || want.NextDue != got.NextDue {
				t.Fatalf("round %d, transaction %d: %+v, want %+v", round, tx, got, want)
			}
			held = append(held, got.Leases...)
		}
		if saved == 0 {
			t.Fatalf("round %d: nothing was folded", round)
		}
	}
}

func anyOp(rnd *rand.Rand, held []workqueue.Lease) workqueue.Op {
	op := workqueue.Op{Kind: workqueue.OpAdd, Key: strconv.Itoa(rnd.IntN(5)), Level: uint8(3 + rnd.IntN(3)*rnd.IntN(2))}
	switch rnd.IntN(12) {
	case 0:
		op.Delay = 500
	case 1:
		op.Limited = true
	case 2:
		op = workqueue.Op{Kind: workqueue.OpForget, Key: op.Key}
	case 3, 4:
		if len(held) > 0 {
			l := held[rnd.IntN(len(held))]
			op = workqueue.Op{Kind: workqueue.OpSettle, Key: l.Key, Token: l.Token, Outcome: workqueue.Done}
		}
	case 5:
		op = workqueue.Op{Kind: []workqueue.OpKind{workqueue.OpClose, workqueue.OpOpen, workqueue.OpOpen, workqueue.OpOpen}[rnd.IntN(4)]}
	}
	if op.Kind == workqueue.OpAdd {
		if rnd.IntN(3) == 0 {
			op.Trace = fmt.Sprintf("00-%d", rnd.IntN(1000))
		}
		for i := range rnd.IntN(3) {
			if op.More == nil {
				op.More = &workqueue.More{}
			}
			op.More.Barrier = op.More.Barrier.Merge([]workqueue.Mark{{Collection: "c" + strconv.Itoa(i*rnd.IntN(2)), Epoch: 1, RV: strconv.Itoa(rnd.IntN(100))}})
		}
	}
	return op
}

func TestATransactionIsNotMuchLongerThanItsLimit(t *testing.T) {
	t.Parallel()
	var f fold
	adds := func(n int, key func(int) string) []*Call {
		var calls []*Call
		for i := range n {
			c := &Call{}
			for k := range 10 {
				c.Ops = append(c.Ops, workqueue.Op{Kind: workqueue.OpAdd, Key: key(10*i + k)})
			}
			calls = append(calls, c)
		}
		return calls
	}
	var tx workqueue.Transaction
	if n := f.take(&tx, adds(100, strconv.Itoa), 50); n != 5 || len(tx.Ops) != 50 {
		t.Errorf("of distinct keys %d calls with %d operations, want 5 with 50", n, len(tx.Ops))
	}
	tx = workqueue.Transaction{}
	if n := f.take(&tx, adds(100, func(i int) string { return strconv.Itoa(i % 7) }), 50); n != 50*maxFold/10 || len(tx.Ops) != 7 {
		t.Errorf("of 7 keys %d calls with %d operations, want %d with 7", n, len(tx.Ops), 50*maxFold/10)
	}
	tx = workqueue.Transaction{}
	if n := f.take(&tx, adds(1, strconv.Itoa), 5); n != 1 || len(tx.Ops) != 10 {
		t.Errorf("of one call %d, with %d operations: it goes in whatever its size", n, len(tx.Ops))
	}
}

func TestOfManyTracesTheLastAreKept(t *testing.T) {
	t.Parallel()
	m := workqueue.New(workqueue.Config{})
	var f fold
	c := &Call{}
	for i := range 100 {
		c.Ops = append(c.Ops, workqueue.Op{Kind: workqueue.OpAdd, Key: "k", Trace: "t" + strconv.Itoa(i)})
	}
	tx := workqueue.Transaction{Takes: []workqueue.Take{{Holder: "w", Max: 1}}}
	f.take(&tx, []*Call{c}, 1000)
	if len(tx.Ops) != workqueue.MaxTraces {
		t.Errorf("%d operations, want %d", len(tx.Ops), workqueue.MaxTraces)
	}
	r := m.Apply(1_000_000, &tx)
	want := []string{"t92", "t93", "t94", "t95", "t96", "t97", "t98", "t99"}
	if got := r.Leases[0].Traces; !slices.Equal(got, want) {
		t.Errorf("traces %q, want %q", got, want)
	}
}

// A barrier that is full refuses the add that would overfill it, and no other.
func TestADuplicateIsNotRefusedForAnothersBarrier(t *testing.T) {
	t.Parallel()
	marks := func(from, n int) *workqueue.More {
		var all []workqueue.Mark
		for i := range n {
			all = append(all, workqueue.Mark{Collection: "c" + strconv.Itoa(from+i), Epoch: 1, RV: "1"})
		}
		return &workqueue.More{Barrier: workqueue.NewBarrier(all...)}
	}
	for name, second := range map[string]*workqueue.More{"without one": nil, "with fewer collections": marks(workqueue.MaxMarks-1, 1)} {
		m := workqueue.New(workqueue.Config{})
		full := &workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpAdd, Key: "k", Delay: 1e9, More: marks(0, workqueue.MaxMarks-1)}}}
		m.Apply(1_000_000, full)
		var f fold
		var tx workqueue.Transaction
		calls := []*Call{
			{Ops: []workqueue.Op{{Kind: workqueue.OpAdd, Key: "k", More: marks(workqueue.MaxMarks-1, 2)}}},
			{Ops: []workqueue.Op{{Kind: workqueue.OpAdd, Key: "k", More: second}}},
		}
		f.take(&tx, calls, 100)
		r := m.Apply(1_000_000, &tx)
		for _, c := range calls {
			if c.folded == nil {
				c.Replies = r.Replies[c.first:]
			} else {
				c.folded.replies = r.Replies
			}
		}
		if a, b := calls[0].Status(0), calls[1].Status(0); a != workqueue.BarrierFull || b != workqueue.Queued {
			t.Errorf("%s: statuses %d and %d, want %d and %d", name, a, b, workqueue.BarrierFull, workqueue.Queued)
		}
	}
}
