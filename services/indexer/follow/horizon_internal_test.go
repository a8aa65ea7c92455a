package follow

import (
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
)

func TestTheHorizonIsFoundByTheLogsClockNotTheReflectors(t *testing.T) {
	t.Parallel()
	now := time.Now()
	c := &Collection{ttl: time.Hour}
	c.replayAt = now
	var b store.Batch
	c.horizon(&b, &delta.Record{Sequence: 7, PublishedAt: now, StoredAt: now.Add(-2 * time.Hour)}) // by a clock that is two hours ahead
	if b.Horizon != 0 {
		t.Errorf("horizon %d by a record that is older than a tombstone lives", b.Horizon)
	}
	c.horizon(&b, &delta.Record{Sequence: 9, PublishedAt: now.Add(-2 * time.Hour), StoredAt: now})
	if b.Horizon != 8 {
		t.Errorf("horizon %d, want 8: what came before record 9 may be missing deletions", b.Horizon)
	}
}
