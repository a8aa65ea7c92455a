package serve

import (
	"context"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/deltaplane/deltaplane/services/indexer"
)

// These tests change a setting of the process, so none is parallel.

func TestTheMemoryBudgetLimitsTheGarbageCollectorUntilTheEnd(t *testing.T) {
	unlimited := debug.SetMemoryLimit(-1)
	if _, given := os.LookupEnv("GOMEMLIMIT"); given {
		t.Setenv("GOMEMLIMIT", "") // put back at the end
		_ = os.Unsetenv("GOMEMLIMIT")
	}
	budget := indexer.Config{MemoryBudget: 8 << 30}
	for name, run := range map[string]struct {
		cfg    indexer.Config
		beside int64
		given  string
		want   int64
	}{
		"budget":          {budget, 0, "", (8<<30 + (256+256+64)<<20) / 4 * 5},
		"with up's parts": {budget, 256 << 20, "", (8<<30 + (256+256+64+256)<<20) / 4 * 5},
		"no budget":       {indexer.Config{}, 256 << 20, "", unlimited},
		"GOMEMLIMIT":      {budget, 0, "20GiB", unlimited}, // the runtime has read it long ago
	} {
		t.Run(name, func(t *testing.T) {
			if run.given != "" {
				t.Setenv("GOMEMLIMIT", run.given)
			}
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				limitMemory(ctx, run.cfg, run.beside, func() int { return 0 }, slog.New(slog.DiscardHandler))
				if got := debug.SetMemoryLimit(-1); got != run.want {
					t.Errorf("the limit is %d, want %d", got, run.want)
				}
				cancel()
				synctest.Wait()
				if got := debug.SetMemoryLimit(-1); got != unlimited {
					t.Errorf("the limit stays %d, was %d before", got, unlimited)
				}
			})
		})
	}
}

// With a limit below what lives, the collector would run without a pause.
func TestTheLimitOfTheGarbageCollectorIsAboveWhatLives(t *testing.T) {
	unlimited := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(unlimited)
	held := make([]byte, 256<<20)
	runtime.GC()
	alive := living()
	if alive < int64(len(held)) || alive > int64(len(held))+1<<30 {
		t.Fatalf("%d bytes live, and %d are held", alive, len(held))
	}
	m := &memoryLimit{meant: 128 << 20, now: 128 << 20, log: slog.New(slog.DiscardHandler)}
	m.step(alive, 0)
	raised := debug.SetMemoryLimit(-1)
	if raised < alive+alive/leastGarbageShare {
		t.Errorf("the limit is %d, and %d bytes live", raised, alive)
	}
	runtime.KeepAlive(held)
	m.step(10<<20, 0)
	if got := debug.SetMemoryLimit(-1); got != m.meant {
		t.Errorf("the limit stays at %d when little lives, want %d", got, m.meant)
	}
	m.step(m.meant, 0) // just what was meant
	if got := debug.SetMemoryLimit(-1); got < m.meant+leastGarbage {
		t.Errorf("the limit is %d, and %d bytes live", got, m.meant)
	}
}

// What the watches of all collections hold is provided for, and no reason to warn.
func TestTheLimitProvidesForWhatWatchesHold(t *testing.T) {
	unlimited := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(unlimited)
	var said strings.Builder
	m := &memoryLimit{meant: 1 << 30, now: 1 << 30, log: slog.New(slog.NewTextHandler(&said, nil))}
	m.step(1500<<20, 1<<30)
	if got, want := debug.SetMemoryLimit(-1), int64(1<<30+1<<30+1<<28); got != want || said.Len() > 0 {
		t.Errorf("the limit is %d, want %d; said %q", got, want, said.String())
	}
	m.step(500<<20, 0)
	if got := debug.SetMemoryLimit(-1); got != m.meant {
		t.Errorf("the limit stays %d, want %d", got, m.meant)
	}
}

func TestTheWarningOfTheLimitIsSaidOnceForEachTimeItIsPassed(t *testing.T) {
	unlimited := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(unlimited)
	var said strings.Builder
	m := &memoryLimit{meant: 1 << 30, now: 1 << 30, log: slog.New(slog.NewTextHandler(&said, nil))}
	const edge = 1 << 30 / 9 * 8 // with an eighth of it more, all that was meant
	times := func() int { return strings.Count(said.String(), "WARN") }
	for range 100 {
		m.step(edge+1<<20, 0)
		m.step(edge-1<<20, 0)
	}
	if times() != 1 {
		t.Errorf("at the edge it was said %d times, want once", times())
	}
	if got := debug.SetMemoryLimit(-1); got != m.meant {
		t.Errorf("the limit is %d, want the %d that was meant", got, m.meant)
	}
	m.step(edge/2, 0)
	m.step(edge+1<<20, 0)
	if times() != 2 {
		t.Errorf("passed again after a fall to a half, it was said %d times in all, want 2", times())
	}
}
