package workqueue

import (
	"strconv"
	"testing"
)

// A key that leaves a line leaves its place behind. Behind a key that stays,
// those places must not pile up for ever.
func TestPlacesThatKeysLeftAreGivenBack(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(m *Machine, now int64){
		"deleted in a paused queue": func(m *Machine, now int64) {
			m.Apply(now, &Transaction{Ops: []Op{{Kind: OpPause}, {Kind: OpAdd, Key: "b"}, {Kind: OpDelete, Key: "b"}}})
		},
		"raised and done before one of low priority": func(m *Machine, now int64) {
			r := m.Apply(now, &Transaction{Ops: []Op{{Kind: OpAdd, Key: "b"}, {Kind: OpAdd, Key: "b", Level: 1}}, Takes: []Take{{Holder: "w", Max: 1}}})
			m.Apply(now, &Transaction{Ops: []Op{{Kind: OpSettle, Key: "b", Token: r.Leases[0].Token, Outcome: Forget}}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, now := New(Config{}), int64(1_000_000)
			const stay = 100
			for i := range stay {
				m.Apply(now, &Transaction{Ops: []Op{{Kind: OpAdd, Key: "k" + strconv.Itoa(i)}}})
			}
			for range 100_000 {
				leave(m, now)
			}
			if n := len(m.ready[0].buf); n > 1024 {
				t.Errorf("%d places for %d keys", n, stay)
			}
			r := m.Apply(now, &Transaction{Ops: []Op{{Kind: OpResume}}, Takes: []Take{{Holder: "w", Max: 2 * stay}}})
			if len(r.Leases) != stay {
				t.Fatalf("%d leases, want %d", len(r.Leases), stay)
			}
			for i, l := range r.Leases {
				if want := "k" + strconv.Itoa(i); l.Key != want {
					t.Fatalf("lease %d is of %s, want %s", i, l.Key, want)
				}
			}
		})
	}
}
