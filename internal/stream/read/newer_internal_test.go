package read

import (
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/stream/link"
)

// A reader that stands still before a record of a later build is as old as what it has read: trying
// again does not make its position current, however often it does.
func TestTryingAgainBeforeARecordOfALaterBuildKeepsThePositionsAge(t *testing.T) {
	t.Parallel()
	began := time.Now().Add(-time.Minute)
	tail := link.Tail{Last: 9, Epoch: 1, Term: 1, Now: time.Now()}
	for _, stopped := range []bool{true, false} {
		r := &reader{
			c: &link.Conn{Config: link.Config{TombstoneTTL: time.Hour}}, pos: delta.Position{Epoch: 1, Sequence: 5, Term: 1}, contact: began, stopped: stopped,
		}
		if err := r.identify(tail); err != nil {
			t.Fatal(err)
		}
		if kept := r.contact.Equal(began); kept != stopped {
			t.Errorf("stands still: %v; the position is as old as before: %v", stopped, kept)
		}
	}
}
