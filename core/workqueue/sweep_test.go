package workqueue

import (
	"strconv"
	"testing"
	"time"
)

// What a burst of keys kept past its end is given back by few idle transactions: an
// idle queue has one in several seconds.
func TestIdleTransactionsGiveBackTheMemoryOfManyKeys(t *testing.T) {
	t.Parallel()
	const n = 20_000
	m, now := New(Config{}), int64(1_000_000)
	for i := range n {
		key := "k" + strconv.Itoa(i)
		add := Op{Kind: OpAdd, Key: key, More: &More{Barrier: NewBarrier(Mark{Collection: "c", Epoch: 1, RV: "1"})}}
		r := m.Apply(now, &Transaction{Ops: []Op{add}, Takes: []Take{{Holder: "w", Max: 1}}})
		m.Apply(now, &Transaction{Ops: []Op{{Kind: OpSettle, Key: key, Token: r.Leases[0].Token, Outcome: Forget}}})
	}
	idle := &Transaction{Takes: []Take{{Holder: "w", Max: 1}}}
	if m.Apply(now+299*time.Second.Microseconds(), idle); len(m.items.of) != n {
		t.Fatalf("%d keys are known before their barriers end, want %d", len(m.items.of), n)
	}
	for range 5 {
		m.Apply(now+301*time.Second.Microseconds(), idle)
	}
	if left := len(m.items.of); left > 0 {
		t.Errorf("%d keys are known after five idle transactions", left)
	}
}
