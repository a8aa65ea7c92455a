package controller_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/client/controller"
)

// fill writes n pods and returns their keys with what they are.
func (r *rig) fill(n int, value string) map[string]string {
	r.t.Helper()
	all := map[string]string{}
	for i := range n {
		key := fmt.Sprintf("ns/p%d", i)
		r.put("pods", key, value)
		all[key] = value
	}
	return all
}

func TestThreeReplicasReconcileEachChangeOnceAndOneThatJoinsAddsNothing(t *testing.T) {
	t.Parallel()
	onEachSource(t, threeReplicasReconcileEachChangeOnceAndOneThatJoinsAddsNothing, "pods")
}

func threeReplicasReconcileEachChangeOnceAndOneThatJoinsAddsNothing(t *testing.T, r *rig) {
	l := newLedger()
	want := r.fill(40, "0")
	a, b, c := r.replica("a", forPods, l.reconcile, nil), r.replica("b", forPods, l.reconcile, nil), r.replica("c", forPods, l.reconcile, nil)
	r.ready(a, b, c)
	l.shows(r, want)
	changes := len(want)
	for round := range 5 {
		for key := range want {
			want[key] = fmt.Sprint(round + 1)
			r.put("pods", key, want[key])
			changes++
		}
	}
	l.shows(r, want)
	r.settled(l, "0")
	changes++
	if runs := l.total(); float64(runs) > 1.05*float64(changes) {
		t.Errorf("%d reconciles for %d changes", runs, changes)
	}
	before := l.total()
	d := r.replica("d", forPods, l.reconcile, nil)
	r.ready(d)
	// The joining replica leads in the end, by which time it has added whatever it would.
	for _, p := range []*replica{a, b, c} {
		p.stop()
	}
	if !r.leader(d).leads() {
		t.Fatal("nobody leads")
	}
	r.settled(l, "1")
	if n := l.total() - before; n != 1 {
		t.Errorf("%d reconciles for one change, after a replica joined and the others stopped", n)
	}
	if len(l.twice) > 0 {
		t.Errorf("reconciled by two at a time: %q", l.twice)
	}
}

func TestAnotherReplicaGoesOnWhereALeaderDied(t *testing.T) {
	t.Parallel()
	onEachSource(t, anotherReplicaGoesOnWhereALeaderDied, "pods")
}

func anotherReplicaGoesOnWhereALeaderDied(t *testing.T, r *rig) {
	l := newLedger()
	want := r.fill(30, "0")
	all := []*replica{r.replica("a", forPods, l.reconcile, nil), r.replica("b", forPods, l.reconcile, nil), r.replica("c", forPods, l.reconcile, nil)}
	r.ready(all...)
	l.shows(r, want)
	leader := r.leader(all...)
	var rest []*replica
	for _, p := range all {
		if p != leader {
			rest = append(rest, p)
		}
	}
	sweeps := 0
	for _, p := range all {
		sweeps += p.count(controller.EventSweep)
	}
	leader.lines.cut()
	killed := time.Now()
	for key := range want {
		want[key] = "1"
		r.put("pods", key, "1")
	}
	r.delete("pods", "ns/p7")
	want["ns/p7"] = "gone"
	r.leader(rest...)
	t.Logf("another replica leads after %v", time.Since(killed))
	l.shows(r, want)
	after := 0
	for _, p := range all {
		after += p.count(controller.EventSweep)
	}
	if after != sweeps {
		t.Errorf("%d rounds over every key, want none: the position is known", after-sweeps)
	}
}

func TestChangesWhileTheIndexIsDownAreNotLost(t *testing.T) {
	t.Parallel()
	r, l := newRig(t, "pods"), newLedger()
	want := r.fill(20, "0")
	p := r.replica("a", forPods, l.reconcile, nil)
	l.shows(r, want)
	r.settled(l, "0")
	r.stopIndex()
	r.put("pods", "ns/p3", "1")
	r.put("pods", "ns/new", "1")
	r.delete("pods", "ns/p5")
	want["ns/p3"], want["ns/new"], want["ns/p5"] = "1", "1", "gone"
	r.eventually("the failure is an event", func() string {
		if p.count(controller.EventWatchFailed) == 0 {
			return "none"
		}
		return ""
	})
	if err := p.Ready(); err == nil || !strings.Contains(err.Error(), "watch of dev/pods.v1") {
		t.Errorf("Ready() = %v, want the watch's failure", err)
	}
	before := l.ran("ns/p0")
	r.startIndex()
	l.shows(r, want)
	r.ready(p)
	if l.ran("ns/p0") != before {
		t.Error("a key that did not change was reconciled again")
	}
}

func TestEveryKeyIsAddedAgainWhenTheQueueLostItsStore(t *testing.T) {
	t.Parallel()
	onEachSource(t, everyKeyIsAddedAgainWhenTheQueueLostItsStore, "pods")
}

func everyKeyIsAddedAgainWhenTheQueueLostItsStore(t *testing.T, r *rig) {
	l := newLedger()
	want := r.fill(20, "0")
	a, b := r.replica("a", forPods, l.reconcile, nil), r.replica("b", forPods, l.reconcile, nil)
	r.ready(a, b)
	l.shows(r, want)
	for range 2 {
		before := map[string]int{}
		for key := range want {
			before[key] = l.ran(key)
		}
		r.stopQueue()
		r.put("pods", "ns/p3", "1")
		want["ns/p3"] = "1"
		r.startQueue()
		r.eventually("every key was reconciled again", func() string {
			for key := range want {
				if l.ran(key) == before[key] {
					return key
				}
			}
			return ""
		})
		l.shows(r, want)
	}
}

func TestANewEpochAddsEveryKey(t *testing.T) {
	t.Parallel()
	onEachSource(t, aNewEpochAddsEveryKey, "pods", "nodes")
}

func aNewEpochAddsEveryKey(t *testing.T, r *rig) {
	l := newLedger()
	r.put("nodes", "n1", "1")
	want := r.fill(5, "0")
	p := r.replica("a", func(c *controller.Controller) {
		c.For("pods").Watches("nodes", func(controller.Change) []controller.Request { return nil })
	}, l.reconcile, nil)
	l.shows(r, want)
	r.ready(p)
	for _, collection := range []string{"nodes", "pods"} {
		before := l.ran("ns/p0")
		r.lead(collection, true)
		if collection == "pods" {
			want = r.fill(5, "0")
		}
		r.eventually("a new epoch of "+collection, func() string {
			if l.ran("ns/p0") == before {
				return "ns/p0 did not run again"
			}
			return ""
		})
	}
	l.shows(r, want)
}

func TestTheRoundsOfAResyncAddEveryKey(t *testing.T) {
	t.Parallel()
	onEachSource(t, theRoundsOfAResyncAddEveryKey, "pods")
}

func theRoundsOfAResyncAddEveryKey(t *testing.T, r *rig) {
	l := newLedger()
	want := r.fill(3, "0")
	r.replica("a", forPods, l.reconcile, func(o *controller.Options) { o.Resync = time.Second })
	l.shows(r, want)
	r.eventually("three runs of each key", func() string {
		for key := range want {
			if l.ran(key) < 3 {
				return key
			}
		}
		return ""
	})
}

func TestAMapperThatPanicsLosesNoKey(t *testing.T) {
	t.Parallel()
	r, l := newRig(t, "pods", "nodes"), newLedger()
	r.put("nodes", "n1", "1")
	want := r.fill(5, "0")
	var panics atomic.Bool
	p := r.replica("a", func(c *controller.Controller) {
		c.For("pods").Watches("nodes", func(ch controller.Change) []controller.Request {
			if panics.Load() {
				panic("no such node")
			}
			return nil
		})
	}, l.reconcile, nil)
	l.shows(r, want)
	r.ready(p)
	before := l.ran("ns/p0")
	panics.Store(true)
	r.put("nodes", "n1", "2")
	r.eventually("every key was added", func() string {
		if l.ran("ns/p0") == before {
			return "not yet"
		}
		return ""
	})
	e := p.first(controller.EventMapperPanicked)
	if err, ok := errors.AsType[*controller.PanicError](e.Err); !ok || err.Key != "n1" || err.Collection != "dev/nodes.v1" || err.Value != "no such node" {
		t.Errorf("event: %+v", e)
	}
}

func TestAMapperNamesKeys(t *testing.T) {
	t.Parallel()
	r, l := newRig(t, "pods", "nodes"), newLedger()
	want := r.fill(3, "0")
	p := r.replica("a", func(c *controller.Controller) {
		c.For("pods").Watches("nodes", func(ch controller.Change) []controller.Request {
			if strings.Contains(string(ch.Object.Payload), `"value":"p1"`) {
				return controller.Requests("ns/p1", "a/b/c")
			}
			return nil
		}, controller.Selection{Fields: []string{"value"}})
	}, l.reconcile, nil)
	l.shows(r, want)
	r.ready(p)
	r.settled(l, "0")
	before := l.ran("ns/p0")
	r.put("nodes", "n1", "other")
	r.put("nodes", "n1", "p1")
	r.eventually("the key ran", func() string {
		if l.ran("ns/p1") < 2 {
			return "not yet"
		}
		return ""
	})
	if l.ran("ns/p0") != before {
		t.Error("another key ran too")
	}
	if e := p.first(controller.EventBadKey); e.Key != "a/b/c" || e.Err == nil {
		t.Errorf("event: %+v", e)
	}
}

func TestASelectionIsWhatIsReconciled(t *testing.T) {
	t.Parallel()
	r, l := newRig(t, "pods"), newLedger()
	r.put("pods", "kept/a", "1")
	r.put("pods", "other/a", "1")
	r.replica("a", func(c *controller.Controller) { c.For("pods", controller.Selection{Namespaces: []string{"kept"}}) }, l.reconcile, nil)
	l.shows(r, map[string]string{"kept/a": "1"})
	r.put("pods", "other/b", "1")
	r.put("pods", "kept/b", "1")
	l.shows(r, map[string]string{"kept/b": "1"})
	if l.ran("other/a")+l.ran("other/b") > 0 {
		t.Error("an object outside of the selection was reconciled")
	}
}
