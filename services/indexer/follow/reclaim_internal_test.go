package follow

import (
	"runtime"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/services/indexer/indexertest"
)

// Memory that nobody holds makes no room before a collection, which may be two minutes away.
func TestWhatNobodyHoldsIsCollectedWhenThatMakesRoom(t *testing.T) {
	t.Parallel()
	const budget, size, payloads = 20 << 20, 4 << 20, 18
	s := newTestCollections(t, nil, Config{MemoryBudget: budget})
	c := s.Know(indexertest.Pods)
	held := make([][]byte, payloads)
	for i := range held {
		held[i] = c.keeper.Put(make([]byte, 1<<20))
	}
	c.keeper.Measure()
	if s.fits(budget) || !s.reclaimed.at.IsZero() {
		t.Error("more than there is fits, or garbage was collected for it")
	}
	if s.fits(size) || s.reclaimed.at.IsZero() {
		t.Error("it fits though all is held, or that was not looked at")
	}
	runtime.KeepAlive(held)
	clear(held)
	if s.fits(size) {
		t.Error("it fits before garbage may be collected again")
	}
	s.reclaimed.at = time.Time{}
	if !s.fits(size) {
		t.Errorf("it does not fit: %d bytes of %d are taken, though nothing is held", s.memory(), budget)
	}
}

// Garbage that cannot be collected, as of partly used buffers, must not trigger collections.
func TestGarbageIsCollectedLessOftenWhenItIsOfNoUse(t *testing.T) {
	t.Parallel()
	var r reclaimed
	now := time.Now()
	if !r.due(now) {
		t.Fatal("it is not due at first")
	}
	for i, row := range []struct {
		useful bool
		pause  time.Duration
	}{
		{false, reclaimLeast},
		{false, 2 * reclaimLeast},
		{false, 4 * reclaimLeast},
		{true, reclaimLeast},
		{false, 2 * reclaimLeast},
		{false, 4 * reclaimLeast},
		{false, 8 * reclaimLeast},
		{false, reclaimMost},
		{false, reclaimMost},
		{true, reclaimLeast},
	} {
		r.note(now, row.useful)
		if r.due(now.Add(row.pause-1)) || !r.due(now.Add(row.pause)) {
			t.Errorf("after %d collections the pause is %v, want %v", i+1, r.pause, row.pause)
		}
		now = now.Add(row.pause)
	}
}
