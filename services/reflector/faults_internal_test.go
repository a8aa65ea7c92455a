package reflector

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestTheEndOfAnOutageIsOneLineHoweverManyCollectionsItHad and however slowly they follow each
// other; the next outage has its own.
func TestTheEndOfAnOutageIsOneLineHoweverManyCollectionsItHad(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		var loops sync.WaitGroup
		log := slog.New(slog.NewTextHandler(&out, nil))
		c := newDeduplicator(log, &loops, t.Context)
		r := &reflection{slog: log, faults: c}
		outage := func(n int, apart time.Duration) string {
			out.Reset()
			for i := range n {
				r.state.set(func(v *view) { v.name = fmt.Sprintf("dev/kind%ds.v1", i) })
				r.state.fail("LOG_UNAVAILABLE", errStoreAway, time.Now(), 0)
				r.well(context.Background())
				time.Sleep(apart)
			}
			loops.Wait()
			return out.String()
		}
		if got := outage(60, 200*time.Millisecond); strings.Count(got, "\n") != 2 ||
			!strings.Contains(got, "reflections are well again") || !strings.Contains(got, "count=59") || !strings.Contains(got, "and 56 more") {
			t.Errorf("60 collections say\n%s", got)
		}
		if got := outage(1, 0); strings.Count(got, "\n") != 1 || !strings.Contains(got, "reflection is well again") {
			t.Errorf("one collection says\n%s", got)
		}
		if got := outage(100, 900*time.Millisecond); strings.Count(got, "\n") > 8 { // they never end: what there is is told now and then
			t.Errorf("100 collections that follow slowly say\n%s", got)
		}
	})
}
