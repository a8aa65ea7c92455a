package redis

import (
	"strings"
	"testing"

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
