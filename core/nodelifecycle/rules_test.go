package nodelifecycle_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/core/nodelifecycle"
	"github.com/deltaplane/deltaplane/core/taint"
)

var (
	start = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	rules nodelifecycle.Rules
)

// node is a node with a Ready condition, unless ready is empty.
func node(name, zone, ready string) *nodelifecycle.Node {
	n := &nodelifecycle.Node{}
	n.Metadata.Name, n.Metadata.UID, n.Metadata.CreationTimestamp = name, "uid-"+name, start.Add(-time.Hour)
	n.Metadata.Labels = map[string]string{}
	if zone != "" {
		n.Metadata.Labels[nodelifecycle.ZoneLabel] = zone
	}
	if ready != "" {
		n.Status.Conditions = []nodelifecycle.Condition{{Type: nodelifecycle.Ready, Status: ready, LastHeartbeatTime: "h0", LastTransitionTime: "t0"}}
	}
	return n
}

func lease(renewed string) *nodelifecycle.Lease {
	l := &nodelifecycle.Lease{}
	l.Spec.RenewTime = renewed
	return l
}

// at is collections that are followed without fault at a time after the start.
func at(d time.Duration) nodelifecycle.Fresh {
	return nodelifecycle.Fresh{Known: start.Add(d), Heard: start.Add(d)}
}

// follow looks every 5 s until a time and returns the last answer.
func follow(m nodelifecycle.Memory, n *nodelifecycle.Node, l *nodelifecycle.Lease, from, until time.Duration) (nodelifecycle.Memory, nodelifecycle.Silence) {
	var s nodelifecycle.Silence
	for d := from; d <= until; d += 5 * time.Second {
		m, s = rules.Look(m, n, l, at(d), false)
	}
	return m, s
}

// The states of TestMonitorNodeHealth: what the nodes say in two passes, and the
// zones' states after each.
func TestStatesOfZones(t *testing.T) {
	t.Parallel()
	nodes := func(zones ...string) (out []*nodelifecycle.Node) { // "z1:TUF-" is zone z1 with these Ready statuses; - has none, x is excluded and ready
		for _, text := range zones {
			zone, list, _ := strings.Cut(text, ":")
			for i, c := range list {
				n := node(fmt.Sprint(zone, i), zone, map[rune]string{'T': "True", 'F': "False", 'U': "Unknown", '-': "", 'x': "True"}[c])
				if c == 'x' {
					n.Metadata.Labels[nodelifecycle.ExcludeLabel] = ""
				}
				out = append(out, n)
			}
		}
		return out
	}
	for _, c := range []struct {
		name           string
		first, second  []*nodelifecycle.Node
		want, wantNext string
	}{
		{"1 ready, no labels", nodes(":T"), nodes(":T"), "Normal", "Normal"},
		{"z1 and z2 unknown; z2 recovers", nodes("z1:U", "z2:U"), nodes("z1:U", "z2:T"), "Full Full stopped", "Full Normal"},
		{"4 without conditions; then 3 unknown and 1 ready", nodes(":----"), nodes(":UUUT"), "Full stopped", "Partial"},
		{"2 unknown 3 ready; then 3 unknown 2 ready", nodes(":UUTTT"), nodes(":UUUTT"), "Normal", "Partial"},
		{"2 unknown 1 ready; then 3 unknown", nodes(":UUT"), nodes(":UUU"), "Normal", "Full stopped"},
		{"z1 unknown, z2 ready", nodes("z1:U", "z2:T"), nodes("z1:U", "z2:T"), "Full Normal", "Full Normal"},
		{"two zones all unknown", nodes("z1:UU", "z2:UU"), nodes("z1:UU", "z2:UU"), "Full Full stopped", "Full Full stopped"},
		{"Ready condition removed", nodes(":T"), nodes(":-"), "Normal", "Full stopped"},
		{"only healthy node is excluded", nodes(":xU"), nodes(":xU"), "Full stopped", "Full stopped"},
		{"NotReady counts as unknown does", nodes(":FFFT"), nodes(":FFT"), "Partial", "Normal"},
		{"a zone of excluded nodes is none", nodes("z1:U", "z2:x"), nodes("z1:x"), "Full stopped", ""},
		{"below the threshold", nodes(":UUUUUTTTTT"), nodes(":UUUUUUTTTTT"), "Normal", "Normal"},
		{"at the threshold", nodes(":UUUUUUUUUUUTTTTTTTTT"), nil, "Partial", ""},
	} {
		for i, pass := range []struct {
			nodes []*nodelifecycle.Node
			want  string
		}{{c.first, c.want}, {c.second, c.wantNext}} {
			v := rules.View(pass.nodes)
			var got []string
			for _, zone := range slices.SortedFunc(maps.Keys(v.States), func(a, b nodelifecycle.Zone) int { return strings.Compare(a.Name, b.Name) }) {
				got = append(got, strings.TrimSuffix(string(v.States[zone]), "Disruption"))
			}
			if v.Stopped {
				got = append(got, "stopped")
			}
			if text := strings.Join(got, " "); text != pass.want {
				t.Errorf("%s, pass %d: %q, want %q", c.name, i+1, text, pass.want)
			}
		}
	}
}

func TestRatesOfZones(t *testing.T) {
	t.Parallel()
	zone := nodelifecycle.Zone{Name: "z"}
	for _, c := range []struct {
		name  string
		count nodelifecycle.Count
		other nodelifecycle.Count
		want  float64
	}{
		{"normal", nodelifecycle.Count{Ready: 9, NotReady: 1}, nodelifecycle.Count{Ready: 1}, 0.1},
		{"partial, 50 nodes", nodelifecycle.Count{Ready: 10, NotReady: 40}, nodelifecycle.Count{Ready: 1}, 0},
		{"partial, 51 nodes", nodelifecycle.Count{Ready: 10, NotReady: 41}, nodelifecycle.Count{Ready: 1}, 0.01},
		{"full, another zone is up", nodelifecycle.Count{NotReady: 40}, nodelifecycle.Count{Ready: 1}, 0.1},
		{"full, and so is every other", nodelifecycle.Count{NotReady: 40}, nodelifecycle.Count{NotReady: 1}, 0},
	} {
		var nodes []*nodelifecycle.Node
		for name, count := range map[string]nodelifecycle.Count{"z": c.count, "other": c.other} {
			for range count.Ready {
				nodes = append(nodes, node("n", name, "True"))
			}
			for range count.NotReady {
				nodes = append(nodes, node("n", name, "Unknown"))
			}
		}
		if got := rules.RateOf(rules.View(nodes), zone); got != c.want {
			t.Errorf("%s: rate %v, want %v", c.name, got, c.want)
		}
	}
	zero := nodelifecycle.Rules{Rate: new(0.0), SlowRate: new(3.0), LargeZone: 2}
	if got := zero.RateOf(zero.View([]*nodelifecycle.Node{node("a", "z", "True")}), zone); got != 0 {
		t.Errorf("a rate of zero is %v", got)
	}
}

// The rows of TestMonitorNodeHealthUpdateNodeAndPodStatusWithLease.
func TestALeaseOrAStatusIsAHeartbeat(t *testing.T) {
	t.Parallel()
	const rest = "MemoryPressure:NodeStatusNeverUpdated DiskPressure:NodeStatusNeverUpdated PIDPressure:NodeStatusNeverUpdated"
	type seen struct {
		status bool
		lease  string // empty: none
	}
	for _, c := range []struct {
		name          string
		recent        bool
		first, second seen
		fresh         bool // the second status is another one
		want          string
	}{
		{"recent, no status, no lease", true, seen{}, seen{}, false, ""},
		{"recent, no status, fresh lease", true, seen{lease: "l0"}, seen{lease: "l1"}, false, ""},
		{"old, none, none", false, seen{}, seen{}, false, "Ready:NodeStatusNeverUpdated " + rest},
		{"old, none, fresh lease", false, seen{lease: "l0"}, seen{lease: "l1"}, false, ""},
		{"old, none, expired lease", false, seen{lease: "l0"}, seen{lease: "l0"}, false, "Ready:NodeStatusNeverUpdated " + rest},
		{"old, stale status, renewed lease", false, seen{true, "l0"}, seen{true, "l1"}, false, ""},
		{"old, fresh status, expired lease", false, seen{true, "l0"}, seen{true, "l0"}, true, ""},
		{"old, stale status, expired lease", false, seen{true, "l0"}, seen{true, "l0"}, false, "Ready:NodeStatusUnknown " + rest},
		{"old, stale status, no lease", false, seen{true, ""}, seen{true, ""}, false, "Ready:NodeStatusUnknown " + rest},
	} {
		n := node("n", "", "")
		if c.recent {
			n.Metadata.CreationTimestamp = start.Add(30 * time.Second)
		}
		var l *nodelifecycle.Lease
		show := func(s seen, heartbeat string) {
			n.Status.Conditions = nil
			if s.status {
				n.Status.Conditions = []nodelifecycle.Condition{{Type: nodelifecycle.Ready, Status: "True", LastHeartbeatTime: heartbeat}}
			}
			if l = nil; s.lease != "" {
				l = lease(s.lease)
			}
		}
		show(c.first, "h0")
		m, _ := follow(nodelifecycle.Memory{}, n, l, 0, 40*time.Second)
		heartbeat := "h0"
		if c.fresh {
			heartbeat = "h1"
		}
		show(c.second, heartbeat)
		_, s := follow(m, n, l, 45*time.Second, 65*time.Second)
		got := ""
		if s.Over() {
			var parts []string
			for _, x := range nodelifecycle.Expire(n, start) {
				if x.Status != nodelifecycle.Unknown {
					t.Errorf("%s: %+v", c.name, x)
				}
				parts = append(parts, x.Type+":"+x.Reason)
			}
			got = strings.Join(parts, " ")
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q (silence %+v)", c.name, got, c.want, s)
		}
	}
}

func TestExpiredConditions(t *testing.T) {
	t.Parallel()
	n := node("n", "", "True")
	n.Status.Conditions = append(n.Status.Conditions,
		nodelifecycle.Condition{Type: nodelifecycle.DiskPressure, Status: "Unknown", Reason: "x"},
		nodelifecycle.Condition{Type: nodelifecycle.NetworkUnavailable, Status: "False"})
	created := n.Metadata.CreationTimestamp.Format(time.RFC3339)
	now := start.Format(time.RFC3339)
	want := []nodelifecycle.Condition{
		{Type: "Ready", Status: "Unknown", LastHeartbeatTime: "h0", LastTransitionTime: now, Reason: "NodeStatusUnknown", Message: "Kubelet stopped posting node status."},
		{Type: "MemoryPressure", Status: "Unknown", LastHeartbeatTime: created, LastTransitionTime: now, Reason: "NodeStatusNeverUpdated", Message: "Kubelet never posted node status."},
		{Type: "PIDPressure", Status: "Unknown", LastHeartbeatTime: created, LastTransitionTime: now, Reason: "NodeStatusNeverUpdated", Message: "Kubelet never posted node status."},
	}
	if diff := cmp.Diff(want, nodelifecycle.Expire(n, start)); diff != "" {
		t.Errorf("Expire() (-want +got):\n%s", diff)
	}
}

func TestANodeMayBeSilentForItsGrace(t *testing.T) {
	t.Parallel()
	n, l := node("n", "", "True"), lease("l0")
	m, s := follow(nodelifecycle.Memory{}, n, l, 0, 45*time.Second)
	if s.Over() || s.Left != 5*time.Second {
		t.Errorf("at 45 s: %+v", s)
	}
	m, s = rules.Look(m, n, l, at(50*time.Second), false)
	if !s.Over() || s.For != 50*time.Second {
		t.Errorf("at 50 s: %+v", s)
	}
	// Clocks of nodes may jump back by hours: any change is a heartbeat.
	if _, s = rules.Look(m, n, lease("1999-01-01T00:00:00Z"), at(55*time.Second), false); s.For != 0 {
		t.Errorf("a renewal with an older time: %+v", s)
	}
	again := node("n", "", "True")
	again.Metadata.UID = "another"
	if _, s = rules.Look(m, again, l, at(55*time.Second), false); s.For != 0 {
		t.Errorf("recreated under its name: %+v", s)
	}
	if m, s = rules.Look(m, n, l, at(55*time.Second), true); !s.Over() {
		t.Errorf("silence counts while every zone is down, or a node that was not ready before would never be unknown: %+v", s)
	}
	if m, s = rules.Look(m, n, l, at(60*time.Second), false); s.For != 0 {
		t.Errorf("it begins again when they are not any more: %+v", s)
	}
	if _, s = rules.Look(m, n, l, at(65*time.Second), false); s.For != 5*time.Second {
		t.Errorf("once: %+v", s)
	}
}

func TestStalenessIsNotSilence(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		known func(d time.Duration) time.Duration // until when the collections are known at a wall time
	}{
		{"nothing moves for 5 minutes, then all of it at once", func(d time.Duration) time.Duration {
			if d < 5*time.Minute {
				return 0
			}
			return d
		}},
		{"it creeps back", func(d time.Duration) time.Duration {
			if d < 5*time.Minute {
				return 0
			}
			return (d - 5*time.Minute) / 2
		}},
		{"one look a minute", func(d time.Duration) time.Duration { return d.Truncate(time.Minute) }},
	} {
		n, l := node("n", "", "True"), lease("l0")
		m, _ := rules.Look(nodelifecycle.Memory{}, n, l, at(-5*time.Second), false)
		for d := time.Duration(0); d <= 5*time.Minute+40*time.Second; d += 5 * time.Second {
			var s nodelifecycle.Silence
			if m, s = rules.Look(m, n, l, at(c.known(d)), false); s.Over() {
				t.Errorf("%s: silent after %v", c.name, d)
				break
			}
		}
	}
	// A node that is dead indeed is found a grace after everything moves again.
	n, l := node("n", "", "True"), lease("l0")
	m, _ := follow(nodelifecycle.Memory{}, n, l, 0, 30*time.Second)
	m, s := rules.Look(m, n, l, at(6*time.Minute), false)
	if s.For != 0 {
		t.Errorf("after the gap: %+v", s)
	}
	if _, s = follow(m, n, l, 6*time.Minute, 6*time.Minute+50*time.Second); !s.Over() {
		t.Errorf("50 s after the gap: %+v", s)
	}
	// Replicas of the index may answer in turns, one behind the other.
	m, _ = follow(nodelifecycle.Memory{}, n, l, 0, 20*time.Second)
	m, _ = rules.Look(m, n, l, at(10*time.Second), false)
	if m, s = rules.Look(m, n, l, at(25*time.Second), false); s.For != 25*time.Second || !m.Known.Equal(start.Add(25*time.Second)) {
		t.Errorf("after an answer of the past: %+v", s)
	}
}

func TestTaintsFollowTheNode(t *testing.T) {
	t.Parallel()
	const (
		notReady, unreachable = taint.NotReady, taint.Unreachable
	)
	x := func(key, effect string) taint.Taint { return taint.Taint{Key: key, Effect: effect} }
	for _, c := range []struct {
		name    string
		n       *nodelifecycle.Node
		more    []nodelifecycle.Condition
		cordon  bool
		have    []taint.Taint
		stopped bool
		want    string // key:effect, in order
		wait    bool
	}{
		{name: "ready", n: node("n", "", "True")},
		{name: "not ready", n: node("n", "", "False"), want: "not-ready:NoSchedule", wait: true},
		{name: "unknown", n: node("n", "", "Unknown"), want: "unreachable:NoSchedule", wait: true},
		{name: "no Ready condition", n: node("n", "", ""), have: []taint.Taint{x(unreachable, "NoExecute")}, want: "unreachable:NoExecute"},
		{
			name: "pressures", n: node("n", "", "True"), more: []nodelifecycle.Condition{{Type: "MemoryPressure", Status: "True"}, {Type: "DiskPressure", Status: "True"}, {Type: "PIDPressure", Status: "True"}, {Type: "NetworkUnavailable", Status: "True"}}, cordon: true,
			want: "memory-pressure:NoSchedule disk-pressure:NoSchedule pid-pressure:NoSchedule network-unavailable:NoSchedule unschedulable:NoSchedule",
		},
		{name: "a pressure that is unknown is none", n: node("n", "", "True"), more: []nodelifecycle.Condition{{Type: "MemoryPressure", Status: "Unknown"}}, have: []taint.Taint{x(taint.MemoryPressure, "NoSchedule")}},
		{
			name: "others' taints stay", n: node("n", "", "True"), have: []taint.Taint{x("mine", "NoSchedule"), x(notReady, "NoSchedule"), x("mine", "NoExecute"), x(notReady, "PreferNoSchedule")},
			want: "mine:NoSchedule mine:NoExecute not-ready:PreferNoSchedule",
		},
		{name: "a duplicate goes", n: node("n", "", "True"), cordon: true, have: []taint.Taint{x(taint.Unschedulable, "NoSchedule"), x(taint.Unschedulable, "NoSchedule")}, want: "unschedulable:NoSchedule"},
		{name: "swapped at once to unreachable", n: node("n", "", "Unknown"), have: []taint.Taint{x(unreachable, "NoSchedule"), x(notReady, "NoExecute")}, want: "unreachable:NoSchedule unreachable:NoExecute"},
		{name: "swapped at once to not-ready", n: node("n", "", "False"), have: []taint.Taint{x(notReady, "NoSchedule"), x(unreachable, "NoExecute")}, want: "not-ready:NoSchedule not-ready:NoExecute"},
		{name: "both are made one", n: node("n", "", "False"), have: []taint.Taint{x(notReady, "NoSchedule"), x(unreachable, "NoExecute"), x(notReady, "NoExecute")}, want: "not-ready:NoSchedule not-ready:NoExecute"},
		{name: "ready again", n: node("n", "", "True"), have: []taint.Taint{x(unreachable, "NoSchedule"), x(unreachable, "NoExecute"), x(notReady, "NoExecute")}},
		{name: "stopped", n: node("n", "", "Unknown"), have: []taint.Taint{x(unreachable, "NoSchedule"), x(unreachable, "NoExecute")}, stopped: true, want: "unreachable:NoSchedule", wait: true},
	} {
		c.n.Status.Conditions = append(c.n.Status.Conditions, c.more...)
		c.n.Spec.Taints, c.n.Spec.Unschedulable = c.have, c.cordon
		before := slices.Clone(c.have)
		p := nodelifecycle.Taints(c.n, c.stopped, start)
		var got []string
		for _, x := range p.Taints {
			got = append(got, strings.TrimPrefix(x.Key, "node.kubernetes.io/")+":"+x.Effect)
		}
		if text := strings.Join(got, " "); text != c.want || p.Wait != c.wait {
			t.Errorf("%s: %q wait %v, want %q wait %v", c.name, text, p.Wait, c.want, c.wait)
		}
		if !slices.Equal(c.n.Spec.Taints, before) {
			t.Errorf("%s: the node itself was changed", c.name)
		}
		c.n.Spec.Taints = p.Taints
		if p.Changed != (len(before) != len(p.Taints) || !slices.EqualFunc(before, p.Taints, func(a, b taint.Taint) bool { return a.ID() == b.ID() })) {
			t.Errorf("%s: Changed = %v from %v to %v", c.name, p.Changed, before, p.Taints)
		}
		if again := nodelifecycle.Taints(c.n, c.stopped, start.Add(time.Hour)); again.Changed {
			t.Errorf("%s: done twice it changes again: %v", c.name, again.Taints)
		}
	}
}

func TestBetaLabelsRepeatTheStableOnes(t *testing.T) {
	t.Parallel()
	n := node("n", "", "True")
	if got := nodelifecycle.Labels(n); got != nil {
		t.Errorf("without labels: %v", got)
	}
	n.Metadata.Labels = map[string]string{"kubernetes.io/os": "linux", "kubernetes.io/arch": "arm64", "beta.kubernetes.io/arch": "amd64"}
	if diff := cmp.Diff(map[string]string{"beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "arm64"}, nodelifecycle.Labels(n)); diff != "" {
		t.Errorf("Labels() (-want +got):\n%s", diff)
	}
	maps.Copy(n.Metadata.Labels, nodelifecycle.Labels(n))
	if got := nodelifecycle.Labels(n); got != nil {
		t.Errorf("done twice: %v", got)
	}
}

func TestZonesByLabel(t *testing.T) {
	t.Parallel()
	for want, labels := range map[nodelifecycle.Zone]map[string]string{
		{}:                          {},
		{Region: "r", Name: "z"}:    {nodelifecycle.RegionLabel: "r", nodelifecycle.ZoneLabel: "z", "failure-domain.beta.kubernetes.io/zone": "old"},
		{Region: "br", Name: "bz"}:  {"failure-domain.beta.kubernetes.io/region": "br", "failure-domain.beta.kubernetes.io/zone": "bz"},
		{Region: "", Name: "alone"}: {nodelifecycle.ZoneLabel: "alone"},
	} {
		if got := nodelifecycle.ZoneOf(labels); got != want {
			t.Errorf("ZoneOf(%v) = %v, want %v", labels, got, want)
		}
	}
}

func TestFaultsOfTheRulesAreReportedTogether(t *testing.T) {
	t.Parallel()
	if err := rules.Validate(); err != nil {
		t.Errorf("zero rules: %v", err)
	}
	err := nodelifecycle.Rules{Grace: time.Millisecond, Gap: time.Hour, Threshold: 2, LargeZone: -1, Rate: new(-1.0)}.Validate()
	for _, want := range []string{"grace 1ms", "gap 1h", "threshold 2", "large zone threshold -1", "rates -1"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("faults do not name %q: %v", want, err)
		}
	}
}
