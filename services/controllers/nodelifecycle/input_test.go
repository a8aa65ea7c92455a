package nodelifecycle_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	rules "github.com/deltaplane/deltaplane/core/nodelifecycle"
	"github.com/deltaplane/deltaplane/internal/kube"
)

// What kubelets say of the time is compared with what they said before, never
// with a clock.
func TestClocksOfKubeletsThatAreHoursOffTaintNobodyAndSpareNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	skews := map[string]func() time.Duration{
		"behind":  func() time.Duration { return -5 * time.Hour },
		"ahead":   func() time.Duration { return 7 * time.Hour },
		"backs":   func() time.Duration { return -time.Duration(w.versions) * time.Minute },
		"jumps":   func() time.Duration { return time.Duration(w.versions%2) * 3 * time.Hour },
		"stopped": nil, // its clock stands still, and its status does not
	}
	for name := range skews {
		w.node(name, nil)
	}
	beat := func(name string) {
		skew := skews[name]
		if skew == nil {
			w.leases[name] = "1970-01-01T00:00:00.000000Z"
			w.node(name, func(n *rules.Node) { n.Status.Conditions[0].LastHeartbeatTime = fmt.Sprint("h", w.versions) })
			return
		}
		w.versions++
		w.leases[name] = w.now.Add(skew()).Format("2006-01-02T15:04:05.000000Z07:00")
		w.catchUp()
	}
	pass := func(d time.Duration, alive ...string) {
		t.Helper()
		for end := w.now.Add(d); w.now.Before(end); {
			for _, name := range alive {
				beat(name)
			}
			if err := w.run(5 * time.Second); err != nil {
				t.Fatal(err)
			}
		}
	}
	all := []string{"ahead", "backs", "behind", "jumps", "stopped"}
	pass(10*time.Minute, all...)
	for _, name := range all {
		if w.live[name].Ready() != rules.True || w.taints(name) != "" {
			t.Errorf("%s: %s %q, and it answers", name, w.live[name].Ready(), w.taints(name))
		}
	}
	for i, name := range all[:4] {
		pass(45*time.Second, all[i+1:]...)
		if got := w.live[name].Ready(); got != rules.True {
			t.Errorf("%s is %s within its grace", name, got)
		}
		pass(15*time.Second, all[i+1:]...)
		if got := w.live[name].Ready(); got != rules.Unknown {
			t.Errorf("%s is %s after its grace", name, got)
		}
	}
}

func TestANodeThatNeverPostedIsJudgedAlsoWhenItsCreationLiesAhead(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		created time.Duration
		spared  time.Duration // how long it is for certain
		by      time.Duration
	}{
		{"created now", 0, 55 * time.Second, 70 * time.Second},
		{"hours ago", -4 * time.Hour, 0, 5 * time.Second},
		{"hours ahead, by the API server's clock", 4 * time.Hour, 55 * time.Second, 70 * time.Second},
	} {
		w := newWorld(t)
		w.node("other", nil)
		w.node("n", func(n *rules.Node) {
			n.Metadata.CreationTimestamp, n.Status.Conditions = w.now.Add(c.created), nil
		})
		if err := w.run(c.spared, "other"); err != nil || w.live["n"].Ready() == rules.Unknown {
			t.Errorf("%s: unknown after less than %v, %v", c.name, c.spared, err)
		}
		if err := w.run(c.by-c.spared, "other"); err != nil || w.live["n"].Ready() != rules.Unknown {
			t.Errorf("%s: %q after %v, %v", c.name, w.live["n"].Ready(), c.by, err)
		}
	}
}

func labelled(labels map[string]string) func(*rules.Node) {
	return func(n *rules.Node) { n.Metadata.Labels = labels }
}

func TestNodesWithoutZoneLabelsAreAZoneOfTheirOwn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.node("bare-1", nil)
	w.node("bare-2", labelled(map[string]string{"unrelated": "x"}))
	w.node("empty", labelled(map[string]string{rules.ZoneLabel: "", rules.RegionLabel: ""}))
	w.node("region", labelled(map[string]string{rules.RegionLabel: "r"}))
	w.node("zoned", labelled(map[string]string{rules.ZoneLabel: "z"}))
	w.node("other", labelled(map[string]string{rules.RegionLabel: "r", rules.ZoneLabel: "z"}))
	w.run(30*time.Second, "bare-1", "bare-2", "empty", "region", "zoned", "other")
	if err := w.run(time.Minute, "other"); err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{
		rules.Zone{}.String():                         {"bare-1", "bare-2", "empty"},
		rules.Zone{Region: "r"}.String():              {"region"},
		rules.Zone{Name: "z"}.String():                {"zoned"},
		rules.Zone{Region: "r", Name: "z"}.String():   nil,
		rules.Zone{Region: "none", Name: ""}.String(): nil,
	}
	for zone, nodes := range want {
		if got := w.queues[zone]; !slices.Equal(got, nodes) {
			t.Errorf("zone %q: waiting %v, want %v", zone, got, nodes)
		}
	}
	w.hand(rules.Zone{})
	for _, name := range []string{"bare-1", "bare-2", "empty"} {
		if got := w.taints(name); got != "unreachable:NoSchedule unreachable:NoExecute" {
			t.Errorf("%s: %q", name, got)
		}
	}
	if got := w.taints("region") + w.taints("zoned"); strings.Contains(got, "NoExecute") {
		t.Errorf("nodes of other zones: %q", got)
	}
}

func TestAZoneRenamedMidFlightTaintsEachOfItsNodesOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	names := []string{"a", "b", "c"}
	for _, name := range names {
		w.node(name, labelled(map[string]string{rules.ZoneLabel: "old"}))
	}
	w.node("other", labelled(map[string]string{rules.ZoneLabel: "elsewhere"}))
	w.run(30*time.Second, append(names, "other")...)
	w.run(time.Minute, "other")
	before, after := rules.Zone{Name: "old"}, rules.Zone{Name: "new"}
	if got := w.queues[before.String()]; !slices.Equal(got, names) {
		t.Fatalf("waiting: %v", got)
	}
	for _, name := range names {
		w.node(name, func(n *rules.Node) { n.Metadata.Labels[rules.ZoneLabel] = "new" })
	}
	w.hand(before) // handed out before anybody looked at them again
	for _, name := range names {
		if got := w.taints(name); got != "unreachable:NoSchedule" {
			t.Errorf("%s by the rate of a zone it has left: %q", name, got)
		}
	}
	if err := w.run(5*time.Second, "other"); err != nil {
		t.Fatal(err)
	}
	if old, now := w.queues[before.String()], w.queues[after.String()]; len(old) != 0 || !slices.Equal(now, names) {
		t.Errorf("waiting %v in the old zone and %v in the new one", old, now)
	}
	if w.rates[after.String()] != 0.1 {
		t.Errorf("rates %v, want the new zone's", w.rates)
	}
	w.hand(after)
	for _, name := range names {
		if got := w.taints(name); got != "unreachable:NoSchedule unreachable:NoExecute" {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestConflictsForAMinuteWhileTaintsArePlacedAndRemovedOnlyDelay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.node("other", nil)
	w.node("n", nil)
	w.run(30*time.Second, "n", "other")
	w.run(time.Minute, "other")
	conflicts := func(d time.Duration) {
		until := w.now.Add(d)
		w.fail = func(call string) error {
			if strings.HasPrefix(call, "patch") && w.now.Before(until) {
				return errConflict
			}
			return nil
		}
	}
	conflicts(time.Minute)
	for range 11 {
		w.hand(rules.Zone{})
		if err := w.run(5*time.Second, "other"); err != nil {
			t.Fatal(err)
		}
		if got := w.taints("n"); got != "unreachable:NoSchedule" || !slices.Equal(w.queues[""], []string{"n"}) {
			t.Fatalf("while everything conflicts: %q, waiting %v", got, w.queues[""])
		}
	}
	w.run(5*time.Second, "other")
	w.hand(rules.Zone{})
	if got := w.taints("n"); got != "unreachable:NoSchedule unreachable:NoExecute" || len(w.queues[""]) != 0 {
		t.Errorf("after the minute: %q, waiting %v", got, w.queues[""])
	}

	conflicts(time.Minute)
	w.versions++
	w.node("n", func(n *rules.Node) {
		n.Status.Conditions = []rules.Condition{{Type: rules.Ready, Status: rules.True, LastHeartbeatTime: "back"}}
	})
	if err := w.run(55*time.Second, "n"); !errors.Is(err, kube.ErrConflict) && err != nil {
		t.Fatal(err)
	}
	if got := w.taints("n"); got != "unreachable:NoSchedule unreachable:NoExecute" {
		t.Errorf("while everything conflicts: %q", got)
	}
	if err := w.run(10*time.Second, "n", "other"); err != nil {
		t.Fatal(err)
	}
	if got := w.taints("n"); got != "" || w.live["n"].Ready() != rules.True {
		t.Errorf("it answers again: %q, %s", got, w.live["n"].Ready())
	}
}
