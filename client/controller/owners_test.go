package controller_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/deltaplane/deltaplane/client/controller"
)

func owning(c *controller.Controller) { c.For("pods").Owns("configmaps") }

func (r *rig) runsAgain(l *ledger, what, key string, change func()) {
	r.t.Helper()
	before := l.ran(key)
	change()
	r.eventually(what, func() string {
		if l.ran(key) == before {
			return key + " does not run again"
		}
		return ""
	})
}

func TestOwnersRunForWhatTheyOwnAndOwned(t *testing.T) {
	t.Parallel()
	onEachSource(t, ownersRunForWhatTheyOwnAndOwned, "pods", "configmaps")
}

func ownersRunForWhatTheyOwnAndOwned(t *testing.T, r *rig) {
	l := newLedger()
	want := r.fill(3, "0")
	p := r.replica("a", owning, l.reconcile, nil)
	l.shows(r, want)
	r.ready(p)
	r.settled(l, "1")
	other := l.ran("ns/p0")
	r.runsAgain(l, "an object is created", "ns/p1", func() { r.put("configmaps", "ns/c", "1", "p1") })
	r.runsAgain(l, "it changes", "ns/p1", func() { r.put("configmaps", "ns/c", "2", "p1") })
	r.runsAgain(l, "its owner lets go of it", "ns/p1", func() { r.put("configmaps", "ns/c", "3") })
	r.runsAgain(l, "another owner takes it", "ns/p2", func() { r.put("configmaps", "ns/c", "4", "p2") })
	r.runsAgain(l, "it is deleted", "ns/p2", func() { r.delete("configmaps", "ns/c") })
	r.settled(l, "2")
	if l.ran("ns/p0") != other {
		t.Error("a pod that owns nothing ran again")
	}
}

func TestAnOwnerRunsThatLostItsObjectWhileNobodyLed(t *testing.T) {
	t.Parallel()
	onEachSource(t, anOwnerRunsThatLostItsObjectWhileNobodyLed, "pods", "configmaps")
}

func anOwnerRunsThatLostItsObjectWhileNobodyLed(t *testing.T, r *rig) {
	l := newLedger()
	want := r.fill(3, "0")
	r.put("configmaps", "ns/released", "1", "p1")
	r.put("configmaps", "ns/deleted", "1", "p2")
	a := r.replica("a", owning, l.reconcile, nil)
	l.shows(r, want)
	r.ready(a)
	r.settled(l, "1")
	a.stop()
	before := map[string]int{"ns/p1": l.ran("ns/p1"), "ns/p2": l.ran("ns/p2")}
	r.put("configmaps", "ns/released", "2")
	r.delete("configmaps", "ns/deleted")
	b := r.replica("b", owning, l.reconcile, nil)
	for key, n := range before {
		r.eventually(key+" runs", func() string {
			if l.ran(key) == n {
				return "not yet"
			}
			return ""
		})
	}
	if n := b.count(controller.EventSweep); n != 0 {
		t.Errorf("%d rounds over every key, want none: the position is known", n)
	}
}

func TestTheScopeOfObjectsIsCheckedAtTheStart(t *testing.T) {
	t.Parallel()
	r := newRig(t, "nodes")
	r.put("nodes", "n1", "1")
	p := r.replica("a", func(c *controller.Controller) { c.For("nodes") }, func(context.Context, *replica, controller.Request) (controller.Result, error) {
		return controller.Result{}, errors.New("never")
	}, nil)
	if err := <-p.err; err == nil || !strings.Contains(err.Error(), "ClusterScoped is false, and dev/nodes.v1 has the object n1") {
		t.Errorf("Run() = %v", err)
	}
}
