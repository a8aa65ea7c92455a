package controller_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/deltaplane/deltaplane/client/controller"
)

func TestAMapperGetsTheObjectAsItWasBefore(t *testing.T) {
	t.Parallel()
	r, l := newRig(t, "pods", "nodes"), newLedger()
	want := r.fill(3, "0")
	podOf := func(payload []byte) []controller.Request {
		for key := range want {
			if strings.Contains(string(payload), `"value":"`+strings.TrimPrefix(key, "ns/")+`"`) {
				return controller.Requests(key)
			}
		}
		return nil
	}
	r.put("nodes", "n1", "p1")
	p := r.replica("a", func(c *controller.Controller) {
		c.For("pods").Watches("nodes", func(ch controller.Change) []controller.Request {
			keys := podOf(ch.Object.Payload)
			if ch.Previous != nil {
				keys = append(keys, podOf(ch.Previous.Payload)...)
			}
			return keys
		}, controller.Selection{Fields: []string{"value"}})
	}, l.reconcile, nil)
	l.shows(r, want)
	r.ready(p)
	r.settled(l, "0")
	others := l.ran("ns/p0")
	r.runsAgain(l, "the node left this pod", "ns/p1", func() { r.put("nodes", "n1", "p2") })
	r.settled(l, "1")
	if l.ran("ns/p2") < 2 {
		t.Error("the pod that the node moved to did not run")
	}
	if l.ran("ns/p0") != others {
		t.Error("a pod that the node never had ran again")
	}
}

// value says whether what the rig's objects hold has changed.
func value(c controller.Change) bool {
	return valueOf(c.Object.Payload) != valueOf(c.Previous.Payload)
}

func valueOf(payload []byte) string {
	_, v, _ := strings.Cut(string(payload), `"value":`)
	return v
}

func TestAPredicateLeavesOutUpdatesAndNothingElse(t *testing.T) {
	t.Parallel()
	r, l := newRig(t, "pods"), newLedger()
	r.put("pods", "ns/a", "1")
	r.put("pods", "ns/b", "1")
	p := r.replica("a", func(c *controller.Controller) {
		c.For("pods", controller.Selection{Fields: []string{"value"}, When: value})
	}, l.reconcile, nil)
	l.shows(r, map[string]string{"ns/a": "1", "ns/b": "1"})
	r.ready(p)
	r.settled(l, "0")
	before := l.ran("ns/a")
	r.put("pods", "ns/a", "1")
	r.settled(l, "1")
	if l.ran("ns/a") != before {
		t.Error("an update that the predicate refuses was reconciled")
	}
	r.put("pods", "ns/a", "2")
	r.put("pods", "ns/c", "1")
	r.delete("pods", "ns/b")
	l.shows(r, map[string]string{"ns/a": "2", "ns/b": "gone", "ns/c": "1"})
}

func TestAPredicateThatPanicsLosesNoKey(t *testing.T) {
	t.Parallel()
	r, l := newRig(t, "pods"), newLedger()
	r.put("pods", "ns/a", "1")
	p := r.replica("a", func(c *controller.Controller) {
		c.For("pods", controller.Selection{When: func(controller.Change) bool { panic("no idea") }})
	}, l.reconcile, nil)
	l.shows(r, map[string]string{"ns/a": "1"})
	r.ready(p)
	r.put("pods", "ns/a", "2")
	l.shows(r, map[string]string{"ns/a": "2"})
	if e := p.first(controller.EventMapperPanicked); e.Key != "ns/a" || !strings.Contains(e.Err.Error(), "no idea") {
		t.Errorf("event: %+v", e)
	}
}

func TestAPredicateDoesNotHideThatAnObjectHasAnotherOwner(t *testing.T) {
	t.Parallel()
	r, l := newRig(t, "pods", "configmaps"), newLedger()
	want := r.fill(3, "0")
	r.put("configmaps", "ns/c", "1", "p1")
	var mu sync.Mutex
	asked := 0
	p := r.replica("a", func(c *controller.Controller) {
		c.For("pods").Owns("configmaps", controller.Selection{Fields: []string{"value"}, When: func(controller.Change) bool {
			mu.Lock()
			defer mu.Unlock()
			asked++
			return false
		}})
	}, l.reconcile, nil)
	l.shows(r, want)
	r.ready(p)
	r.settled(l, "0")
	before := l.ran("ns/p1")
	r.put("configmaps", "ns/c", "2", "p1")
	r.eventually("the predicate is asked", func() string {
		mu.Lock()
		defer mu.Unlock()
		if asked == 0 {
			return "not yet"
		}
		return ""
	})
	r.settled(l, "1")
	if l.ran("ns/p1") != before {
		t.Error("an update that the predicate refuses was reconciled")
	}
	r.runsAgain(l, "another owner takes it", "ns/p2", func() { r.put("configmaps", "ns/c", "3", "p2") })
	r.settled(l, "2")
	if l.ran("ns/p1") == before {
		t.Error("the owner that lost the object did not run")
	}
}

func TestGenerationChangedLeavesOutUpdatesOfTheStatus(t *testing.T) {
	object := func(payload string) (c controller.Change) {
		c.Object.Payload = []byte(payload)
		return c
	}
	for _, c := range []struct {
		was, is string
		want    bool
	}{
		{`{"metadata":{"generation":2}}`, `{"metadata":{"generation":2,"labels":{"a":"b"}}}`, false},
		{`{"metadata":{"generation":2}}`, `{"metadata":{"generation":3}}`, true},
		{`{"metadata":{}}`, `{"metadata":{}}`, true},
		{`{"metadata":{"generation":2}}`, `{"metadata":`, true},
		{`{`, `{"metadata":{"generation":2}}`, true},
	} {
		change, was := object(c.is), object(c.was).Object
		change.Previous = &was
		if got := controller.GenerationChanged(change); got != c.want {
			t.Errorf("GenerationChanged(%s, before %s) = %t", c.is, c.was, got)
		}
	}
	if !controller.GenerationChanged(object(`{"metadata":{"generation":2}}`)) {
		t.Error("a change of an object that nobody knows from before was left out")
	}
}
