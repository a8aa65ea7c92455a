package nodelifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	rules "github.com/deltaplane/deltaplane/core/nodelifecycle"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/controllers/nodelifecycle"
)

func TestASilentNodeBecomesUnknownWithOneEventAndItsPodsNotReady(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.node("other", nil)
	w.node("n", nil)
	w.pods["p"], w.pods["q"] = rules.True, rules.False
	if err := w.run(30*time.Second, "n", "other"); err != nil {
		t.Fatal(err)
	}
	if err := w.run(45*time.Second, "other"); err != nil || w.live["n"].Ready() != rules.True {
		t.Fatalf("within its grace it is %s, %v", w.live["n"].Ready(), err)
	}
	if err := w.run(10*time.Second, "other"); err != nil {
		t.Fatal(err)
	}
	if got := w.live["n"].Ready(); got != rules.Unknown {
		t.Fatalf("after its grace it is %s", got)
	}
	if got := w.taints("n"); got != "unreachable:NoSchedule" || !slices.Equal(w.queues[""], []string{"n"}) {
		t.Errorf("taints %q and waiting %v, want NoSchedule at once and NoExecute waiting", got, w.queues[""])
	}
	if err := w.run(time.Minute, "other"); err != nil {
		t.Fatal(err)
	}
	want := []string{"n NodeNotReady Node n status is now: NodeNotReady", "p NodeNotReady Node is not ready"}
	if !slices.Equal(w.events, want) {
		t.Errorf("events = %q, want %q", w.events, want)
	}
	if w.pods["p"] != rules.False || w.podCalls != 1 {
		t.Errorf("p is %s after %d calls, want False after one", w.pods["p"], w.podCalls)
	}
	w.pods["late"] = rules.True // bound to a node that is silent already
	if err := w.run(5*time.Second, "other"); err != nil || w.pods["late"] != rules.False {
		t.Errorf("a pod that came later is %s, %v", w.pods["late"], err)
	}
	if w.live["other"].Ready() != rules.True || w.taints("other") != "" {
		t.Errorf("the other node: %s %q", w.live["other"].Ready(), w.taints("other"))
	}
}

func TestMarkingPodsIsTriedAgain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, broken string
		updates      int
	}{{"ok", "", 1}, {"failed update", "patch pod", 2}, {"failed list", "list pods", 1}} {
		w := newWorld(t)
		w.node("other", nil)
		w.node("n", nil)
		w.pods["p"] = rules.True
		broken := 1
		w.fail = func(call string) error {
			if call == c.broken && broken > 0 {
				broken--
				return errDown
			}
			return nil
		}
		w.run(70*time.Second, "other")
		if w.pods["p"] != rules.False || w.podCalls != c.updates {
			t.Errorf("%s: the pod is %s after %d updates, want False after %d", c.name, w.pods["p"], w.podCalls, c.updates)
		}
	}
}

func TestAKubeletsOwnFalseMarksOnlyPodsBoundSinceAndEachOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.node("other", nil)
	w.node("n", nil)
	w.pods["p"], w.bound["p"] = rules.True, w.now
	if err := w.run(time.Minute, "n", "other"); err != nil {
		t.Fatal(err)
	}
	becomes := func(status string) {
		w.node("n", func(n *rules.Node) {
			n.Status.Conditions[0].Status, n.Status.Conditions[0].LastTransitionTime = status, w.now.Format(time.RFC3339)
		})
	}
	becomes(rules.False)
	if err := w.run(time.Minute, "n", "other"); err != nil {
		t.Fatal(err)
	}
	if w.podCalls != 0 || len(w.events) != 0 || w.taints("n") != "not-ready:NoSchedule" {
		t.Errorf("%d calls, events %q, taints %q", w.podCalls, w.events, w.taints("n"))
	}
	marked := func(what string, calls int, want ...string) {
		t.Helper()
		if err := w.run(10*time.Second, "n", "other"); err != nil {
			t.Fatal(err)
		}
		for name, status := range w.pods {
			if (status == rules.False) != slices.Contains(want, name) {
				t.Errorf("%s: %s is %s, want %v not ready", what, name, status, want)
			}
		}
		if w.podCalls != calls {
			t.Errorf("%s: %d calls, want %d", what, w.podCalls, calls)
		}
	}
	broken := 1
	w.fail = func(call string) error {
		if call == "patch pod" && broken > 0 {
			broken--
			return errDown
		}
		return nil
	}
	w.pods["late"], w.bound["late"] = rules.True, w.now
	w.pods["waits"], w.bound["waits"] = "", w.now // its kubelet has said nothing of it
	w.run(5*time.Second, "n", "other")
	marked("bound to a node that is not ready, at the second try", 2, "late")
	w.pods["late"], w.pods["waits"] = rules.True, rules.True // says the kubelet, which lives
	w.restart()
	marked("what the kubelet says of them afterwards holds", 2)
	if want := []string{"late NodeNotReady Node is not ready"}; !slices.Equal(w.events, want) {
		t.Errorf("events = %q, want %q", w.events, want)
	}
	becomes(rules.True)
	w.run(5*time.Second, "n", "other")
	becomes(rules.False)
	w.pods["waits"], w.bound["waits"] = rules.True, w.now
	marked("another time it is not ready", 3, "waits")
}

func TestAPodThatTheIndexShowsUnmarkedGetsNoSecondEvent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, name := range []string{"n", "other"} {
		w.node(name, nil)
		w.renew(name)
	}
	w.pods["p"], w.bound["p"] = rules.True, w.now
	w.run(10*time.Minute, "other")
	marked := func() (n int) {
		for _, e := range w.events {
			if strings.HasPrefix(e, "p ") {
				n++
			}
		}
		return n
	}
	if w.pods["p"] != rules.False || marked() != 1 {
		t.Fatalf("pod %q, events %q", w.pods["p"], w.events)
	}
	calls := w.podCalls
	w.shownPods = rules.True
	w.run(time.Minute, "other") // ends with a conflict, and is tried again
	if w.podCalls == calls || marked() != 1 {
		t.Errorf("%d more calls, events %q", w.podCalls-calls, w.events)
	}
}

func TestTheLiveLookDecidesNotTheIndex(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.node("n", nil)
	w.renew("n")
	w.run(10*time.Second, "n")
	w.frozen = true // it claims to be current and is not
	if err := w.run(10*time.Minute, "n"); err != nil {
		t.Fatal(err)
	}
	if got := w.live["n"].Ready(); got != rules.True {
		t.Errorf("a node that renews its lease is %s because the index does not show it", got)
	}
}

func TestAStallOfFiveMinutesTaintsNobodyAndEndsWithoutABurst(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i := range 5 {
		w.node(fmt.Sprint("n", i), nil)
	}
	all := []string{"n0", "n1", "n2", "n3", "n4"}
	w.run(time.Minute, all...)
	w.stale, w.frozen = true, true
	if err := w.run(5*time.Minute, all...); !errors.Is(err, nodelifecycle.ErrStale) {
		t.Fatalf("while nothing is followed: %v, want ErrStale", err)
	}
	w.stale = false // live again before what was missed is shown
	w.run(10 * time.Second)
	w.frozen = false
	if err := w.run(2*time.Minute, all[1:]...); err != nil {
		t.Fatal(err)
	}
	for _, name := range all[1:] {
		if w.live[name].Ready() != rules.True || w.taints(name) != "" {
			t.Errorf("%s: %s %q", name, w.live[name].Ready(), w.taints(name))
		}
	}
	if got := w.live["n0"].Ready(); got != rules.Unknown {
		t.Errorf("the one that is silent since is %s: decisions do not resume", got)
	}
}

func TestARestartChangesNoGrace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.node("other", nil)
	w.node("n", nil)
	w.run(30*time.Second, "n", "other")
	for range 9 {
		w.run(5*time.Second, "other")
		w.restart() // the silence is in the queue's store
	}
	if got := w.live["n"].Ready(); got != rules.True {
		t.Fatalf("at 45 s: %s", got)
	}
	w.run(10*time.Second, "other")
	if got := w.live["n"].Ready(); got != rules.Unknown {
		t.Errorf("at 55 s: %s", got)
	}
}

func TestConflictsOnEveryWriteForAMinuteOnlyDelay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.node("other", nil)
	w.node("n", nil)
	w.run(10*time.Second, "n", "other")
	until := w.now.Add(2 * time.Minute)
	w.fail = func(call string) error {
		if strings.HasPrefix(call, "patch") && w.now.Before(until) {
			return errConflict
		}
		return nil
	}
	if err := w.run(110*time.Second, "other"); err != nil && !errors.Is(err, kube.ErrConflict) {
		t.Fatal(err)
	}
	if got := w.live["n"].Ready(); got != rules.True || len(w.events) != 0 {
		t.Errorf("while nothing can be written: %s, events %q", got, w.events)
	}
	if err := w.run(20*time.Second, "other"); err != nil {
		t.Fatal(err)
	}
	if got := w.live["n"].Ready(); got != rules.Unknown || w.taints("n") != "unreachable:NoSchedule" || len(w.events) != 1 {
		t.Errorf("afterwards: %s %q, events %q", got, w.taints("n"), w.events)
	}
}

func TestANodeRecreatedUnderItsNameStartsOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.node("other", nil)
	w.node("n", nil)
	w.run(70*time.Second, "other")
	if w.live["n"].Ready() != rules.Unknown || len(w.queues[""]) != 1 {
		t.Fatalf("%s, waiting %v", w.live["n"].Ready(), w.queues)
	}
	delete(w.live, "n")
	w.catchUp()
	if err := w.look("n"); err != nil || len(w.states["n"]) != 0 || len(w.queues[""]) != 0 {
		t.Errorf("deleted: state %s, waiting %v, %v", w.states["n"], w.queues[""], err)
	}
	w.node("n", nil)
	if err := w.run(45*time.Second, "other"); err != nil || w.live["n"].Ready() != rules.True {
		t.Errorf("recreated, it is %s within its grace, %v", w.live["n"].Ready(), err)
	}
}

func TestAWaitingNodeIsTaintedByItsPresentState(t *testing.T) { // TestApplyNoExecuteTaints
	t.Parallel()
	status := func(s string) func(*rules.Node) {
		return func(n *rules.Node) { n.Status.Conditions[0].Status = s }
	}
	zone := func(z string) func(*rules.Node) {
		return func(n *rules.Node) { n.Metadata.Labels = map[string]string{rules.ZoneLabel: z} }
	}
	for _, c := range []struct {
		name   string
		change []func(*rules.Node)
		want   string
	}{
		{"Unknown: unreachable", []func(*rules.Node){status(rules.Unknown)}, "unreachable:NoSchedule unreachable:NoExecute"},
		{"False: not-ready", []func(*rules.Node){status(rules.False)}, "not-ready:NoSchedule not-ready:NoExecute"},
		{"ready by then: left alone", []func(*rules.Node){status(rules.True)}, ""},
		{"in another zone by then: left alone", []func(*rules.Node){status(rules.Unknown), zone("z2")}, ""},
	} {
		w := newWorld(t)
		w.node("other", nil)
		w.node("n", c.change[0])
		for _, change := range c.change[1:] {
			w.node("n", change)
		}
		w.refresh()
		w.queues[""] = []string{"n", "gone"} // a node that is gone must not be in anybody's way
		w.hand(rules.Zone{})
		if got := w.taints("n"); got != c.want || len(w.queues[""]) != 0 {
			t.Errorf("%s: %q, waiting %v; want %q", c.name, got, w.queues[""], c.want)
		}
		w.queues[""] = []string{"n"}
		w.hand(rules.Zone{})
		if got := w.taints("n"); got != c.want {
			t.Errorf("%s: handed out twice: %q", c.name, got)
		}
	}
	w := newWorld(t)
	w.node("other", nil)
	w.node("n", status(rules.Unknown))
	w.refresh()
	conflicts := 3
	w.fail = func(call string) error {
		if conflicts--; call == "patch node" && conflicts >= 0 {
			return errConflict
		}
		return nil
	}
	w.queues[""] = []string{"n"}
	w.hand(rules.Zone{})
	if got := w.taints("n"); !strings.Contains(got, "NoExecute") || len(w.queues[""]) != 0 {
		t.Errorf("after conflicts %q, waiting %v: a conflict costs another token", got, w.queues[""])
	}
	w = newWorld(t)
	w.node("other", nil)
	w.node("n", status(rules.Unknown))
	w.stale = true
	if _, err := w.rec.Taint(t.Context(), w.turn(rules.Zone{}, "n")); !errors.Is(err, nodelifecycle.ErrStale) || strings.Contains(w.taints("n"), "NoExecute") {
		t.Errorf("before the zones were judged: %v, %q, want ErrStale", err, w.taints("n"))
	}
}

func TestTheTaintIsSwappedAndRemovedAtOnce(t *testing.T) { // TestSwapUnreachableNotReadyTaints
	t.Parallel()
	w := newWorld(t)
	w.node("other", nil)
	w.node("n", nil)
	w.run(70*time.Second, "other")
	w.hand(rules.Zone{})
	if got := w.taints("n"); got != "unreachable:NoSchedule unreachable:NoExecute" {
		t.Fatalf("silent: %q", got)
	}
	say := func(status, heartbeat string) {
		w.node("n", func(n *rules.Node) {
			n.Status.Conditions = []rules.Condition{{Type: rules.Ready, Status: status, LastHeartbeatTime: heartbeat}}
		})
		if err := w.look("n"); err != nil {
			t.Fatal(err)
		}
	}
	say(rules.False, "h1")
	if got := w.taints("n"); got != "not-ready:NoSchedule not-ready:NoExecute" && got != "not-ready:NoExecute not-ready:NoSchedule" {
		t.Errorf("not ready: %q", got)
	}
	say(rules.True, "h2")
	if got := w.taints("n"); got != "" {
		t.Errorf("ready: %q", got)
	}
}

func TestNodesWaitInTheOrderOfTheirSilenceAndLeaveWhenTheyReport(t *testing.T) { // TestEnqueueTwice
	t.Parallel()
	w := newWorld(t)
	names := []string{"d", "b", "a", "c"} // they stop in this order
	for _, name := range append([]string{"other"}, names...) {
		w.node(name, func(n *rules.Node) { n.Metadata.Labels = map[string]string{rules.ZoneLabel: "z"} })
	}
	zone := rules.Zone{Name: "z"}
	alive := append([]string{"other"}, names...)
	w.run(30*time.Second, alive...)
	for i := range names {
		w.run(10*time.Second, append([]string{"other"}, names[i+1:]...)...)
	}
	w.run(60*time.Second, "other")
	if got := w.queues[zone.String()]; !slices.Equal(got, names) {
		t.Fatalf("waiting: %v, want the longest silence first: %v", got, names)
	}
	w.node("b", func(n *rules.Node) {
		n.Status.Conditions = []rules.Condition{{Type: rules.Ready, Status: rules.True, LastHeartbeatTime: "h1"}}
	})
	w.node("a", func(n *rules.Node) { n.Metadata.Labels[rules.ZoneLabel] = "y" }) // renamed mid-flight
	w.run(5*time.Second, "other", "b")
	if got, moved := w.queues[zone.String()], w.queues[":y"]; !slices.Equal(got, []string{"d", "c"}) || !slices.Equal(moved, []string{"a"}) {
		t.Errorf("waiting: %v and %v, want d c and a", got, moved)
	}
}

func TestWhenEveryZoneIsDownTheTaintsGoAndNoNodeIsSilent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	zoned := func(z string) func(*rules.Node) {
		return func(n *rules.Node) { n.Metadata.Labels = map[string]string{rules.ZoneLabel: z} }
	}
	for _, name := range []string{"a", "b", "c"} {
		w.node(name, zoned("one"))
	}
	w.node("other", zoned("two"))
	w.run(30*time.Second, "a", "b", "c", "other")
	w.run(time.Minute, "other")
	one := rules.Zone{Name: "one"}
	w.hand(one)
	if got := w.taints("a"); !strings.Contains(got, "NoExecute") || w.rates[":one"] != 0.1 || w.rates[":two"] != 0.1 {
		t.Fatalf("zone one is down: %q at rates %v", got, w.rates)
	}
	w.run(70 * time.Second)
	for _, name := range []string{"a", "b", "c", "other"} {
		if got := w.taints(name); got != "unreachable:NoSchedule" {
			t.Errorf("every zone is down: %s has %q", name, got)
		}
	}
	if w.rates[":one"] != 0 || w.rates[":two"] != 0 {
		t.Errorf("rates %v, want 0 everywhere", w.rates)
	}
	w.hand(one) // whatever is handed out by an old rate comes back
	if got := w.taints("a"); strings.Contains(got, "NoExecute") {
		t.Errorf("tainted all the same: %q", got)
	}
	w.node("other", func(n *rules.Node) {
		n.Status.Conditions = []rules.Condition{{Type: rules.Ready, Status: rules.True, LastHeartbeatTime: "h1"}}
	})
	w.run(10*time.Second, "other")
	if w.rates[":one"] != 0.1 || len(w.queues[":one"]) != 3 {
		t.Errorf("a zone is back: rates %v, waiting %v", w.rates, w.queues)
	}
}

func TestANodeIsTaintedByTheZonesAsTheyAreThen(t *testing.T) {
	t.Parallel()
	down := func(n *rules.Node) { n.Status.Conditions[0].Status = rules.False }
	for name, c := range map[string]struct {
		alone  bool         // there is no other node
		before func(*world) // between the look that finds it silent and its turn
		want   string
		rate   float64
	}{
		"it is all there is":                {alone: true, want: "unreachable:NoSchedule", rate: 0},
		"another is ready":                  {want: "unreachable:NoSchedule unreachable:NoExecute", rate: 0.1},
		"the other fell too":                {before: func(w *world) { w.node("other", down) }, want: "unreachable:NoSchedule", rate: 0},
		"the other fell once it was judged": {before: func(w *world) { w.refresh(); w.node("other", down) }, want: "unreachable:NoSchedule", rate: 0},
		"the index does not show it yet":    {before: func(w *world) { w.frozen = true }, want: "unreachable:NoSchedule", rate: 0.1},
	} {
		w := newWorld(t)
		alive := []string{"other"}
		if c.alone {
			alive = nil
		} else {
			w.node("other", nil)
		}
		w.node("n", nil)
		w.run(30*time.Second, append(alive, "n")...)
		for w.live["n"].Status.Conditions[0].Status == rules.True { // zones are judged before each look, not after it
			w.run(5*time.Second, alive...)
		}
		if view, known := w.rec.Zones().View(); !known || view.Counts[rules.Zone{}].NotReady != 0 || len(w.queues[""]) != 1 {
			t.Fatalf("%s: view %+v, waiting %v; want a view from before", name, view, w.queues)
		}
		if c.before != nil {
			c.before(w)
		}
		w.hand(rules.Zone{})
		if got := w.taints("n"); got != c.want || w.rates[""] != c.rate {
			t.Errorf("%s: %q at rate %v, want %q at %v", name, got, w.rates[""], c.want, c.rate)
		}
		if waits, tainted := len(w.queues[""]) == 1, strings.Contains(c.want, "NoExecute"); waits == tainted {
			t.Errorf("%s: waiting %v", name, w.queues)
		}
	}
}

func TestAZonesQueueIsResumedAlsoWhenThatItWasPausedIsNotKnown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.node("n", nil)
	w.refresh()
	w.fail = func(string) error { return errDown } // the answer is lost, the rate is set
	w.node("n", func(n *rules.Node) { n.Status.Conditions[0].Status = rules.False })
	if err := w.rec.Zones().Refresh(t.Context(), func(ctx context.Context) ([][]byte, error) { return w.nodes(ctx, "") }); err == nil || w.rates[""] != 0 {
		t.Fatalf("%v, rate %v; want an error, and a zone at rate zero", err, w.rates[""])
	}
	w.fail = nil
	w.node("n", func(n *rules.Node) { n.Status.Conditions[0].Status = rules.True })
	w.refresh()
	if w.rates[""] != 0.1 {
		t.Errorf("the zone is back, at rate %v", w.rates[""])
	}
}

func TestAJudgementThatHangsHoldsUpNobodyForLongerThanTheyWait(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.node("n", nil)
	w.refresh()
	began, end, ended := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		ended <- w.rec.Zones().Refresh(t.Context(), func(context.Context) ([][]byte, error) {
			close(began)
			<-end
			return nil, errDown
		})
	}()
	<-began
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.rec.Zones().Refresh(ctx, func(context.Context) ([][]byte, error) { return nil, nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("beside one that hangs: %v", err)
	}
	w.rec.Zones().Forget(time.Hour)
	if _, known := w.rec.Zones().View(); !known {
		t.Error("a view is forgotten before its time")
	}
	w.rec.Zones().Forget(0)
	if _, known := w.rec.Zones().View(); known {
		t.Error("an old view is known")
	}
	close(end)
	if err := <-ended; !errors.Is(err, errDown) {
		t.Error(err)
	}
	w.refresh()
	if _, known := w.rec.Zones().View(); !known {
		t.Error("nobody can judge the zones any more")
	}
}

func TestRatesThatCouldNotBeSetAreSetAgainAndNotShown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.node("n", nil)
	w.fail = func(string) error { return errDown }
	raw := must(index{w}.Node(t.Context(), "n"))
	if err := w.rec.Zones().Refresh(t.Context(), func(context.Context) ([][]byte, error) { return [][]byte{raw}, nil }); err == nil {
		t.Error("a rate that could not be set is no error")
	}
	if _, known := w.rec.Zones().View(); known {
		t.Error("the view is shown though its rate is not in force")
	}
	w.fail = nil
	w.refresh()
	if _, known := w.rec.Zones().View(); !known || w.rates[""] != 0.1 {
		t.Errorf("known %v, rates %v", known, w.rates)
	}
	families := must(w.reg.Gather())
	var names []string
	for _, f := range families {
		names = append(names, f.GetName())
	}
	for _, want := range []string{
		"node_collector_zone_health", "node_collector_zone_size", "node_collector_unhealthy_nodes_in_zone",
		"node_collector_update_node_health_duration_seconds", "node_collector_update_all_nodes_health_duration_seconds",
	} {
		if !slices.Contains(names, want) {
			t.Errorf("metrics %v lack %s", names, want)
		}
	}
}
