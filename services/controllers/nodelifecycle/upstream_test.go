package nodelifecycle_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	rules "github.com/deltaplane/deltaplane/core/nodelifecycle"
)

// The rows of TestMonitorNodeHealthUpdateStatus: what is written of a node's
// conditions, and how often.
func TestConditionsWrittenForANodeThatPostedOrNeverDid(t *testing.T) {
	t.Parallel()
	const rest = " MemoryPressure:NodeStatusNeverUpdated DiskPressure:NodeStatusNeverUpdated PIDPressure:NodeStatusNeverUpdated"
	for _, c := range []struct {
		name    string
		age     time.Duration
		status  bool
		posting bool // it goes on
		passed  time.Duration
		updates int
		want    string
	}{
		{"created long ago, no status: at once", time.Hour, false, false, 5 * time.Second, 1, "Ready:NodeStatusNeverUpdated" + rest},
		{"created recently, no status", 0, false, false, 55 * time.Second, 0, ""},
		{"created long ago, status older than the grace", time.Hour, true, false, 55 * time.Second, 1, "Ready:NodeStatusUnknown" + rest},
		{"created long ago, status posted recently", time.Hour, true, true, 2 * time.Minute, 0, ""},
	} {
		w := newWorld(t)
		w.node("other", nil)
		w.node("n", func(n *rules.Node) {
			n.Metadata.CreationTimestamp = w.now.Add(-c.age)
			if !c.status {
				n.Status.Conditions = nil
			}
		})
		updates := 0
		w.fail = func(call string) error {
			if call == "patch status" {
				updates++
			}
			return nil
		}
		for end, i := w.now.Add(c.passed), 0; w.now.Before(end); i++ {
			if c.posting {
				w.node("n", func(n *rules.Node) { n.Status.Conditions[0].LastHeartbeatTime = fmt.Sprint("h", i) })
			}
			if err := w.run(5*time.Second, "other"); err != nil {
				t.Fatal(err)
			}
		}
		var got []string
		for _, x := range w.live["n"].Status.Conditions {
			if x.Status == rules.Unknown {
				got = append(got, x.Type+":"+x.Reason)
			}
		}
		if text := strings.Join(got, " "); text != c.want || updates != c.updates {
			t.Errorf("%s: %q after %d updates, want %q after %d", c.name, text, updates, c.want, c.updates)
		}
	}
}

// TestMonitorNodeHealthUpdateNodeAndPodStatusWithWorkerSize, for any number of
// workers: one look at each node is enough, and nothing is written twice.
func TestFiftyNodesOfAHundredPodsAreMarkedOnceEach(t *testing.T) {
	t.Parallel()
	const nodes, podsEach = 50, 100
	w := newWorld(t)
	w.node("other", nil)
	for i := range nodes {
		name := fmt.Sprint("n", i)
		w.node(name, nil)
		for k := range podsEach {
			w.pods[fmt.Sprintf("p%d@%s", k, name)] = rules.True
		}
	}
	if err := w.run(50*time.Second, "other"); err != nil || w.podCalls != 0 {
		t.Fatalf("within the grace %d pods are marked, %v", w.podCalls, err)
	}
	if err := w.run(30*time.Second, "other"); err != nil {
		t.Fatal(err)
	}
	for i := range nodes {
		if n := w.live[fmt.Sprint("n", i)]; n.Ready() != rules.Unknown {
			t.Errorf("n%d is %s", i, n.Ready())
		}
	}
	for name, ready := range w.pods {
		if ready != rules.False {
			t.Errorf("pod %s is %s", name, ready)
		}
	}
	if want := nodes * podsEach; w.podCalls != want || len(w.events) != want+nodes {
		t.Errorf("%d updates of pods and %d Events, want %d and one more for each node", w.podCalls, len(w.events), want)
	}
}

// A kubelet that answers between two tries of an update is alive (upstream's
// TestTryUpdateNodeHealth): what was read before is not written.
func TestANodeThatReportsBetweenTwoTriesIsLeftAlone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(*rules.Node)
		want   string
	}{
		{"its status is posted", func(n *rules.Node) { n.Status.Conditions[0].LastHeartbeatTime = "h1" }, rules.True},
		{"it says that it is not ready", func(n *rules.Node) {
			n.Status.Conditions[0].Status, n.Status.Conditions[0].LastHeartbeatTime = rules.False, "h1"
		}, rules.False},
		{"somebody labels it, and it stays silent", func(n *rules.Node) { n.Metadata.Labels = map[string]string{"a": "b"} }, rules.Unknown},
	} {
		w := newWorld(t)
		w.node("other", nil)
		w.node("n", nil)
		once := true
		w.fail = func(call string) error {
			if call == "patch status" && once {
				once = false
				w.frozen = true // the index has not seen it yet
				w.node("n", c.change)
				return errConflict
			}
			return nil
		}
		_ = w.run(55*time.Second, "other") // the conflict
		w.frozen = false
		_ = w.look("n")
		if got := w.live["n"].Ready(); got != c.want || once {
			t.Errorf("%s: Ready is %s, want %s", c.name, got, c.want)
		}
	}
}
