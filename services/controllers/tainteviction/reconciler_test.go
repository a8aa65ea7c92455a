package tainteviction_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/taint"
)

func TestCreatePod(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		node    string
		tainted bool
		list    []taint.Toleration
		evicted string
	}{
		{"unscheduled", "", true, nil, ""},
		{"untainted node", "n", false, nil, ""},
		{"tainted", "n", true, nil, "p"},
		{"tolerates 100 s", "n", true, []taint.Toleration{tolerate("a", 100)}, ""},
		{"tolerates for ever", "n", true, []taint.Toleration{always("a")}, ""},
		{"tolerates another taint", "n", true, []taint.Toleration{always("b")}, "p"},
	} {
		w := newWorld(t)
		if c.tainted {
			w.node("n", w.taint("a"))
		} else {
			w.node("n")
		}
		w.run(time.Second)
		w.pod("p", c.node, c.list...)
		w.run(5 * time.Second)
		w.want(c.name, c.evicted)
	}
}

func TestUpdatePodTolerationsThatChangeMoveTheDeadline(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.node("n", w.taint("a"))
	w.pod("bound", "")
	w.pod("careless", "")
	w.pod("removed", "n", tolerate("a", 100))
	w.pod("lengthened", "n", tolerate("a", 1))
	w.pod("shortened", "n", tolerate("a", 100))
	w.run(500 * time.Millisecond)
	w.pod("bound", "n")
	w.pod("careless", "n", always("a"))
	w.pod("removed", "n")
	w.pod("lengthened", "n", tolerate("a", 100))
	w.pod("shortened", "n", tolerate("a", 10))
	w.run(time.Second)
	w.want("after 1.5 s", "bound removed")
	w.run(9 * time.Second)
	w.want("after 10.5 s: the shortened one goes at 10 s, not at 100 s (fixed)", "bound removed shortened")
	w.run(89 * time.Second)
	w.want("after 99.5 s: the lengthened one has not gone at 1 s (fixed)", "bound removed shortened")
	w.run(time.Second)
	w.want("after 100.5 s", "bound removed shortened lengthened")
}

func TestUpdateNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, n := range []string{"added", "tolerated", "one-of-two", "removed", "both"} {
		w.node(n)
	}
	w.pod("added", "added")
	w.pod("tolerated", "tolerated", tolerate("a", 100))
	w.pod("one-of-two", "one-of-two", always("a"))
	w.pod("removed", "removed", tolerate("a", 1))
	w.pod("both", "both", tolerate("a", 1), tolerate("b", 100))
	w.run(time.Minute)
	w.want("without taints", "")
	w.node("added", w.taint("a"))
	w.node("tolerated", w.taint("a"))
	w.node("one-of-two", w.taint("a"), w.taint("b"))
	w.node("removed", w.taint("a"))
	w.node("both", w.taint("a"), w.taint("b"))
	w.run(500 * time.Millisecond)
	w.want("at once", "added one-of-two")
	w.node("removed")
	w.run(499 * time.Millisecond)
	w.want("before 1 s", "added one-of-two")
	w.run(time.Millisecond)
	w.want("at 1 s", "added one-of-two both")
	w.run(50 * time.Second)
	w.want("a taint removed within 1 s cancels", "added one-of-two both")
	if !slices.Contains(w.events, "TaintManagerEviction: Cancelling deletion of Pod default/removed") ||
		!slices.Contains(w.events, "TaintManagerEviction: Marking for deletion Pod default/both") {
		t.Errorf("events = %q", w.events)
	}
	if n := strings.Count(strings.Join(w.events, "\n"), "Cancelling"); n != 1 {
		t.Errorf("%d cancellations are reported, want only that of the countdown that ran: %q", n, w.events)
	}
	if got := w.counted("taint_eviction_controller_pod_deletions_total"); got != 3 {
		t.Errorf("pod_deletions_total = %v, want 3", got)
	}
}

func TestUpdateNodeWithMultiplePods(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.node("n", w.taint("a"))
	w.pod("none", "n")
	w.pod("one", "n", tolerate("a", 1))
	w.pod("ever", "n", always("a"))
	w.run(0)
	w.want("at 0", "none")
	w.run(time.Second)
	w.want("at 1 s", "none one")
	w.run(time.Hour)
	w.want("for ever", "none one")
	w.node("n", w.taint("a"), w.taint("b"))
	w.run(0)
	w.want("a second taint that is not tolerated", "none one ever")
}

func TestUpdateNodeWithMultipleTaintsQueuesOnlyWhatEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ever, minute := always("a"), tolerate("b", 60)
	queued := func() bool { _, ok := w.due["default/p"]; return ok }
	w.node("n")
	w.pod("p", "n", ever, minute)
	w.run(time.Second)
	for _, c := range []struct {
		name   string
		taints []taint.Taint
		want   bool
	}{{"none", nil, false}, {"tolerated for ever", []taint.Taint{w.taint("a")}, false}, {"and one for 60 s", []taint.Taint{w.taint("a"), w.taint("b")}, true}} {
		w.node("n", c.taints...)
		w.run(time.Second)
		if queued() != c.want {
			t.Errorf("%s: queued = %v, want %v", c.name, queued(), c.want)
		}
	}
	w.node("n", w.taint("a"))
	w.run(2 * time.Minute)
	w.want("the second taint was removed", "")
	if queued() {
		t.Error("queued without an end")
	}
}

func TestEventualConsistencyAPodUnknownAtTheNodesUpdateIsEvictedOnItsOwn(t *testing.T) {
	t.Parallel()
	for _, existing := range []bool{false, true} {
		for _, unbound := range []bool{false, true} {
			w := newWorld(t)
			w.node("n")
			if existing {
				w.pod("old", "n")
			}
			if unbound {
				w.pod("new", "")
			}
			w.run(time.Second)
			w.node("n", w.taint("a"))
			w.run(20 * time.Millisecond)
			w.pod("new", "n")
			w.run(0)
			want := "new"
			if existing {
				want = "old new"
			}
			w.want(fmt.Sprint(existing, unbound), want)
		}
	}
}

func TestANodesPodsAreListedOnceMore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.node("n")
	w.run(time.Second)
	w.frozen = true
	w.pod("p", "n")
	w.frozen = false
	w.node("n", w.taint("a"))
	w.run(time.Second)
	w.index["default/p"] = w.live["default/p"] // shown late, and its own look was before the taint's
	w.run(10 * time.Second)
	w.want("listed again", "p")
}

func TestARestartMovesNoDeadline(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.node("n", w.taint("a"))
	w.pod("p", "n", tolerate("a", 300))
	w.run(100 * time.Second)
	w.restart() // the process is lost, the queue's store is not
	w.run(100 * time.Second)
	w.restart()
	w.due, w.states = map[string]time.Time{}, map[string][]byte{} // and now the store as well
	w.wake("default/p")
	w.wake("n")
	w.run(99 * time.Second)
	w.want("at 299 s", "")
	w.run(time.Second)
	w.want("at 300 s", "p")
}

func TestALaterStricterTaintMakesTheDeadlineEarlier(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.taint("a")
	w.node("n", first)
	w.pod("p", "n", tolerate("a", 300), tolerate("b", 5))
	w.run(100 * time.Second)
	w.node("n", first, w.taint("b"))
	w.run(4 * time.Second)
	w.want("4 s later", "")
	w.run(time.Second)
	w.want("5 s later", "p")
}

func TestATaintThatChangesItsKeyDoesNotRestartTheCountdown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pod("p", "n", tolerate(taint.NotReady, 300), tolerate(taint.Unreachable, 300))
	w.pod("delayed", "n", tolerate(taint.NotReady, 300), tolerate(taint.Unreachable, 3600))
	w.pod("changed", "n", tolerate(taint.NotReady, 300), tolerate(taint.Unreachable, 300))
	w.pod("faithful", "n", tolerate(taint.NotReady, 300), always(taint.Unreachable))
	keys := []string{taint.NotReady, taint.Unreachable}
	for i := range 6 { // the node flaps every 50 s
		w.node("n", w.taint(keys[i%2]))
		if i == 3 {
			w.restart()
			w.pod("changed", "n", tolerate(taint.NotReady, 400), tolerate(taint.Unreachable, 400))
		}
		w.run(50*time.Second - time.Millisecond)
		w.want(fmt.Sprint("change ", i), "")
		w.run(time.Millisecond)
	}
	w.want("300 s after the first taint", "delayed p")
	w.node("n", w.taint(taint.NotReady)) // after 300 s of unbroken taints
	w.run(250*time.Second - time.Millisecond)
	w.want("tolerations that changed are counted from the taint that stood then, which was placed at 150 s", "delayed p")
	w.run(time.Millisecond)
	w.want("400 s after that taint", "delayed p changed")
	w.node("n")
	w.run(time.Second)
	w.node("n", w.taint(taint.NotReady))
	w.run(299 * time.Second)
	w.want("a node that was well in between begins again", "delayed p changed")
	w.run(time.Second)
	w.want("after 300 s of the second outage", "delayed p changed faithful")
}

func TestAnIndexThatMissedARecoveryDoesNotEndANewCountdownEarly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.node("n", w.taint(taint.NotReady))
	w.pod("p", "n", tolerate(taint.NotReady, 300), tolerate(taint.Unreachable, 300))
	w.run(290 * time.Second)
	w.frozen = true
	w.node("n") // well again for a moment, of which the index shows nothing
	w.now = w.now.Add(5 * time.Second)
	w.node("n", w.taint(taint.Unreachable))
	w.run(20 * time.Second)
	w.want("the index shows a taint that the node has not any more", "")
	w.index["n"] = map[string]any{"metadata": w.live["n"]["metadata"], "spec": map[string]any{}} // it catches up, state by state
	w.wake("n")
	w.run(time.Second)
	w.catchUp("n")
	w.run(278 * time.Second)
	w.want("before 300 s of the taint that stands", "")
	w.run(time.Second)
	w.want("after 300 s of the taint that stands", "p")

	// A stay that the taints end by themselves waits for no index.
	w = newWorld(t)
	first := w.taint("a")
	w.node("n", first)
	w.pod("p", "n", tolerate("a", 10))
	w.run(5 * time.Second)
	w.frozen = true
	w.node("n", first, w.taint("b"))
	w.run(5 * time.Second)
	w.want("the index shows one of two taints", "p")
}

func TestFailedEvictionsAreRetriedUntilThePodIsGone(t *testing.T) {
	t.Parallel()
	for _, broken := range []string{"get", "patch", "delete"} {
		w := newWorld(t)
		calls := 0
		w.fail = func(call string) error {
			if call == broken && calls < 60 {
				calls++
				return errDown
			}
			return nil
		}
		w.node("n", w.taint("a"))
		w.pod("p", "n")
		w.run(30 * time.Second)
		if slices.Contains(w.did, "delete p") {
			t.Fatalf("%s is down: %v", broken, w.did)
		}
		w.run(time.Minute)
		if !slices.Contains(w.did, "delete p") {
			t.Errorf("after %s failed 60 times (upstream gives up after 5): %v", broken, w.did)
		}
		if n := strings.Count(strings.Join(w.events, "\n"), "Marking"); broken != "get" && n != 1 {
			t.Errorf("%s: %d times told that it is marked", broken, n)
		}
	}
}

func TestATaintRemovedWhileTheIndexLagsEvictsNoPod(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.node("n", w.taint("a"))
	w.run(time.Second)
	w.frozen = true
	w.node("n") // nobody has told the index
	w.pod("fresh", "n")
	w.catchUp("default/fresh")
	w.run(time.Minute)
	w.want("119862, 139992", "")
}

func TestAnotherPodOfTheSameNameIsNotEvicted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.node("n", w.taint("a"))
	w.node("m")
	w.pod("p", "n", tolerate("a", 10))
	w.run(5 * time.Second)
	w.frozen = true
	w.podOf("p", "2", "m") // a replacement elsewhere that the index does not show yet
	w.run(time.Minute)
	w.want("the replacement", "")
	w.catchUp("default/p")
	w.run(time.Minute)
	w.want("shown", "")
	w.frozen = false
	w.node("m", w.taint("a"))
	w.run(time.Second)
	w.want("the stale entry blocks nothing (107543)", "p")

	// Replaced between the last look and the delete: the UID holds it back.
	w = newWorld(t)
	w.node("n", w.taint("a"))
	w.pod("p", "n")
	swapped := false
	w.fail = func(call string) error {
		if call == "delete" && !swapped {
			swapped = true
			w.podOf("p", "2", "n", always("a"))
		}
		return nil
	}
	w.run(time.Minute)
	w.want("replaced in the last moment", "")
}

func TestACountdownGoesOnWithoutItsNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.node("n", w.taint("a"))
	w.pod("p", "n", tolerate("a", 10))
	w.pod("calm", "n", always("a"))
	w.run(5 * time.Second)
	w.set("n", nil)
	w.wake("default/p")
	w.run(4 * time.Second)
	w.want("at 9 s", "")
	w.run(time.Second)
	w.want("at 10 s", "p")

	// Recreated under its name it is judged by what it is.
	w = newWorld(t)
	w.node("n", w.taint("a"))
	w.pod("p", "n", tolerate("a", 10))
	w.run(5 * time.Second)
	w.set("n", nil)
	w.run(time.Second)
	w.node("n")
	w.run(time.Minute)
	w.want("recreated without taints", "")
}

// Random histories: pods are evicted exactly when the rules say so, whatever
// crashes and lags there were in between.
func TestRandomHistoriesEvictExactlyThoseWhoseTimeIsOver(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 4))
		w := newWorld(t)
		w.node("n")
		for i := range 4 {
			w.pod(fmt.Sprint("p", i), "n", tolerate("a", int64(r.IntN(40))), tolerate("b", int64(r.IntN(40))))
		}
		for range 30 {
			switch r.IntN(7) {
			case 0:
				w.node("n", w.taint("a"))
			case 1:
				w.node("n", w.taint("a"), w.taint("b"))
			case 2:
				w.node("n")
			case 3:
				if key := fmt.Sprint("p", r.IntN(4)); w.live["default/"+key] != nil {
					w.pod(key, "n", tolerate("a", int64(r.IntN(40))))
				}
			case 4:
				w.restart()
			case 5: // the queue's store is lost, and filled again
				w.due, w.states = map[string]time.Time{}, map[string][]byte{}
				for key := range w.live {
					w.wake(key)
				}
			case 6:
				n := r.IntN(4)
				w.fail = func(string) error {
					if n--; n >= 0 {
						return errDown
					}
					return nil
				}
			}
			w.run(time.Duration(r.IntN(15)) * time.Second)
			w.fail = nil
			w.run(4 * time.Second) // whatever failed has been tried again
			w.check(seed)
		}
	}
}

// check compares the pods that are left with the rules.
func (w *world) check(seed uint64) {
	w.t.Helper()
	node := w.live["n"]["spec"].(map[string]any)["taints"].([]taint.Taint)
	for key, obj := range w.live {
		if key == "n" {
			continue
		}
		list := obj["spec"].(map[string]any)["tolerations"].([]taint.Toleration)
		if stay, _ := (taint.Rules{}).Stay(w.now, node, taint.Pod{Tolerations: list}, nil); stay.Due(w.now) {
			w.t.Fatalf("seed %d: %s is still there %v after its time", seed, key, w.now.Sub(stay.Ends))
		}
	}
}
