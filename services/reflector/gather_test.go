package reflector_test

import (
	"net/url"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
)

// A change is in the log no sooner behind the one before it than changes are gathered, however fast
// this machine is, and none is missing.
func TestAChangeWaitsForTheGatheringBehindTheOneBefore(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onList = func(int, url.Values) (int, string) { return 200, list("10", "") }
	next := make(chan struct{}, 2)
	a.onWatch = func(n int, _ url.Values, w *wire) {
		w.send()
		if n == 1 {
			a.wait(next)
			w.send(event("ADDED", object("a", 11)))
			a.wait(next)
			w.send(event("ADDED", object("b", 12)), event("MODIFIED", object("b", 13)))
		}
		w.hold()
	}
	nats := embeddedtest.NATS(t).URL()
	cfg := quick()
	cfg.Gather = 500 * time.Millisecond
	start(t, cfg, a.URL, nats)
	m := follow(t, nats, pods)
	m.until(t, "sync", m.readable)
	next <- struct{}{}
	m.until(t, "the first change", func() bool { return m.revision().RV == "11" })
	next <- struct{}{}
	m.until(t, "the last change", func() bool { return m.revision().RV == "13" })
	m.mu.Lock()
	defer m.mu.Unlock()
	first, last := m.objects[delta.NewKey("default", "a")], m.objects[delta.NewKey("default", "b")]
	if wait := last.PublishedAt.Sub(first.PublishedAt); wait < cfg.Gather-time.Millisecond || last.RV != "13" {
		t.Errorf("%s is published %v behind the first change, want at least %v", last.RV, wait, cfg.Gather)
	}
}
