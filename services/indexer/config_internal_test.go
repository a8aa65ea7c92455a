package indexer

import "testing"

func TestTheRingIsBoundedByTheMemoryBudget(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ budget, bytes, want int }{
		{0, 0, 64 << 20}, {64 << 20, 0, 8 << 20}, {64 << 30, 0, 64 << 20}, {64 << 20, 32 << 20, 32 << 20}, {1, 0, 1},
	} {
		if got := (Config{MemoryBudget: row.budget, RingBytes: row.bytes}).withDefaults().RingBytes; got != row.want {
			t.Errorf("with a budget of %d and %d asked for, the ring has %d bytes, want %d", row.budget, row.bytes, got, row.want)
		}
	}
}
