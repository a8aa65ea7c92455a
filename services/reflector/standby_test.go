package reflector_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/kube"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

func standingBy(r *reflectorv1.Reflection) bool {
	return r.GetState() == reflectorv1.ReflectionState_REFLECTION_STATE_STANDBY
}

func TestAStandbyFollowsTheLogAndSaysWhoLeads(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onList = func(int, url.Values) (int, string) { return 200, list("10", "", item("a", 1), item("b", 2)) }
	steps := a.stepped()
	nats := embeddedtest.NATS(t).URL()
	cfg := quick()
	cfg.Holder = "one"
	first, stop := start(t, cfg, a.URL, nats)
	c1 := dial(t, first)
	led := reflection(t, c1, "pods", "the first leads", func(r *reflectorv1.Reflection) bool {
		return watching(r) && r.GetTerm() > 0 && r.GetLeader() == "one" && r.GetHolder() == "one" && r.GetShadowRevision().GetResourceVersion() == "10"
	})
	cfg.Holder = "two"
	second, _ := start(t, cfg, a.URL, nats)
	c2 := dial(t, second)
	reflection(t, c2, "pods", "the second follows", func(r *reflectorv1.Reflection) bool {
		return standingBy(r) && r.GetLeader() == "one" && r.GetTerm() == led.GetTerm() && r.GetHolder() == "two" && r.GetObjects() == 2 && r.GetShadowRevision().GetResourceVersion() == "10"
	})
	steps <- event("MODIFIED", `{"kind":"Service","apiVersion":"v1","metadata":{"name":"a","namespace":"default","resourceVersion":"11"}}`)
	steps <- event("DELETED", object("b", 12))
	reflection(t, c2, "pods", "a deletion and a quarantined object", func(r *reflectorv1.Reflection) bool {
		return standingBy(r) && r.GetObjects() == 1 && r.GetShadowRevision().GetResourceVersion() == "12" && r.GetQuarantinedTotal() == 1 &&
			r.GetQuarantined()[0].GetKey() == "default/a" && r.GetLastError() == ""
	})
	stop()
	reflection(t, c2, "pods", "the second leads", func(r *reflectorv1.Reflection) bool {
		return watching(r) && r.GetLeader() == "two" && r.GetTerm() > led.GetTerm() && r.GetQuarantinedTotal() == 1 && r.GetRelists() == 0 && r.GetShadowRevision().GetResourceVersion() == "12"
	})
	steps <- event("MODIFIED", object("a", 13))
	reflection(t, c2, "pods", "the object is well again", func(r *reflectorv1.Reflection) bool {
		return r.GetQuarantinedTotal() == 0 && r.GetRevision().GetResourceVersion() == "13"
	})
	if n := len(a.requests(false)); n != 1 {
		t.Errorf("%d lists, want the takeover to resume the watch", n)
	}
}

func TestAnotherFormOfACollectionWaitsAndThenTakesOutWhatItDoesNotHold(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onList = func(_ int, q url.Values) (int, string) {
		if q.Get("labelSelector") != "" {
			return 200, list("20", "", item("in", 1))
		}
		return 200, list("10", "", item("in", 1), item("out", 2))
	}
	nats := embeddedtest.NATS(t).URL()
	cfg := quick()
	cfg.Holder = "wide"
	wide, stop := start(t, cfg, a.URL, nats)
	reflection(t, dial(t, wide), "pods", "the wide form leads", watching)
	m := follow(t, nats, pods)
	m.until(t, "both", func() bool { return len(m.live()) == 2 && m.revision().RV == "10" })

	some := quick()
	some.Holder = "narrow"
	some.Resources[0].Scope = kube.Scope{LabelSelector: "app=in"}
	narrow, stopNarrow := start(t, some, a.URL, nats)
	c := dial(t, narrow)
	r := reflection(t, c, "pods", "the narrow form waits", func(r *reflectorv1.Reflection) bool {
		return standingBy(r) && r.GetReason() != "" && r.GetNextRetryAt() != nil
	})
	if r.GetReason() != "DIFFERENT_SPEC" || !strings.Contains(r.GetLastError(), "wide leads with") || !strings.Contains(r.GetLastError(), "app=in") ||
		strings.Contains(r.GetLastError(), "labels [") {
		t.Errorf("reason %s: %s; want what differs named, and nothing else", r.GetReason(), r.GetLastError())
	}
	stop()
	m.until(t, "the narrow form's list", func() bool { return len(m.live()) == 1 && m.revision().RV == "20" })
	if r, _ := m.get("default/out"); r.DeleteReason != delta.FilteredOut {
		t.Errorf("what the form leaves out is %+v, want a tombstone that says so", r)
	}
	reflection(t, c, "pods", "the narrow form leads", func(r *reflectorv1.Reflection) bool { return watching(r) && r.GetReason() == "" })
	if m.resets != 1 {
		t.Errorf("%d resets, want readers to go on where they were", m.resets)
	}

	// What comes back is older than its tombstone: only a new epoch lets readers take it.
	stopNarrow()
	a.set(func(a *api) {
		a.onList = func(int, url.Values) (int, string) { return 200, list("30", "", item("in", 1), item("out", 2)) }
	})
	start(t, cfg, a.URL, nats)
	m.until(t, "both again", func() bool { return len(m.live()) == 2 && m.revision().RV == "30" })
	if lists := len(a.requests(false)); lists != 3 {
		t.Errorf("%d lists, want one for each change of the form", lists)
	}
}
