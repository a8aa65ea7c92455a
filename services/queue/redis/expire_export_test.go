package redis

import (
	"strings"
	"testing"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

// Name is the queue's.
func (q *queue) Name() string { return q.name }

const expiryID = "broken-off"

// ExpireSteps does steps of an expiry, those from one to before another. It reports
// false when one was refused.
func ExpireSteps(t *testing.T, e *Engine, name string, seen engine.Idle, from, to int) bool {
	t.Helper()
	marks := strings.Fields(seen.Mark)
	for n := from; n < to; n++ {
		part, what := n, "seal"
		if n >= len(marks) {
			part, what = 2*len(marks)-1-n, "end"
		}
		done, err := e.step(t.Context(), name, part, what, expiryID, marks[part])
		if err != nil {
			t.Fatalf("step %d: %v", n, err)
		}
		if !done {
			return false
		}
	}
	return true
}

// KeepPartition has a partition take transactions that was found with a seal.
func KeepPartition(t *testing.T, e *Engine, name string, part int, seal string) bool {
	t.Helper()
	done, err := e.step(t.Context(), name, part, "keep", seal, "")
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// SealOf is what a partition refuses transactions by.
func SealOf(t *testing.T, e *Engine, name string, part int) string {
	t.Helper()
	all, err := e.stored(t.Context(), name, part+1)
	if err != nil {
		t.Fatal(err)
	}
	return all[part].seal
}

// MakeAgain makes a partition that has ended, and returns its seal.
func MakeAgain(t *testing.T, e *Engine, name string, part int) string {
	t.Helper()
	first, err := e.stored(t.Context(), name, 1)
	if err != nil {
		t.Fatal(err)
	}
	cfg := workqueue.Config{Partitions: 2}.WithDefaults()
	if created, err := e.configure(t.Context(), name, part, &cfg, first[0].blob, first[0].version, 0); err != nil || !created {
		t.Fatalf("created %v, %v", created, err)
	}
	return SealOf(t, e, name, part)
}
