package failover

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
)

// times is how many leaders are killed; half as many are stopped.
func times(t *testing.T) (kills, stops int) {
	t.Helper()
	text := os.Getenv("DELTAPLANE_FAILOVERS")
	if text == "" {
		return 8, 2
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n, n / 2
}

// TestLeadersAreKilledAndStoppedWithoutAGap uses real processes: each takeover resumes the watch,
// and what a stopped leader still has under way is fenced.
func TestLeadersAreKilledAndStoppedWithoutAGap(t *testing.T) {
	t.Parallel()
	kills, stops := times(t)
	c := newCrew(t, embeddedtest.NATS(t).URL(), 1, 3)
	var killed, stopped, handed []time.Duration
	for range kills {
		killed = append(killed, c.kill())
	}
	for range stops {
		stopped = append(stopped, c.pause())
	}
	for range stops {
		handed = append(handed, c.hand())
	}
	t.Logf("leader killed to next change: %s", distribution(killed))
	t.Logf("leader stopped to next change: %s", distribution(stopped))
	t.Logf("leader asked to end to next change: %s", distribution(handed))
	c.judge(kills+2*stops, 0)
}
