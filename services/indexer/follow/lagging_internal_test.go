package follow

import (
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
)

func TestACollectionThatIsFrozenForLongIsLagging(t *testing.T) {
	t.Parallel()
	c := newTestCollection(t, nil)
	at := now
	c.now = func() time.Time { return at }
	mustApply(t, c, delta.Batch{Reset: true, Records: []delta.Record{synced(1)}, Replayed: true, Next: 2})
	want := func(when string, want bool) {
		t.Helper()
		if got := c.lagging(at); got != want {
			t.Errorf("%s: lagging %v, want %v", when, got, want)
		}
	}
	at = at.Add(time.Minute)
	want("quiet", false)
	mustApply(t, c, delta.Batch{Records: []delta.Record{record(4, 0)}, Next: 5, End: 9}) // behind a hole
	want("frozen", false)
	at = at.Add(laggingAfter)
	mustApply(t, c, delta.Batch{Records: []delta.Record{record(5, 0)}, Next: 6})
	want("frozen for as long as it may be", false)
	at = at.Add(time.Millisecond)
	want("frozen for longer", true)
	mustApply(t, c, delta.Batch{Records: []delta.Record{record(9, 0)}, Next: 10})
	want("at the end", false)
	if !c.FrozenSince().IsZero() {
		t.Errorf("frozen since %v", c.FrozenSince())
	}
}
