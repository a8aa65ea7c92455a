package indexer

import (
	"context"
	"testing"
)

// Indexes that the first sync makes ready take no room before it, and what is
// not declared any more needs none: build does not begin again for them, which
// would collect garbage on and on while there is no room.
func TestBuildDoesNotGoRoundWhereNothingCanBeGivenUp(t *testing.T) {
	t.Parallel()
	c := newTestCollection(t, nil)
	asked := 0
	c.room = func(context.Context, int) error { asked++; return newFault(errMemoryBudget, "") }
	if err := c.buildOnce(t.Context()); err != nil || asked > 0 {
		t.Errorf("before the first sync: %v, asked for room %d times", err, asked)
	}
	if err := c.withoutRoom(&unfitError{index: "removed", err: errMemoryBudget}); err != nil {
		t.Error(err)
	}
	if len(c.rebuild) > 0 {
		t.Error("build is woken, though nothing was given up")
	}
}
