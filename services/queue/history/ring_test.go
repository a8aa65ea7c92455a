package history

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/deltaplane/deltaplane/core/workqueue"
)

func told(h *Recent, now int64, ops []workqueue.Op, replies []workqueue.Reply, takes []workqueue.Take, leases ...workqueue.Lease) {
	h.Record("q", []Author{{Session: "s", Count: len(ops)}}, &workqueue.Transaction{Ops: ops, Takes: takes}, &workqueue.Result{Now: now, Replies: replies, Leases: leases})
}

func TestTheHistoryIsBounded(t *testing.T) {
	t.Parallel()
	h := New(100)
	add := func(key string) {
		told(h, 1, []workqueue.Op{{Kind: workqueue.OpAdd, Key: key, Trace: strings.Repeat("t", 50)}}, []workqueue.Reply{{Status: workqueue.Queued}}, nil)
	}
	for i := range 1000 {
		add(fmt.Sprint("key", i))
		add("hot")
	}
	if len(h.index) != 100 || h.count != 100 {
		t.Errorf("%d keys indexed, %d kept, want 100", len(h.index), h.count)
	}
	if got := h.Key("q", "hot"); len(got) != 1 || got[0].GetRepeats() != 999 {
		t.Errorf("what is used all the time was forgotten: %v", got)
	}
	if got := h.Key("q", "key0"); got != nil {
		t.Errorf("what was used long ago is kept: %v", got)
	}
	if got := h.Key("other", "hot"); got != nil {
		t.Errorf("another queue's key: %v", got)
	}
	if size := len(h.text); size > 100*textPerKey+4*longestText {
		t.Errorf("%d bytes of text", size)
	}
	// A text that was overwritten is left out, never wrong.
	for _, key := range []string{"key950", "key999"} {
		for _, e := range h.Key("q", key) {
			if e.GetTraceparent() != "" && e.GetTraceparent() != strings.Repeat("t", 50) {
				t.Errorf("text %q", e.GetTraceparent())
			}
		}
	}
	if New(-1).Key("q", "k") != nil {
		t.Error("no history keeps something")
	}
}

func TestNamesOfSessionsAreBounded(t *testing.T) {
	t.Parallel()
	n := sessionNames{ids: map[string]uint32{}}
	first := n.id("first")
	if n.id("first") != first || n.name(first) != "first" || n.name(0) != "" {
		t.Error("a name is not found again")
	}
	for i := range keptNames {
		n.id(fmt.Sprint(i))
	}
	if n.name(first) != "" || len(n.ids) != keptNames {
		t.Errorf("%d names kept, the first as %q", len(n.ids), n.name(first))
	}
	if again := n.id("first"); again == first || n.name(again) != "first" {
		t.Errorf("a name that returns: %q", n.name(again))
	}
}

func TestRecordingAllocatesNothing(t *testing.T) { //nolint:paralleltest // allocations are counted
	h := New(64)
	var ops []workqueue.Op
	var replies []workqueue.Reply
	for i := range 200 { // more keys than are kept
		ops = append(ops, workqueue.Op{Kind: workqueue.OpAdd, Key: fmt.Sprint("key", i), Trace: "cause"})
		replies = append(replies, workqueue.Reply{Status: workqueue.Queued})
	}
	c := []Author{{Session: "s", Count: len(ops)}}
	tx, r := &workqueue.Transaction{Ops: ops}, &workqueue.Result{Now: 1, Replies: replies}
	h.Record("q", c, tx, r)
	if n := testing.AllocsPerRun(20, func() { h.Record("q", c, tx, r) }); n > 0 {
		t.Errorf("%v allocations a transaction", n)
	}
}

// BenchmarkHistory records cycles of add, lease and settle, 256 a transaction, over
// more or fewer keys than are kept; an operation is one cycle.
func BenchmarkHistory(b *testing.B) {
	for name, keys := range map[string]int{"hot": 1000, "kept": 90_000, "evicting": 400_000} {
		b.Run(name, func(b *testing.B) {
			h := New(100_000)
			all := make([]string, keys)
			for i := range all {
				all[i] = "k" + strconv.Itoa(i)
			}
			const n = 256
			ops, replies, leases := make([]workqueue.Op, 2*n), make([]workqueue.Reply, 2*n), make([]workqueue.Lease, n)
			tx := &workqueue.Transaction{Ops: ops, Takes: []workqueue.Take{{Holder: "w"}}}
			r := &workqueue.Result{Replies: replies, Leases: leases}
			c := []Author{{Session: "p", Count: n}, {Session: "w", First: n, Count: n}}
			at := 0
			b.ReportAllocs()
			for b.Loop() {
				if at%n == 0 {
					for i := range n {
						k := all[(at+i)%keys]
						ops[i] = workqueue.Op{Kind: workqueue.OpAdd, Key: k}
						replies[i].Status = workqueue.Queued
						ops[n+i] = workqueue.Op{Kind: workqueue.OpSettle, Key: k, Outcome: workqueue.Forget, Token: uint64(at + i)}
						replies[n+i].Status = workqueue.Settled
						leases[i] = workqueue.Lease{Key: k, Token: uint64(at + i), Attempt: 1}
					}
					r.Now++
					h.Record("q", c, tx, r)
				}
				at++
			}
		})
	}
}
