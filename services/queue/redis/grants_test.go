package redis

import (
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
)

func TestTheLatestLeaseGrantedOrExtendedIsRemembered(t *testing.T) {
	t.Parallel()
	const s = int64(time.Second / time.Microsecond)
	var g grants
	cfg := &workqueue.Config{LeaseFor: 10 * time.Second, MaxLease: time.Minute}
	if got := g.pause(0, cfg); got != time.Minute {
		t.Errorf("paused for %v where nothing is remembered, want the longest lease", got)
	}
	g.note(0, &workqueue.Result{Now: 100 * s, Leases: []workqueue.Lease{{Deadline: 140 * s}, {Deadline: 105 * s}}})
	g.note(time.Second, &workqueue.Result{Now: 101 * s, Leases: []workqueue.Lease{{Deadline: 102 * s}}})
	if got := g.pause(5*time.Second, cfg); got != 35*time.Second {
		t.Errorf("paused for %v after leases of 40 s and 1 s, want 35 s", got)
	}
	g.note(20*time.Second, &workqueue.Result{Now: 120 * s, Replies: []workqueue.Reply{{Deadline: 180 * s}, {Deadline: 130 * s}}})
	if got := g.pause(20*time.Second, cfg); got != time.Minute {
		t.Errorf("paused for %v after an extension, want a minute", got)
	}
	if got := g.pause(75*time.Second, cfg); got != cfg.LeaseFor {
		t.Errorf("paused for %v when little is left, want one lease time", got)
	}
	if left, some := g.left(90 * time.Second); left != 0 || !some {
		t.Errorf("%v left, %t, when the last has ended", left, some)
	}
	g = grants{}
	g.note(0, &workqueue.Result{Now: 100 * s, Replies: []workqueue.Reply{{}}})
	if left, some := g.left(0); some {
		t.Errorf("%v left of a transaction that granted nothing", left)
	}
}

func TestEachPartitionOfEachQueueHasAMemoryOfItsOwnForGood(t *testing.T) {
	t.Parallel()
	e := &Engine{grants: map[string][]*grants{}}
	met := map[*grants]string{}
	for _, round := range []bool{true, false} {
		for _, queue := range []string{"a", "b"} {
			for part, id := range []string{queue + "/0", queue + "/1", queue + "/2"} {
				g := e.granted(queue, part)
				if was, known := met[g]; known == round || known && was != id {
					t.Errorf("the memory of %s is %q", id, was)
				}
				met[g] = id
			}
		}
	}
}
