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

func TestTheDefaultShareOfAClient(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ all, want int }{{0, 2500}, {40, 40}, {200, 100}, {1000, 250}} {
		cfg := Config{MaxWatchers: row.all}
		if got := cfg.withDefaults().MaxClientWatchers; got != row.want {
			t.Errorf("of %d watches one client may have %d, want %d", row.all, got, row.want)
		}
	}
	for _, row := range []struct{ budget, want int }{{0, 256 << 20}, {1 << 20, 64 << 20}, {1 << 30, 128 << 20}, {64 << 30, 256 << 20}} {
		if got := (Config{MemoryBudget: row.budget}).withDefaults().MaxRequestBytes; got != row.want {
			t.Errorf("beside %d bytes requests may hold %d, want %d", row.budget, got, row.want)
		}
	}
}
