package reflector_test

import (
	"net/url"
	"testing"

	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/kube"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// TestDesign64AStandbyThatMakesALostLogAnewKnowsNothingOfIt: the log goes away together with its leader. What the standby has read is of the log that
// was, and says nothing about what the new one holds: it must list, and publish all of it before the synced record.
func TestDesign64AStandbyThatMakesALostLogAnewKnowsNothingOfIt(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onList = func(int, url.Values) (int, string) { return 200, list("10", "", item("a", 1), item("b", 2)) }
	nats := embeddedtest.NATS(t).URL()
	cfg := quick()
	cfg.Holder = "one"
	first, stop := start(t, cfg, a.URL, nats)
	reflection(t, dial(t, first), "pods", "the first leads", watching)
	cfg.Holder = "two"
	second, _ := start(t, cfg, a.URL, nats)
	c := dial(t, second)
	reflection(t, c, "pods", "the second has read so much that a new log ends before it", func(r *reflectorv1.Reflection) bool {
		return standingBy(r) && r.GetObjects() == 2 && r.GetShadowRevision().GetResourceVersion() == "10"
	})
	js := operator(t, nats)
	if err := js.DeleteStream(t.Context(), pods.StreamName()); err != nil {
		t.Fatal(err)
	}
	stop()
	reflection(t, c, "pods", "the second leads", watching)
	m := follow(t, nats, pods)
	m.until(t, "sync", m.readable)
	if live := m.live(); len(live) != 2 {
		t.Errorf("the log made anew was said to be complete with %v, want both objects", live)
	}
}

// TestDesign64AFormThatComesBackBringsWhatAListMissedMeanwhile: an object leaves the narrow form while nobody watches, so that a list infers its deletion. It
// lives, and is older than its tombstone, when the wide form comes back.
func TestDesign64AFormThatComesBackBringsWhatAListMissedMeanwhile(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onList = func(n int, _ url.Values) (int, string) {
		if n == 1 {
			return 200, list("10", "", item("in", 1), item("out", 2))
		}
		return 200, list("20", "", item("in", 1))
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
	narrow := quick()
	narrow.Resources[0].Scope = kube.Scope{LabelSelector: "app=in"}
	_, stop := start(t, narrow, a.URL, nats)
	m := follow(t, nats, pods)
	m.until(t, "the inferred deletion", func() bool { return len(m.live()) == 1 && m.revision().RV == "20" })
	stop()
	a.set(func(a *api) {
		a.onList = func(int, url.Values) (int, string) { return 200, list("30", "", item("in", 1), item("out", 15)) }
	})
	start(t, quick(), a.URL, nats)
	m.until(t, "the wide form's list", func() bool { return m.revision().RV == "30" })
	if live := m.live(); len(live) != 2 {
		t.Errorf("%v, want both objects", live)
	}
}
