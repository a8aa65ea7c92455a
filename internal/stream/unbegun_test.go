package stream_test

import (
	"slices"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/stream"
)

// TestAConsumerWaitsForTheFirstLeaderOfALog: a log is made a moment before its first epoch begins.
// A consumer that reported a gap between the two would report another one at once, and every key
// would be enqueued twice.
func TestAConsumerWaitsForTheFirstLeaderOfALog(t *testing.T) {
	t.Parallel()
	url := embeddedtest.NATS(t).URL()
	c, js := connect(t, url, nil), operator(t, url)
	write(t, c, stream.WriterConfig{Term: 1})
	cfg := streamOf(t, js).CachedInfo().Config
	if err := js.DeleteStream(t.Context(), cfg.Name); err != nil {
		t.Fatal(err)
	}
	recreate(t, js, cfg)
	d := &desk{keys: map[delta.Key]int{}}
	stop := consume(t, c, d)
	for range 30 { // long enough for one that does not wait
		if _, err := js.Consumer(t.Context(), cfg.Name, "job"); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	w := write(t, c, stream.WriterConfig{Term: 2})
	put(t, w, pod("a", 1))
	eventually(t, "the key", func() bool { return d.count() == 1 })
	stop()
	consume(t, c, d) // compares its state with the log at once, not in some seconds
	put(t, w, pod("b", 2))
	eventually(t, "another key", func() bool { return d.count() == 2 })
	d.mu.Lock()
	defer d.mu.Unlock()
	if !slices.Equal(d.gaps, []stream.Gap{stream.GapNew}) {
		t.Errorf("gaps %q, want one", d.gaps)
	}
}
