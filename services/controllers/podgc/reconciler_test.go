package podgc_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	rules "github.com/deltaplane/deltaplane/core/podgc"
	"github.com/deltaplane/deltaplane/core/taint"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/controllers/podgc"
)

const quarantine = 40 * time.Second

func TestThePodsOfAVanishedNodeAreFailedAndDeletedAfterTheQuarantine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.node("n", "True")
	w.node("other", "True")
	w.pod("elsewhere", "other", "Running")
	w.pod("waits", "", "Pending")
	w.pod("runs", "n", "Running")
	w.run(time.Minute)
	w.gone("n")
	w.run(quarantine - 1)
	w.want("within the quarantine")
	if w.said["n"] != rules.Gone || w.said["other"] != "" {
		t.Errorf("the missing node's key waits because of %q, the other's of %q", w.said["n"], w.said["other"])
	}
	w.run(1)
	w.want("at its end", "fail runs"+disrupted, "delete runs")
	if n, failed := w.counted("force_delete_pods_total", rules.Orphaned), w.counted("force_delete_pod_errors_total", rules.Orphaned); n != 1 || failed != 0 {
		t.Errorf("counted %v and %v failed, want 1 and 0", n, failed)
	}
	w.run(time.Hour)
	w.want("afterwards")
	if len(w.states) != 0 || len(w.due) != 0 {
		t.Errorf("kept are %q, due %v", w.states, w.due)
	}
}

func TestAPodThatHasEndedIsDeletedAsItEnded(t *testing.T) {
	t.Parallel()
	for _, phase := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed} {
		w := newWorld(t)
		w.pod("p", "n", phase)
		w.run(quarantine)
		w.want(string(phase), "delete p")
	}
}

func TestAPodThatIsBoundToAMissingNodeLaterWaitsForItsOwnQuarantine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.node("n", "True")
	w.run(time.Second)
	w.gone("n")
	w.run(10 * time.Minute)
	w.pod("p", "n", "Pending")
	w.run(quarantine - 1)
	w.want("within the quarantine")
	w.run(1)
	w.want("at its end", "fail p"+disrupted, "delete p")
}

func TestARestartWithinTheQuarantineMovesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.node("n", "True")
	w.pod("p", "n", "Running")
	w.run(time.Second)
	w.gone("n")
	for range 3 {
		w.run(10 * time.Second)
		w.restart()
		w.sweep() // of what the index knows, which the node is not part of
	}
	w.run(10*time.Second - 1)
	w.sweep()
	w.run(0)
	w.want("within the quarantine")
	w.run(1)
	w.want("at its end", "fail p"+disrupted, "delete p")
}

func TestANodeThatVanishedWhileNothingRanIsFoundByItsPods(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.node("n", "True")
	w.pod("p", "n", "Running")
	w.pod("q", "n", "Running", finalizer)
	w.gone("n")
	w.due = map[string]time.Time{} // and the queue's store is new
	w.run(time.Hour)
	w.want("while nothing runs")
	w.restart()
	w.sweep()
	w.run(quarantine - 1)
	w.want("within the quarantine")
	w.run(1)
	slices.Sort(w.did) // pods of one node are written side by side
	w.want("at its end", "delete p", "delete q", "fail p"+disrupted, "fail q"+disrupted)
}

func TestANodeThatReturnsEndsTheQuarantine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.node("n", "True")
	w.pod("p", "n", "Running")
	w.run(time.Second)
	w.gone("n")
	w.run(quarantine - 1)
	w.node("n", "False") // another one of its name
	w.run(time.Hour)
	w.want("the node is back")
	if len(w.states) != 0 {
		t.Errorf("kept are %q", w.states)
	}
	w.gone("n")
	w.run(time.Second)
	w.node("n", "True")
	w.run(time.Second)
	w.gone("n")
	w.run(quarantine - 1)
	w.want("it vanished again: the quarantine is a new one")
	w.run(1)
	w.want("at its end", "fail p"+disrupted, "delete p")
}

func TestAnIndexThatIsBehindDeletesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.node("n", "True")
	w.pod("p", "n", "Running")
	w.run(time.Second)
	w.gone("n")
	w.run(time.Second)
	w.frozen = true
	w.node("n", "True") // which the index does not show
	w.run(time.Hour)
	w.want("the node lives")
	w.sweep()
	w.run(time.Hour)
	w.want("nor does another round")
	w.thaw()
	w.run(time.Hour)
	w.want("nor when it shows")
}

func TestWhileNobodyFollowsTheCollectionsNothingIsDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.rules = rules.Rules{Threshold: new(1)}
	w.restart()
	w.stale = true
	w.node("shut", "False", taint.OutOfService)
	w.pod("orphan", "n", "Running")
	w.pod("shut", "shut", "Running", w.ending(30))
	w.pod("unbound", "", "Pending", w.ending(0))
	w.pod("ended-1", "shut", "Failed")
	w.pod("ended-2", "shut", "Failed")
	w.due[podgc.TerminatedKey] = w.now
	for _, key := range []string{"default/shut", "default/unbound", podgc.TerminatedKey} {
		if err := w.look(key); !errors.Is(err, podgc.ErrStale) {
			t.Errorf("%s: %v, want ErrStale", key, err)
		}
	}
	w.run(10 * time.Minute)
	w.want("stale")
	w.stale = false
	w.run(time.Minute)
	if n := len(w.did); n != 3*2+1 {
		t.Errorf("afterwards: %q, want four pods gone", w.did)
	}
}

func TestAPodIsJudgedAsItIsNow(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(w *world)
		want   []string
	}{
		{"gone", func(w *world) { w.gone("default/p") }, nil},
		{"another one on a node that lives", func(w *world) { w.pod("p", "other", "Running") }, nil},
		{"another one without a node", func(w *world) { w.pod("p", "", "Pending") }, nil},
		{"another one on a node that is missing too", func(w *world) { w.pod("p", "third", "Running") }, nil},
		{"another one on the same node", func(w *world) { w.pod("p", "n", "Running") }, []string{"fail p" + disrupted, "delete p"}},
		{"it has succeeded", func(w *world) { w.live.pods["default/p"].Status.Phase = corev1.PodSucceeded }, []string{"delete p"}},
	} {
		w := newWorld(t)
		w.node("other", "True")
		w.pod("p", "n", "Running")
		w.run(time.Second)
		w.frozen = true
		c.change(w)
		w.run(quarantine)
		w.want(c.name, c.want...)
	}
}

func TestAPodThatEndsUnderTheWriteKeepsItsPhase(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pod("p", "n", "Running")
	once := true
	w.fail = func(call, _ string) error {
		if call == "patch" && once {
			once = false
			p := w.live.pods["default/p"]
			p.Status.Phase = corev1.PodSucceeded
			w.version(p)
		}
		return nil
	}
	w.run(quarantine + 10*time.Second)
	w.want("it ended between the look and the write", "delete p")
}

func TestANodeThatComesBackUnderTheRoundKeepsItsPods(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pod("p", "n", "Running")
	w.frozen = true
	w.fail = func(call, key string) error {
		if call == "get" && key == "default/p" {
			w.live.nodes["n"] = &corev1.Node{}
		}
		return nil
	}
	w.run(time.Hour)
	w.want("its node is read behind it")
}

func TestFailuresOnlyDelayAndOnlyThePodThatFails(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		call   string
		err    error
		failed []string // writes to p while it fails
	}{
		{"get", errDown, nil},
		{"patch", errDown, nil},
		{"patch", fmt.Errorf("%w: changed", kube.ErrConflict), nil},
		{"patch", &kube.StatusError{Code: 403}, nil},
		{"delete", errDown, []string{"fail p" + disrupted}},
		{"delete", fmt.Errorf("%w: changed", kube.ErrConflict), []string{"fail p" + disrupted}},
	} {
		what := fmt.Sprint(c.call, " fails with ", c.err)
		w := newWorld(t)
		w.pod("p", "n", "Running")
		w.pod("q", "n", "Succeeded")
		w.fail = func(call, key string) error {
			if call == c.call && key == "default/p" {
				return c.err
			}
			return nil
		}
		w.run(quarantine + time.Minute)
		if i := slices.Index(w.did, "delete q"); i < 0 {
			t.Errorf("%s: the other pod stays: %q", what, w.did)
		} else {
			w.did = slices.Delete(w.did, i, i+1)
		}
		w.want(what, c.failed...)
		if n := w.counted("force_delete_pod_errors_total", rules.Orphaned); (n > 0) != (c.call != "get") {
			t.Errorf("%s: %v failures are counted", what, n)
		}
		w.fail = nil
		w.run(2 * time.Second)
		if n := len(w.did); n == 0 || w.did[n-1] != "delete p" {
			t.Errorf("%s: afterwards %q, want p gone", what, w.did)
		}
	}
}

func TestWhatIsGoneUnderTheWriteIsNoFailure(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"patch", "delete"} {
		w := newWorld(t)
		w.pod("p", "n", "Running")
		w.fail = func(what, _ string) error {
			if what == call {
				delete(w.live.pods, "default/p")
			}
			return nil
		}
		w.run(quarantine)
		w.gone("default/p")
		w.run(quarantine) // the pod's last event may have begun another one
		if w.states["n"] != nil {
			t.Errorf("gone under the %s: the node keeps %s", call, w.states["n"])
		}
		if n := w.counted("force_delete_pod_errors_total", rules.Orphaned); n != 0 {
			t.Errorf("gone under the %s: %v failures", call, n)
		}
	}
}

func TestALostLeaseWritesNothing(t *testing.T) {
	t.Parallel()
	lost := errors.New("the lease is lost")
	w := newWorld(t)
	w.rules = rules.Rules{Threshold: new(1)}
	w.restart()
	w.node("shut", "False", taint.OutOfService)
	w.pod("orphan", "n", "Running")
	w.pod("shut", "shut", "Running", w.ending(30))
	w.pod("unbound", "", "Pending", w.ending(0))
	w.pod("ended-1", "shut", "Failed")
	w.pod("ended-2", "shut", "Failed")
	w.run(0)
	w.did = nil // what had its lease
	w.pod("shut", "shut", "Running", w.ending(30))
	w.pod("unbound", "", "Pending", w.ending(0))
	w.now = w.now.Add(quarantine)
	w.fail = func(call, _ string) error {
		if call == "alive" {
			return lost
		}
		return nil
	}
	for _, key := range []string{"n", "default/shut", "default/unbound", podgc.TerminatedKey} {
		if err := w.look(key); !errors.Is(err, lost) {
			t.Errorf("%s: %v, want that the lease is lost", key, err)
		}
	}
	w.want("without a lease")
	if w.states["n"] == nil {
		t.Error("the quarantine is forgotten")
	}
}

func TestLateAndRepeatedWakesChangeNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.node("n", "True")
	w.pod("p", "n", "Running")
	w.pod("held", "n", "Running", finalizer)
	w.run(time.Second)
	w.gone("n")
	for range 39 {
		for _, key := range []string{"n", "default/p", "default/held", "default/never", "never"} {
			w.due[key] = w.now
		}
		w.run(time.Second)
	}
	w.want("within the quarantine")
	w.run(time.Second)
	slices.Sort(w.did)
	w.want("at its end", "delete held", "delete p", "fail held"+disrupted, "fail p"+disrupted)
	for range 10 {
		for _, key := range []string{"n", "default/p", "default/held"} {
			w.due[key] = w.now
		}
		w.run(time.Minute)
	}
	w.want("p is gone, and only a finalizer keeps the other one")
}

func TestAPodThatIsDeletedBeforeItIsBoundIsFailedAndDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pod("waits", "", "Pending")
	w.pod("held", "", "Pending", finalizer, w.ending(0))
	w.run(time.Second)
	w.want("at once, and it is no disruption", "fail held", "delete held")
	if n := w.counted("force_delete_pods_total", rules.Unscheduled); n != 1 {
		t.Errorf("counted %v, want 1", n)
	}
	w.frozen = true
	w.pod("bound", "", "Pending", w.ending(0))
	w.frozen = false
	w.changed("default/bound")
	w.live.pods["default/bound"].Spec.NodeName = "n" // bound meanwhile
	w.node("n", "True")
	w.run(time.Hour)
	w.want("one that was bound meanwhile is its node's")
}

func TestAPodThatIsDeletedOnANodeOutOfServiceIsFailedAndDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.node("n", "False")
	w.pod("stays", "n", "Running")
	w.pod("goes", "n", "Running", w.ending(30))
	w.pod("ended", "n", "Failed", w.ending(30))
	w.run(time.Hour)
	w.want("a node that is not ready")
	w.node("n", "True", taint.OutOfService)
	w.run(time.Hour)
	w.want("a node that is well")
	w.node("n", "Unknown", taint.OutOfService)
	w.run(time.Second)
	w.want("out of service", "delete ended", "fail goes", "delete goes")
	if n := w.counted("force_delete_pods_total", rules.OutOfService); n != 2 {
		t.Errorf("counted %v, want 2", n)
	}
	w.pod("stays", "n", "Running", w.ending(30))
	w.run(time.Second)
	w.want("deleted later", "fail stays", "delete stays")

	w.frozen = true
	w.pod("late", "n", "Running", w.ending(30))
	w.run(time.Hour)
	w.want("the index does not show it")
	w.frozen = false
	follow(w.live.pods, w.index.pods, "default/late") // and nobody wakes it
	w.run(20 * time.Second)
	w.want("its node's next look finds it", "fail late", "delete late")

	w.pod("next", "n", "Running")
	w.run(time.Second)
	w.frozen = true
	w.node("n", "True")
	w.pod("next", "n", "Running", w.ending(30))
	follow(w.live.pods, w.index.pods, "default/next")
	w.run(time.Hour)
	w.want("it is back in service, which the index does not show")
}

func TestEndedPodsAboveTheThresholdAreDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.rules = rules.Rules{Threshold: new(3)}
	w.restart()
	w.node("n", "True")
	w.due[podgc.TerminatedKey] = w.now
	for _, name := range []string{"b", "c", "d"} {
		w.pod(name, "n", "Succeeded")
		w.run(time.Second)
	}
	w.pod("runs", "n", "Running")
	w.run(time.Minute)
	w.want("no more than the threshold")
	if w.lists != 0 {
		t.Errorf("pods were read %d times although they are not too many", w.lists)
	}
	w.pod("a", "n", "Failed", func(p *corev1.Pod) { p.Status.Reason = "Evicted" })
	w.run(20 * time.Second)
	w.want("the evicted one goes first", "delete a")
	w.pod("e", "n", "Failed", finalizer)
	w.pod("f", "n", "Failed")
	w.run(20 * time.Second)
	slices.Sort(w.did)
	w.want("then the oldest", "delete b", "delete c")
	if n := w.counted("force_delete_pods_total", rules.Terminated); n != 3 {
		t.Errorf("counted %v, want 3", n)
	}
}

func TestAnEndedPodThatChangedIsNotDeletedAsItWas(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.rules = rules.Rules{Threshold: new(1)}
	w.restart()
	w.node("n", "True")
	w.pod("held", "n", "Succeeded", finalizer, w.ending(0))
	w.run(time.Second)
	w.pod("a", "n", "Succeeded")
	w.pod("b", "n", "Succeeded")
	w.run(time.Second)
	w.pod("c", "n", "Succeeded")
	w.frozen = true
	w.pod("a", "n", "Running")          // another one of the name
	w.version(w.live.pods["default/b"]) // and one that says something new
	if err := w.look(podgc.TerminatedKey); !errors.Is(err, kube.ErrConflict) {
		t.Errorf("%v, want a conflict", err)
	}
	w.want("the index is behind")
	w.thaw()
	w.run(time.Hour)
	w.want("the one that runs counts for nothing, the one that a finalizer keeps does", "delete b")
}

func TestAThresholdOfNoneDeletesNoEndedPod(t *testing.T) {
	t.Parallel()
	for _, threshold := range []int{0, -1} {
		w := newWorld(t)
		w.rules = rules.Rules{Threshold: &threshold}
		w.restart()
		w.node("n", "True")
		w.pod("a", "n", "Failed")
		w.due[podgc.TerminatedKey] = w.now // by a replica that had one
		w.run(time.Hour)
		w.want(fmt.Sprint("threshold ", threshold))
		if len(w.due) != 0 {
			t.Errorf("threshold %d: due are %v", threshold, w.due)
		}
	}
}

func TestWhatCannotBeReadIsAnErrorThatNamesIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	names := map[string]string{"default/p": "pod default/p", "n": "node n", podgc.TerminatedKey: "an ended pod"}
	for key, bad := range map[string]podgc.Reader{
		"default/p":         broken{index{w}, `{"metadata":{"uid":7}}`},
		"n":                 broken{index{w}, `{"status":[]}`},
		podgc.TerminatedKey: broken{index{w}, `{"metadata":{"creationTimestamp":"noon"}}`},
	} {
		_, err := w.rec.Reconcile(t.Context(), podgc.Request{Key: key, Reader: bad, Lease: lease{w, key}})
		if err == nil || !strings.Contains(err.Error(), names[key]) {
			t.Errorf("%s: %v", key, err)
		}
	}
	w.states["n"] = []byte("no JSON") // of another version: the quarantine begins
	w.pod("p", "n", "Running")
	w.run(quarantine - 1)
	w.want("within the quarantine")
	w.run(1)
	w.want("at its end", "fail p"+disrupted, "delete p")
}
