package reflector_test

import (
	"net/url"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// TestASuccessorKnowsThatTheSourceWentBack: who finds out that the source was restored is stopped
// at that moment. The next leader must not open a watch from a version that the source has not
// reached: it would be silent, and miss what happens until then.
func TestASuccessorKnowsThatTheSourceWentBack(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	restored := make(chan struct{})
	a.onList = func(n int, q url.Values) (int, string) {
		switch {
		case n == 1:
			return 200, list("1000", "", item("kept", 5), item("ghost", 900))
		case q.Get("resourceVersion") == "1000":
			return 504, status(504, "Timeout", "Too large resource version: 1000, current: 300")
		}
		return 200, list("300", "", item("kept", 5), item("new", 200))
	}
	a.onWatch = func(n int, _ url.Values, w *wire) {
		w.send()
		if n == 1 {
			a.wait(restored)
			w.send(errorEvent(410, "Expired"))
			return
		}
		w.hold()
	}
	nats := embeddedtest.NATS(t).URL()
	cfg := quick()
	cfg.Holder, cfg.LeaseTTL = "one", 20*time.Second
	first, stop := start(t, cfg, a.URL, nats)
	reflection(t, dial(t, first), "pods", "the first leads", watching)
	cfg.Holder = "two"
	second, _ := start(t, cfg, a.URL, nats)
	reflection(t, dial(t, second), "pods", "the second follows", func(r *reflectorv1.Reflection) bool {
		return standingBy(r) && r.GetShadowRevision().GetResourceVersion() == "1000"
	})
	m := follow(t, nats, pods)
	m.until(t, "the state before", func() bool { return m.revision().RV == "1000" })
	// The second is warm and the first begins to follow again, so that the lease is the second's when
	// the first gives it up.
	close(restored)
	m.until(t, "a term of another epoch", func() bool {
		terms := m.kinds(delta.KindTerm)
		return terms[len(terms)-1].Epoch > terms[0].Epoch
	})
	stop()
	m.until(t, "the new epoch's state", func() bool {
		live := m.live()
		return m.revision().RV == "300" && len(live) == 2 && live["default/new"] == "200" && live["default/kept"] == "5"
	})
	epochs := map[uint64]bool{}
	for _, r := range m.kinds(delta.KindTerm) {
		epochs[r.Epoch] = true
	}
	if len(epochs) != 2 {
		t.Errorf("%d epochs, want one more for one restore, no matter which replica leads", len(epochs))
	}
}
