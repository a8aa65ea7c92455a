package system

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
)

// Times of the tests on nodes: a tenth of Kubernetes' own.
const (
	testGrace = 5 * time.Second
	testRate  = 2 // nodes a second and zone

	testLiveness = 250 * time.Millisecond // how often the log tells that its collections are followed
)

const (
	unreachable = "node.kubernetes.io/unreachable"
	zoneLabel   = "topology.kubernetes.io/zone"
)

// lifecycleArgs are those of controllers that rule over nodes in such times.
func lifecycleArgs(grace time.Duration) []string {
	return []string{
		"--controllers", "nodelifecycle,tainteviction", "--node-monitor-grace-period", grace.String(), "--node-startup-grace-period", "20s",
		"--node-eviction-rate", strconv.Itoa(testRate), "--lease", "2s",
	}
}

func nodeNames(from, to int) []string {
	var names []string
	for i := from; i <= to; i++ {
		names = append(names, "node-"+strconv.Itoa(i))
	}
	return names
}

// Three zones of six nodes, without kube-controller-manager's controllers of nodes, ruled by three
// replicas of ours.
func TestRealNodesFailAndComeBack(t *testing.T) {
	t.Parallel()
	k := startKube(t, "--nodes", "18", "--zones", "3", "--lease-seconds", "4")
	p := k.startPlane(t, nil, lifecycleArgs(testGrace))
	replicas := []string{"controllers", "controllers-2", "controllers-3"}
	for _, name := range replicas {
		p.run(t, name)
	}
	w := k.watch(t)
	p.ready(t, replicas...)
	none := func() string {
		if got := w.tainted(); len(got) > 0 {
			return fmt.Sprintf("tainted are %v", got)
		}
		return ""
	}
	w.until(t, 20*time.Second, "nodes are known", func() string {
		if len(w.nodes) != 18 {
			return fmt.Sprintf("%d nodes", len(w.nodes))
		}
		return none()
	})

	t.Run("one node: tainted after the grace, its pods go when their time is over", func(t *testing.T) {
		k.podOn(t, "node-1", "immediate", unreachable, 0)
		k.podOn(t, "node-1", "delayed", unreachable, 3)
		k.podOn(t, "node-1", "faithful", unreachable, 600)
		k.podOn(t, "node-2", "elsewhere", unreachable, 0)
		began := time.Now()
		k.silence(t, true, "node-1")
		w.onlyTainted(t, 15*time.Second, "the silent node is tainted", "node-1")
		w.mu.Lock()
		at, added := w.since("node-1")
		ready := w.nodes["node-1"].Status.Conditions
		w.mu.Unlock()
		t.Logf("tainted %.2f s after the node was stopped, grace %v", at.Sub(began).Seconds(), testGrace)
		k.outlived(t, "node-1", at, testGrace)
		if took := at.Sub(began); took > testGrace+2500*time.Millisecond {
			t.Errorf("tainted after %v, want a grace of %v", took, testGrace)
		}
		if c := condition(ready, corev1.NodeReady); c.Status != corev1.ConditionUnknown || c.Reason != "NodeStatusUnknown" {
			t.Errorf("Ready is %+v, want Unknown", c)
		}
		w.inTime(t, added, map[string]int{"immediate": 0, "delayed": 3})
		w.stays(t, 2*time.Second, "the others stay", func() string {
			if w.evicted("faithful").IsZero() && w.evicted("elsewhere").IsZero() {
				return ""
			}
			return "a pod was evicted that may stay"
		})
		k.silence(t, false, "node-1")
		w.onlyTainted(t, 15*time.Second, "it answers again")
	})

	t.Run("half a zone: at the zone's rate; more than that: no further ones", func(t *testing.T) {
		none := time.Now() // of them was unknown, for certain: a node waits for its zone from then
		k.silence(t, true, nodeNames(1, 3)...)
		eventually(t, 20*time.Second, "one of them is unknown", func(ctx context.Context) error {
			asked := time.Now()
			var all corev1.NodeList
			if err := k.api.get(ctx, "/api/v1/nodes", &all); err != nil {
				return err
			}
			for _, n := range all.Items {
				if condition(n.Status.Conditions, corev1.NodeReady).Status == corev1.ConditionUnknown {
					return nil
				}
			}
			none = asked
			return errors.New("all are known")
		})
		w.onlyTainted(t, 20*time.Second, "half the zone is tainted", nodeNames(1, 3)...)
		w.mu.Lock()
		var at []time.Time
		for _, name := range nodeNames(1, 3) {
			since, _ := w.since(name)
			at = append(at, since)
		}
		w.mu.Unlock()
		slices.SortFunc(at, time.Time.Compare)
		for i, seen := range at { // a taint may be late after its turn, and is never before it
			if took := seen.Sub(none); took < time.Duration(i)*time.Second/testRate {
				t.Errorf("%d nodes of a zone were tainted within %v, at a rate of %d a second", i+1, took, testRate)
			}
			t.Logf("%d tainted %.2f s after none was unknown", i+1, seen.Sub(none).Seconds())
		}
		k.silence(t, true, "node-4", "node-5")
		w.until(t, 20*time.Second, "two more are unknown", func() string {
			for _, name := range []string{"node-4", "node-5"} {
				if c := condition(w.nodes[name].Status.Conditions, corev1.NodeReady); c.Status != corev1.ConditionUnknown {
					return name + " is " + string(c.Status)
				}
			}
			return ""
		})
		w.stays(t, 3*time.Second, "a zone partially disrupted", func() string {
			if got := w.tainted(); !slices.Equal(got, nodeNames(1, 3)) {
				return fmt.Sprintf("tainted are %v, want none of the two that died later", got)
			}
			return ""
		})
	})

	t.Run("a whole zone: all of it is tainted", func(t *testing.T) {
		k.podOn(t, "node-6", "late", unreachable, 14)
		k.silence(t, true, "node-6")
		w.onlyTainted(t, 20*time.Second, "the zone is tainted", nodeNames(1, 6)...)
	})

	t.Run("all zones: no taint stays and evictions stop", func(t *testing.T) {
		w.mu.Lock()
		_, added := w.since("node-6")
		w.mu.Unlock()
		k.podOn(t, "node-7", "survivor", unreachable, 600)
		k.silence(t, true, nodeNames(7, 18)...)
		w.until(t, 20*time.Second, "every node is unknown", func() string {
			for name, n := range w.nodes {
				if condition(n.Status.Conditions, corev1.NodeReady).Status != corev1.ConditionUnknown {
					return name + " is not"
				}
			}
			return ""
		})
		w.onlyTainted(t, 10*time.Second, "taints are taken away")
		stopped := time.Now()
		if !stopped.Before(added.Add(14 * time.Second)) {
			t.Logf("the last countdown ended %v before everything stopped: nothing was left to be cancelled", stopped.Sub(added.Add(14*time.Second)))
			return
		}
		w.stays(t, time.Until(added.Add(17*time.Second)), "all zones are down", func() string {
			if !w.evicted("late").IsZero() {
				return "a pod was evicted at the end of its countdown"
			}
			return none()
		})
	})

	t.Run("recovery: only what is dead is tainted again", func(t *testing.T) {
		k.silence(t, false, nodeNames(7, 18)...)
		w.onlyTainted(t, 40*time.Second, "the zone that is down is tainted again", nodeNames(1, 6)...)
		w.mu.Lock()
		_, added := w.since("node-6")
		w.mu.Unlock()
		w.inTime(t, added, map[string]int{"late": 14})
		k.silence(t, false, nodeNames(1, 6)...)
		w.onlyTainted(t, 15*time.Second, "all are back")
		w.until(t, 15*time.Second, "no taint of any effect stays", func() string {
			for name, n := range w.nodes {
				if len(n.Spec.Taints) > 0 {
					return fmt.Sprintf("%s has %v", name, n.Spec.Taints)
				}
			}
			return ""
		})
	})

	t.Run("a node that moves to another zone while it is silent is tainted there; one that is recreated is another one", func(t *testing.T) {
		k.podOn(t, "node-8", "keeper", unreachable, 12) // before that both are tainted and its node is deleted
		k.silence(t, true, "node-8", "node-9")
		if err := k.api.merge(t.Context(), "/api/v1/nodes/node-9", map[string]any{"metadata": map[string]any{"labels": map[string]string{zoneLabel: "elsewhere"}}}); err != nil {
			t.Fatal(err)
		}
		w.onlyTainted(t, 15*time.Second, "both are tainted", "node-8", "node-9")
		if err := k.api.delete(t.Context(), "/api/v1/nodes/node-8", "Background"); err != nil {
			t.Fatal(err)
		}
		again := map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{
			"name": "node-8", "labels": map[string]string{kubeletLabel: "kwok", zoneLabel: "z2"},
		}}
		if err := k.api.create(t.Context(), "/api/v1/nodes", again, nil); err != nil {
			t.Fatal(err)
		}
		k.silence(t, false, "node-9")
		w.onlyTainted(t, 15*time.Second, "both answer")
		w.stays(t, 14*time.Second, "the new node is well", func() string {
			if !w.evicted("keeper").IsZero() {
				return "a pod was evicted for the taint of a node that is no more"
			}
			return none()
		})
	})

	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range []string{"faithful", "survivor"} {
		if at := w.evicted(name); !at.IsZero() {
			t.Errorf("%s was evicted at %v, want it to stay", name, at)
		}
	}
	placed := 0
	for _, c := range w.changes {
		if !c.gone {
			placed++
		}
	}
	counted := 0.0
	for _, name := range replicas {
		looks := p.metric(t, name, `controller_runtime_reconcile_total{controller="nodelifecycle"`)
		counted += p.metric(t, name, "node_collector_evictions_total")
		t.Logf("%s looked at nodes %.0f times and at pods %.0f times", name, looks, p.metric(t, name, `controller_runtime_reconcile_total{controller="tainteviction"`))
		if looks < 20 {
			t.Errorf("%s looked at nodes %.0f times, want its share of the work", name, looks)
		}
	}
	if int(counted) != placed {
		t.Errorf("the replicas count %.0f NoExecute taints, the API server saw %d", counted, placed)
	}
}

// outlived fails when a node was tainted within its grace of the last renewal of its lease.
func (k *kubeCluster) outlived(t *testing.T, node string, tainted time.Time, grace time.Duration) {
	t.Helper()
	var lease coordinationv1.Lease
	if err := k.api.get(t.Context(), "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/"+node, &lease); err != nil {
		t.Fatal(err)
	}
	// A renewal may be read when the last that was heard is as old as testLiveness: silence counts
	// from then.
	took := tainted.Sub(lease.Spec.RenewTime.Time)
	t.Logf("tainted %.2f s after the last renewal, grace %v", took.Seconds(), grace)
	if took < grace-testLiveness {
		t.Errorf("tainted %v after the last renewal, want a grace of %v", took, grace)
	}
}

func condition(all []corev1.NodeCondition, kind corev1.NodeConditionType) corev1.NodeCondition {
	for _, c := range all {
		if c.Type == kind {
			return c
		}
	}
	return corev1.NodeCondition{}
}

// since is when a node's last NoExecute taint was seen to come, and what it says of that itself.
func (w *witness) since(node string) (seen, added time.Time) {
	for _, c := range w.changes {
		if c.node == node && !c.gone {
			seen = c.at
		}
	}
	for _, x := range w.nodes[node].Spec.Taints {
		if x.Effect == corev1.TaintEffectNoExecute && x.TimeAdded != nil {
			added = x.TimeAdded.Time
		}
	}
	return seen, added
}

// inTime waits until pods are evicted, so many seconds after a moment, and fails when one is early,
// or late by more than a second.
func (w *witness) inTime(t *testing.T, from time.Time, pods map[string]int) {
	t.Helper()
	most := 0
	for _, seconds := range pods {
		most = max(most, seconds)
	}
	w.until(t, time.Until(from.Add(time.Duration(most)*time.Second))+5*time.Second, "pods are evicted", func() string {
		for name := range pods {
			if w.evicted(name).IsZero() {
				return name + " stays"
			}
		}
		return ""
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	var latest time.Duration
	for name, seconds := range pods {
		late := w.evicted(name).Sub(from.Add(time.Duration(seconds) * time.Second))
		latest = max(latest, late)
		// What a taint says of its time is a whole second; a pod that may not stay at all is late by the
		// rest of it.
		if allowed := time.Second; late < 0 || late > allowed+map[bool]time.Duration{true: time.Second}[seconds == 0] {
			t.Errorf("%s was evicted %v after its deadline, want at most %v", name, late, allowed)
		}
		if n := w.pods[name].doomed; n != 1 {
			t.Errorf("%s got the condition DisruptionTarget %d times, want once", name, n)
		}
	}
	t.Logf("%d pods were evicted, at most %.3f s after their deadlines", len(pods), latest.Seconds())
}

// metric is the sum of the samples of a service's page whose line begins so.
func (p *plane) metric(t *testing.T, service, begins string) float64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.admin(service)+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	return sumOf(t, answer.Body, begins)
}

func sumOf(t *testing.T, page io.Reader, begins string) float64 {
	t.Helper()
	sum := 0.0
	for lines := bufio.NewScanner(page); lines.Scan(); {
		line := lines.Text()
		if !strings.HasPrefix(line, begins) {
			continue
		}
		value, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		if err != nil {
			t.Fatalf("metric %q: %v", line, err)
		}
		sum += value
	}
	return sum
}
