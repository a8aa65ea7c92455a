package serve

import (
	"context"
	"log/slog"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/deltaplane/deltaplane/services/indexer"
)

const (
	// garbageShare is the part of what lives that garbage may take before it is collected.
	garbageShare = 4
	// leastGarbageShare is the same when more lives than was meant to. Measured with 525 MB alive and
	// 90 MB of garbage a second: the collector takes 0.03 of a core with a quarter, 0.06 with an
	// eighth, 0.5 with a twentieth, 1 with nothing.
	leastGarbageShare, leastGarbage = 8, 64 << 20
	// calmShare is the part of what is meant by which less must be needed before a limit that was
	// raised counts as back.
	calmShare = 16
	// besideIndexer is about what the other parts of `up` take.
	besideIndexer = 256 << 20
	limitEvery    = time.Second
)

// memoryLimit keeps the limit that the garbage collector is given at what the process is meant to
// take, so that a heap does not grow to twice what lives. It rises while more than that lives: at a
// limit that cannot be kept the collector would do little else.
type memoryLimit struct {
	meant  int64 // bytes
	now    int64
	raised bool // it was said that more is in use
	log    *slog.Logger
}

// limitMemory gives the collector a limit made of an indexer's memory budget, what its watches hold
// beside that, and what other parts of the process take, until ctx ends. It leaves alone a limit
// that was given by GOMEMLIMIT, and an indexer without a budget.
func limitMemory(ctx context.Context, cfg indexer.Config, beside int64, watches func() int, log *slog.Logger) {
	if _, given := os.LookupEnv("GOMEMLIMIT"); given || cfg.MemoryBudget == 0 {
		return
	}
	m := &memoryLimit{meant: memoryMeant(cfg, beside), log: log}
	before := debug.SetMemoryLimit(m.meant)
	m.now = m.meant
	log.Info("memory limit of the garbage collector", slog.Int64("bytes", m.meant))
	go func() {
		tick := time.NewTicker(limitEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				m.step(living(), int64(watches()))
			case <-ctx.Done():
				debug.SetMemoryLimit(before)
				return
			}
		}
	}()
}

// memoryMeant is what a process with the indexer may take, garbage included.
func memoryMeant(cfg indexer.Config, beside int64) int64 {
	n := int64(cfg.MemoryNeed()) + beside
	return n + n/garbageShare
}

// step sets the limit by what lives, and what of that watches hold. It warns once when the limit
// must be raised, and again only after clearly less was needed.
func (m *memoryLimit) step(alive, watches int64) {
	meant := m.meant + watches + watches/garbageShare
	need := alive + max(alive/leastGarbageShare, leastGarbage)
	limit := max(meant, need)
	switch {
	case need > meant && !m.raised:
		m.raised = true
		m.log.Warn("more memory is in use than the memory budget provides for; the garbage collector's limit was raised",
			slog.Int64("bytes", alive), slog.Int64("limit", limit))
	case need <= meant-meant/calmShare:
		m.raised = false
	}
	if limit != m.now {
		m.now = limit
		debug.SetMemoryLimit(limit)
	}
}

// living is what the process takes without garbage: what lived at the end of the last collection,
// and all beside the heap.
func living() int64 {
	s := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/total:bytes"},
		{Name: "/memory/classes/heap/released:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(s)
	n := int64(s[0].Value.Uint64()) + int64(s[1].Value.Uint64())
	for i := range s[2:] {
		n -= int64(s[2+i].Value.Uint64())
	}
	return n
}
