package reflector_test

import (
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// TestASuccessorListsAfterAnEventWithoutAKey: something changed, nobody can tell what, and the list
// that is due fails until the leader is gone. The log must not claim what came behind the event,
// and the next leader must not resume behind it.
func TestASuccessorListsAfterAnEventWithoutAKey(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onList = func(n int, _ url.Values) (int, string) {
		if n == 1 {
			return 200, list("10", "", item("a", 1), item("b", 2))
		}
		return 500, "broken"
	}
	a.onWatch = func(n int, q url.Values, w *wire) {
		switch {
		case n == 1: // the change of a cannot be read, that of b can
			w.send(`{"type":"MODIFIED","object":{"metadata":{"name":"a", what?`, event("MODIFIED", object("b", 12)), bookmark(15))
		case q.Get("resourceVersion") == "10":
			w.send(event("MODIFIED", object("a", 11)), event("MODIFIED", object("b", 12)), bookmark(15))
		default:
			w.send()
		}
		w.hold()
	}
	nats := embeddedtest.NATS(t).URL()
	cfg := quick()
	cfg.Holder, cfg.LeaseTTL = "one", 20*time.Second
	first, stop := start(t, cfg, a.URL, nats)
	m := follow(t, nats, pods)
	m.until(t, "what can be read", func() bool { return m.live()["default/b"] == "12" })
	if at := m.revision().RV; at != "10" {
		t.Errorf("revision %s is claimed, although the change at 11 is not in the log", at)
	}
	cfg.Holder = "two"
	second, _ := start(t, cfg, a.URL, nats)
	reflection(t, dial(t, second), "pods", "the second follows", func(r *reflectorv1.Reflection) bool {
		return standingBy(r) && r.GetShadowRevision().GetResourceVersion() == "10"
	})
	reflection(t, dial(t, first), "pods", "the list fails", func(r *reflectorv1.Reflection) bool { return r.GetNextRetryAt() != nil })
	stop()
	m.until(t, "the change that was missed", func() bool { return m.revision().RV == "15" && m.live()["default/a"] == "11" })
}

// TestAListThatHoldsObjectsWithoutANameDeletesNothing: which of the objects that it does not name
// are gone, and which are the nameless ones, cannot be told. Readers are told so, and a list is
// due, also for who leads next.
func TestAListThatHoldsObjectsWithoutANameDeletesNothing(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	gone := make(chan struct{})
	let := sync.OnceFunc(func() { close(gone) })
	t.Cleanup(let)
	a.onList = func(n int, _ url.Values) (int, string) {
		switch n {
		case 1:
			return 200, list("10", "", item("a", 1), item("b", 2), item("c", 3))
		case 2: // b has lost its name, c is gone
			return 200, list("20", "", item("a", 1), `{"metadata":{"uid":"uid-b","resourceVersion":"2"}}`)
		case 3:
			a.wait(gone)
			return 500, "broken"
		}
		return 200, list("30", "", item("a", 1), item("b", 2))
	}
	a.onWatch = func(n int, _ url.Values, w *wire) {
		if n == 1 {
			w.send(errorEvent(410, "Expired"))
			return
		}
		w.send()
		w.hold()
	}
	nats := embeddedtest.NATS(t).URL()
	cfg := quick()
	cfg.Holder, cfg.LeaseTTL = "one", 20*time.Second
	first, stop := start(t, cfg, a.URL, nats)
	m := follow(t, nats, pods)
	m.until(t, "the second list", func() bool { return m.revision().RV == "20" })
	for key, want := range map[delta.Key]string{"default/a": delta.EncodingJSON, "default/b": delta.EncodingUnreadable, "default/c": delta.EncodingUnreadable} {
		if r, ok := m.get(key); !ok || r.Tombstone() || r.Encoding != want {
			t.Errorf("%s is %+v, want it %s", key, r, want)
		}
	}
	r := reflection(t, dial(t, first), "pods", "the doubts", func(r *reflectorv1.Reflection) bool { return r.GetQuarantinedTotal() >= 2 })
	if why := r.GetQuarantined()[len(r.GetQuarantined())-1].GetReason(); !strings.Contains(why, "1 without a name") {
		t.Errorf("%v; want the reason told", r)
	}
	a.nth(t, listed, 3) // it is due, and does not come
	cfg.Holder = "two"
	second, _ := start(t, cfg, a.URL, nats)
	reflection(t, dial(t, second), "pods", "the second follows", func(r *reflectorv1.Reflection) bool {
		return standingBy(r) && r.GetShadowRevision().GetResourceVersion() == "20"
	})
	stop()
	let()
	m.until(t, "the clean list", func() bool { return m.revision().RV == "30" })
	b, _ := m.get("default/b")
	c, _ := m.get("default/c")
	if b.Tombstone() || b.RV != "2" || len(b.Payload) == 0 || !c.Tombstone() || c.DeleteReason != delta.Inferred {
		t.Errorf("%+v\n%+v\nwant the first whole and the second gone", b, c)
	}
	reflection(t, dial(t, second), "pods", "no doubts", func(r *reflectorv1.Reflection) bool { return watching(r) && r.GetQuarantinedTotal() == 0 })
}
