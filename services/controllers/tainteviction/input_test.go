package tainteviction_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/taint"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/controllers/tainteviction"
)

func TestBadInputIsJudgedWithoutAWrongEviction(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		taint   func(w *world) taint.Taint
		list    []taint.Toleration
		minute  string
		fiveMin string
	}{
		{"negative seconds go at once", func(w *world) taint.Taint { return w.taint("a") }, []taint.Toleration{tolerate("a", -5)}, "p", "p"},
		{"the most negative seconds go at once", func(w *world) taint.Taint { return w.taint("a") }, []taint.Toleration{tolerate("a", math.MinInt64)}, "p", "p"},
		{"huge seconds never end", func(w *world) taint.Taint { return w.taint("a") }, []taint.Toleration{tolerate("a", math.MaxInt64)}, "", ""},
		{"seconds one above what a duration holds never end", func(w *world) taint.Taint { return w.taint("a") }, []taint.Toleration{tolerate("a", math.MaxInt64/1_000_000_000+1)}, "", ""},
		{"an unknown operator beside one that matches", func(w *world) taint.Taint { return w.taint("a") }, []taint.Toleration{{Key: "a", Operator: "Like"}, tolerate("a", 200)}, "", "p"},
		{"a number to compare that is none", func(w *world) taint.Taint { return w.taint("a") }, []taint.Toleration{{Key: "a", Operator: "Gt", Value: "many", Effect: taint.NoExecute}}, "p", "p"},
		{"an unknown effect matches nothing", func(w *world) taint.Taint { return w.taint("a") }, []taint.Toleration{{Key: "a", Operator: taint.Exists, Effect: "Shake"}}, "p", "p"},
		{"an unknown effect of the taint evicts nobody", func(w *world) taint.Taint { return taint.Taint{Key: "a", Effect: "Shake", TimeAdded: new(w.now)} }, nil, "", ""},
		{"an unknown operator matches nothing", func(w *world) taint.Taint { return w.taint("a") }, []taint.Toleration{{Key: "a", Operator: "Like"}}, "p", "p"},
		{"no timeAdded", func(*world) taint.Taint { return taint.Taint{Key: "a", Effect: taint.NoExecute} }, []taint.Toleration{tolerate("a", 200)}, "", "p"},
		{"timeAdded in the year 1", func(*world) taint.Taint {
			return taint.Taint{Key: "a", Effect: taint.NoExecute, TimeAdded: new(time.Time{})}
		}, []taint.Toleration{tolerate("a", 200)}, "", "p"},
		{"timeAdded hours ago, by a clock that is behind", func(w *world) taint.Taint {
			return taint.Taint{Key: "a", Effect: taint.NoExecute, TimeAdded: new(w.now.Add(-30 * time.Minute))}
		}, []taint.Toleration{tolerate("a", 200)}, "p", "p"},
		{"timeAdded in the future", func(w *world) taint.Taint {
			return taint.Taint{Key: "a", Effect: taint.NoExecute, TimeAdded: new(w.now.Add(3 * time.Hour))}
		}, []taint.Toleration{tolerate("a", 200)}, "", "p"},
	} {
		w := newWorld(t)
		w.node("n", c.taint(w))
		w.pod("p", "n", c.list...)
		w.run(time.Minute)
		w.want(c.name+", after 1 min", c.minute)
		w.restart()
		w.wake("default/p")
		w.run(4 * time.Minute)
		w.want(c.name+", after 5 min", c.fiveMin)
	}
	w := newWorld(t)
	w.set("default/p", map[string]any{"metadata": map[string]any{"uid": 7}})
	if _, err := w.rec.Reconcile(t.Context(), tainteviction.Request{Key: "default/p", Reader: index{w}, Lease: lease{w, "default/p"}}); err == nil || !strings.Contains(err.Error(), "default/p") {
		t.Errorf("a pod that cannot be read: %v, want an error that names it", err)
	}
}

func TestConflictsOnEveryWriteForAMinuteOnlyDelayAnEviction(t *testing.T) {
	t.Parallel()
	for _, broken := range []string{"patch", "delete", "patch and delete"} {
		w := newWorld(t)
		began := w.now
		w.fail = func(call string) error {
			if strings.Contains(broken, call) && w.now.Before(began.Add(time.Minute)) {
				return fmt.Errorf("%w: changed meanwhile", kube.ErrConflict)
			}
			return nil
		}
		w.node("n", w.taint("a"))
		w.pod("now", "n")
		w.pod("soon", "n", tolerate("a", 20))
		w.pod("late", "n", tolerate("a", 90))
		w.pod("ever", "n", always("a"))
		w.run(59 * time.Second)
		for _, did := range w.did {
			if strings.HasPrefix(did, "delete") {
				t.Errorf("%s conflicts: %s", broken, did)
			}
		}
		w.did = nil // a pod may have been marked more than once
		w.run(5 * time.Second)
		if got := strings.Count(strings.Join(w.did, " "), "delete"); got != 2 {
			t.Errorf("%s conflicted for a minute: %v, want both that are due gone", broken, w.did)
		}
		w.run(time.Hour)
		if w.live["default/ever"] == nil || w.live["default/late"] != nil {
			t.Errorf("%s conflicted: %v", broken, w.did)
		}
	}
}

func TestANodeRecreatedUnderItsNameJudgesItsPodsAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.taint("a")
	w.node("n", first)
	w.pod("p", "n", tolerate("a", 100))
	w.pod("q", "n", tolerate("a", 100))
	w.run(60 * time.Second)
	w.set("n", nil)
	w.run(time.Second)
	w.node("n", w.taint("a")) // as tainted as the one before, and later
	w.live["n"]["metadata"].(map[string]any)["uid"] = "uid-of-another"
	w.podOf("q", "2", "n", tolerate("a", 5))
	w.run(10 * time.Second)
	w.want("q is another pod, which tolerates 5 s", "q")
	w.run(80 * time.Second)
	w.want("p counts from the taint of the node that is there", "q")
	w.run(10 * time.Second)
	w.want("100 s after it", "q p")
}
