package controllers

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/nodelifecycle"
	"github.com/deltaplane/deltaplane/core/taint"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/kube"
)

// quick are the numbers of a cluster in a hurry: silence of 10 s, where heartbeats
// come every second, and one node a second.
var quick = nodelifecycle.Rules{Grace: 10 * time.Second, StartupGrace: 10 * time.Second, Gap: 4 * time.Second, Rate: new(1.0), SlowRate: new(1.0)}

func lifecycle(c *Config) {
	c.Controllers, c.Nodes = []string{"nodelifecycle"}, quick
}

func newNodeFlow(t *testing.T, nodes int) *flow {
	t.Helper()
	return newNodeFlowOf(t, nodes, "")
}

func newNodeFlowOf(t *testing.T, nodes int, redisURL string) *flow {
	t.Helper()
	f := newFlowOf(t, cluster(t), redisURL)
	f.startNodes(nodes, time.Second)
	return f
}

func (f *flow) node(name string) *nodelifecycle.Node {
	f.t.Helper()
	raw, err := f.kube.Get(f.t.Context(), kube.Nodes.Ref("", name))
	f.ok(err)
	n := new(nodelifecycle.Node)
	f.ok(json.Unmarshal(raw, n))
	return n
}

// renewed is when a node's lease was renewed last.
func (f *flow) renewed(name string) time.Time {
	f.t.Helper()
	raw, err := f.kube.Get(f.t.Context(), kube.Leases.Ref(kube.NodeLeaseNamespace, name))
	f.ok(err)
	var l nodelifecycle.Lease
	f.ok(json.Unmarshal(raw, &l))
	at, err := time.Parse(time.RFC3339Nano, l.Spec.RenewTime)
	f.ok(err)
	return at
}

func (f *flow) allNodes() []*nodelifecycle.Node {
	f.t.Helper()
	page, err := f.kube.List(f.t.Context(), kube.Nodes, kube.ListOptions{})
	f.ok(err)
	var all []*nodelifecycle.Node
	for _, raw := range page.Items {
		n := new(nodelifecycle.Node)
		f.ok(json.Unmarshal(raw, n))
		all = append(all, n)
	}
	return all
}

// tainted are the nodes that carry a NoExecute taint, with its key's last word.
func (f *flow) tainted() string {
	f.t.Helper()
	var out []string
	for _, n := range f.allNodes() {
		for _, x := range taint.Evicting(n.Spec.Taints) {
			out = append(out, n.Metadata.Name+":"+strings.TrimPrefix(x.Key, "node.kubernetes.io/"))
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func (f *flow) taints(what, want string) {
	f.t.Helper()
	f.eventually(what, func() string {
		if got := f.tainted(); got != want {
			return fmt.Sprintf("tainted %q, want %q", got, want)
		}
		return ""
	})
}

func TestADeadNodeIsTaintedAndItsPodsEvictedThroughTheWholeFlow(t *testing.T) {
	t.Parallel()
	f := newNodeFlow(t, 3)
	for _, name := range []string{"a", "b", "c"} {
		f.controllers(name, func(c *Config) {
			lifecycle(c)
			c.Controllers = append(c.Controllers, "tainteviction")
		})
	}
	f.bind("p", "node-2")
	f.bind("q", "node-1")
	f.eventually("pods are ready", func() string {
		for _, name := range []string{"p", "q"} {
			if got := f.podReady(name); got != "True" {
				return name + " " + got
			}
		}
		return ""
	})
	f.nodes.Stop("node-2")
	f.taints("a dead node", "node-2:unreachable")
	// A renewal may be read livenessEvery late: silence counts from then.
	if took := time.Since(f.renewed("node-2")); took < quick.Grace-livenessEvery {
		t.Errorf("tainted %v after its lease was renewed, which is within its grace", took)
	}
	n := f.node("node-2")
	if c := n.Condition(nodelifecycle.Ready); c.Status != nodelifecycle.Unknown || c.Reason != nodelifecycle.StatusUnknown {
		t.Errorf("Ready = %+v", c)
	}
	if !taint.Has(n.Spec.Taints, taint.Unreachable, taint.NoSchedule) {
		t.Errorf("taints = %+v, want NoSchedule too", n.Spec.Taints)
	}
	if n.Metadata.Labels["beta.kubernetes.io/os"] != "linux" {
		t.Errorf("labels = %v", n.Metadata.Labels)
	}
	f.eventually("its pod is not ready", func() string {
		if got := f.podReady("p"); got != "False" {
			return got
		}
		return ""
	})
	f.eventually("events", func() string {
		nodes, pods := f.reasons("Node", "node-2"), f.reasons("Pod", "p")
		if nodes["NodeNotReady"] != 1 || pods["NodeNotReady"] != 1 {
			return fmt.Sprint(nodes, pods)
		}
		return ""
	})
	f.nodes.Start("node-2")
	f.taints("it is back", "")
	if got := f.podReady("q"); got != "True" {
		t.Errorf("a pod on another node is %s", got)
	}
}

func (f *flow) podReady(name string) string {
	f.t.Helper()
	raw, err := f.kube.Get(f.t.Context(), kube.Pods.Ref("default", name))
	f.ok(err)
	var p struct {
		Status struct {
			Conditions []nodelifecycle.Condition
		}
	}
	f.ok(json.Unmarshal(raw, &p))
	for _, c := range p.Status.Conditions {
		if c.Type == nodelifecycle.Ready {
			return c.Status
		}
	}
	return "none"
}

func TestNodesAreTaintedNoFasterThanTheirZonesRateAndNotAtAllWhenEveryZoneIsDown(t *testing.T) {
	t.Parallel()
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		keepRate(t, "")
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		keepRate(t, embeddedtest.Redis(t).URL())
	})
}

func keepRate(t *testing.T, redisURL string) {
	t.Helper()
	f := newNodeFlowOf(t, 6, redisURL)
	for i := 1; i <= 6; i++ {
		zone := "one"
		if i == 6 {
			zone = "two"
		}
		patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, nodelifecycle.ZoneLabel, zone)
		_, err := f.kube.Patch(t.Context(), kube.Ref{Resource: kube.Nodes, Name: fmt.Sprint("node-", i)}, kube.MergePatch, []byte(patch), kube.WriteOptions{})
		f.ok(err)
	}
	for _, name := range []string{"a", "b", "c"} {
		f.controllers(name, lifecycle)
	}
	f.eventually("watched", func() string { // their labels are given by the controller
		for i := 1; i <= 6; i++ {
			if f.node(fmt.Sprint("node-", i)).Metadata.Labels["beta.kubernetes.io/os"] == "" {
				return fmt.Sprint("node-", i)
			}
		}
		return ""
	})
	none := time.Now()        // was unknown, for certain: a node waits for its zone from then
	for i := 1; i <= 5; i++ { // the whole zone: fully disrupted, but not every zone is
		f.nodes.Stop(fmt.Sprint("node-", i))
	}
	f.eventually("a node is unknown", func() string {
		asked := time.Now()
		for _, n := range f.allNodes() {
			if n.Ready() == nodelifecycle.Unknown {
				return ""
			}
		}
		none = asked
		return "none is"
	})
	var all time.Time // were tainted
	f.eventually("the zone is tainted", func() string {
		n := len(strings.Fields(f.tainted()))
		all = time.Now()
		if n < 5 {
			return fmt.Sprint(n)
		}
		return ""
	})
	if took := all.Sub(none); took < 4*time.Second { // a taint may be late after its turn, and is never before it
		t.Errorf("three replicas at one node a second tainted 5 nodes in %v", took)
	}
	f.nodes.Stop("node-6")
	f.taints("every zone is down: all taints go", "")
	f.nodes.Start("node-6")
	f.eventually("a zone is back: the other one's nodes are tainted again", func() string {
		if n := len(strings.Fields(f.tainted())); n < 5 {
			return fmt.Sprint(n)
		}
		return ""
	})
}

// Each part of the way from the API server is stopped for three times the grace,
// while one of three nodes is dead indeed. What five minutes of it do is proved in
// services/controllers/nodelifecycle, on a clock of its own.
func TestAStallTaintsNobodyAndDecisionsResume(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		part        string
		stop, start func(f *flow)
	}{
		{"reflector", func(f *flow) { f.stopReflector() }, (*flow).startReflector},
		{"log", func(f *flow) { f.log.shut() }, func(f *flow) { f.log.open() }},
		{"index", func(f *flow) { f.stopIndex() }, (*flow).startIndex},
		{"queue", func(f *flow) { f.stopQueue() }, (*flow).startQueue},
	} {
		t.Run(c.part, func(t *testing.T) {
			t.Parallel()
			f := newNodeFlow(t, 3)
			f.controllers("a", lifecycle)
			for _, name := range []string{"node-1", "node-2", "node-3"} {
				f.eventually(name+" is watched", func() string { return missing(f.node(name).Metadata.Labels["beta.kubernetes.io/os"]) })
			}
			c.stop(f)
			f.nodes.Stop("node-1")
			timer := time.NewTimer(3 * quick.Grace)
			defer timer.Stop()
			<-timer.C
			ready := func(when string, names ...string) {
				t.Helper()
				for _, name := range names {
					if n := f.node(name); n.Ready() != nodelifecycle.True || len(n.Spec.Taints) > 0 {
						t.Fatalf("%s: %s is %s with taints %v", when, name, n.Ready(), n.Spec.Taints)
					}
				}
			}
			ready("while nobody follows the collections", "node-1", "node-2", "node-3")
			c.start(f)
			f.eventually("decisions resume for the one that is dead", func() string {
				ready("as decisions resume", "node-2", "node-3")
				if got := f.tainted(); got != "node-1:unreachable" {
					return fmt.Sprintf("tainted %q", got)
				}
				return ""
			})
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for began := time.Now(); time.Since(began) < quick.Grace; <-tick.C { // no burst follows
				ready("afterwards", "node-2", "node-3")
			}
		})
	}
}

func missing(s string) string {
	if s == "" {
		return "missing"
	}
	return ""
}
