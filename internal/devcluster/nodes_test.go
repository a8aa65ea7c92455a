package devcluster_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/internal/devcluster"
	"github.com/deltaplane/deltaplane/internal/devcluster/devclustertest"
)

// running is a small cluster with quick nodes.
func running(t *testing.T, nodes int) *devcluster.Cluster {
	t.Helper()
	return devclustertest.Start(t, devcluster.Config{Nodes: nodes, PodStart: time.Millisecond, HeartbeatEvery: 50 * time.Millisecond})
}

func podWatch(t *testing.T, c *devcluster.Cluster, name string) <-chan line {
	t.Helper()
	return watch(t, c, pods+"?watch=1&fieldSelector=metadata.name%3D"+name)
}

func phase(want string) func(line) bool {
	return func(l line) bool { return l.Event.text("status.phase") == want }
}

func TestAPodRunsAndEndsAsItsAnnotationsSay(t *testing.T) {
	t.Parallel()
	c := running(t, 2)
	for _, test := range []struct {
		name        string
		annotations doc
		phase       string
		code        any
	}{
		{"well", doc{"deltaplane.io/run-seconds": "10ms"}, "Succeeded", 0.0},
		{"badly", doc{"deltaplane.io/run-seconds": "10ms", "deltaplane.io/exit-code": "3"}, "Failed", 3.0},
		{"unlucky", doc{"deltaplane.io/run-seconds": "0", "deltaplane.io/failure-rate": "1"}, "Failed", 1.0},
		{"lucky", doc{"deltaplane.io/run-seconds": "0", "deltaplane.io/failure-rate": "0", "deltaplane.io/exit-code": "9"}, "Succeeded", 0.0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			must(t, c, http.MethodPost, pods, pod(test.name, test.annotations, nil))
			lines := podWatch(t, c, test.name)
			o := until(t, lines, test.phase, phase(test.phase))
			statuses, _ := o.at("status.containerStatuses").([]any)
			if len(statuses) != 1 {
				t.Fatalf("containerStatuses = %v", statuses)
			}
			s := doc(statuses[0].(map[string]any))
			if got := s.at("state.terminated.exitCode"); got != test.code || s.text("state.terminated.finishedAt") == "" {
				t.Errorf("state = %v, want exit code %v and a time", s["state"], test.code)
			}
			if o.text("spec.nodeName") == "" || o.text("status.podIP") == "" || o.text("status.startTime") == "" {
				t.Errorf("pod = %v, want a node, an address and a start", o)
			}
		})
	}
}

func TestARunningPodIsReady(t *testing.T) {
	t.Parallel()
	c := running(t, 1)
	must(t, c, http.MethodPost, pods, pod("p", doc{"deltaplane.io/run-seconds": "forever"}, nil))
	o := until(t, podWatch(t, c, "p"), "running", phase("Running"))
	conditions, _ := o.at("status.conditions").([]any)
	is := map[string]any{}
	for _, v := range conditions {
		m := v.(map[string]any)
		is[m["type"].(string)] = m["status"]
	}
	for _, want := range []string{"PodScheduled", "Initialized", "ContainersReady", "Ready"} {
		if is[want] != "True" {
			t.Errorf("condition %s = %v, want True", want, is[want])
		}
	}
}

func TestAFailedContainerIsRestartedOnFailure(t *testing.T) {
	t.Parallel()
	c := running(t, 1)
	must(t, c, http.MethodPost, pods, pod("p", doc{"deltaplane.io/run-seconds": "0", "deltaplane.io/exit-code": "1"}, doc{"restartPolicy": "OnFailure"}))
	o := until(t, podWatch(t, c, "p"), "two restarts", func(l line) bool {
		statuses, _ := l.Event.at("status.containerStatuses").([]any)
		return len(statuses) == 1 && doc(statuses[0].(map[string]any)).at("restartCount") == 2.0
	})
	if got := o.text("status.phase"); got != "Running" {
		t.Errorf("phase = %s, want Running", got)
	}
}

func TestUnreadableAnnotationsFailThePodAndSayWhatIsAllowed(t *testing.T) {
	t.Parallel()
	c := running(t, 1)
	for i, annotations := range []doc{
		{"deltaplane.io/run-seconds": "soon"}, {"deltaplane.io/run-seconds": "-1s"}, {"deltaplane.io/exit-code": "256"}, {"deltaplane.io/failure-rate": "NaN"},
	} {
		name := fmt.Sprintf("p-%d", i)
		must(t, c, http.MethodPost, pods, pod(name, annotations, nil))
		o := until(t, podWatch(t, c, name), "failed", phase("Failed"))
		if o.text("status.reason") != "InvalidAnnotation" || o.text("status.message") == "" {
			t.Errorf("%v: status = %v, want the reason InvalidAnnotation", annotations, o["status"])
		}
	}
}

func TestADeletedPodEndsAndFinalizersHoldIt(t *testing.T) {
	t.Parallel()
	c := running(t, 1)
	forever := doc{"deltaplane.io/run-seconds": "forever"}
	must(t, c, http.MethodPost, pods, pod("plain", forever, nil))
	held := pod("held", forever, nil)
	held["metadata"].(doc)["finalizers"] = []string{"batch.kubernetes.io/job-tracking"}
	must(t, c, http.MethodPost, pods, held)
	for _, name := range []string{"plain", "held"} {
		until(t, podWatch(t, c, name), "running", phase("Running"))
		must(t, c, http.MethodDelete, pods+"/"+name, nil)
	}
	until(t, podWatch(t, c, "held"), "failed with its grace over", func(l line) bool {
		return l.Event.text("status.phase") == "Failed" && l.Event.at("metadata.deletionGracePeriodSeconds") == 0.0
	})
	lines := podWatch(t, c, "held")
	next(t, lines)
	must(t, c, http.MethodPatch, pods+"/held", `{"metadata":{"finalizers":null}}`)
	until(t, lines, "gone", func(l line) bool { return l.Type == "DELETED" })
	if code, _ := call(t, c, http.MethodGet, pods+"/plain", nil); code != http.StatusNotFound {
		t.Errorf("the plain pod answers %d, want it gone", code)
	}
}

func TestNodesHeartbeatUntilTheyAreStopped(t *testing.T) {
	t.Parallel()
	c := running(t, 2)
	const leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
	lines := watch(t, c, leases+"?watch=1&fieldSelector=metadata.name%3Dnode-1")
	first := next(t, lines).Event
	if first.at("spec.leaseDurationSeconds") == nil || first.text("spec.holderIdentity") != "node-1" {
		t.Errorf("lease = %v", first)
	}
	next(t, lines)
	if !c.StopNode("node-1") || c.StopNode("node-9") {
		t.Fatal("StopNode() must know the cluster's nodes and no others")
	}
	must(t, c, http.MethodPost, pods, pod("stuck", nil, doc{"nodeName": "node-1"}))
	// The other node proves that time passes: after three of its beats, none of the stopped one's.
	other := watch(t, c, leases+"?watch=1&fieldSelector=metadata.name%3Dnode-2")
	for range 4 {
		next(t, other)
	}
	before := must(t, c, http.MethodGet, leases+"/node-1", nil).text("spec.renewTime")
	for range 3 {
		next(t, other)
	}
	if after := must(t, c, http.MethodGet, leases+"/node-1", nil).text("spec.renewTime"); after != before {
		t.Errorf("renewTime moved from %s to %s on a stopped node", before, after)
	}
	if got := must(t, c, http.MethodGet, pods+"/stuck", nil).text("status.phase"); got != "Pending" {
		t.Errorf("a pod on the stopped node is %s, want Pending", got)
	}
	c.StartNode("node-1")
	until(t, podWatch(t, c, "stuck"), "running", phase("Running"))
}

func TestTheBinderMindsTaintsSelectorsAndReadiness(t *testing.T) {
	t.Parallel()
	c := running(t, 3)
	node := func(n int) string { return fmt.Sprintf("/api/v1/nodes/node-%d", n) }
	ready := watch(t, c, "/api/v1/nodes?watch=1")
	for range 3 {
		next(t, ready)
	}
	must(t, c, http.MethodPatch, node(1), `{"spec":{"taints":[{"key":"only","value":"tough","effect":"NoSchedule"}]}}`)
	must(t, c, http.MethodPatch, node(2), `{"spec":{"unschedulable":true}}`)
	must(t, c, http.MethodPatch, node(3), `{"metadata":{"labels":{"disk":"ssd"}}}`)
	for _, test := range []struct {
		name string
		spec doc
		want string
	}{
		{"plain", nil, "node-3"},
		{"ssd", doc{"nodeSelector": doc{"disk": "ssd"}}, "node-3"},
		{"tough", doc{"nodeSelector": doc{"kubernetes.io/hostname": "node-1"}, "tolerations": []doc{{"key": "only", "operator": "Equal", "value": "tough", "effect": "NoSchedule"}}}, "node-1"},
		{"cordoned", doc{"nodeSelector": doc{"kubernetes.io/hostname": "node-2"}, "tolerations": []doc{{"operator": "Exists"}}}, "node-2"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			must(t, c, http.MethodPost, pods, pod(test.name, nil, test.spec))
			o := until(t, podWatch(t, c, test.name), "bound", func(l line) bool { return l.Event.text("spec.nodeName") != "" })
			if got := o.text("spec.nodeName"); got != test.want {
				t.Errorf("node = %s, want %s", got, test.want)
			}
		})
	}
	t.Run("a pod that fits nowhere says so and is bound when it fits", func(t *testing.T) {
		t.Parallel()
		must(t, c, http.MethodPost, pods, pod("late", nil, doc{"nodeSelector": doc{"zone": "b"}}))
		lines := podWatch(t, c, "late")
		until(t, lines, "unschedulable", func(l line) bool {
			conditions, _ := l.Event.at("status.conditions").([]any)
			return len(conditions) == 1 && doc(conditions[0].(map[string]any)).text("reason") == "Unschedulable"
		})
		must(t, c, http.MethodPatch, node(3), `{"metadata":{"labels":{"zone":"b"}}}`)
		until(t, lines, "bound", func(l line) bool { return l.Event.text("spec.nodeName") == "node-3" })
	})
}

func TestPodsAreSpread(t *testing.T) {
	t.Parallel()
	c := running(t, 3)
	forever := doc{"deltaplane.io/run-seconds": "forever"}
	for i := range 9 {
		must(t, c, http.MethodPost, pods, pod(fmt.Sprintf("p-%d", i), forever, nil))
	}
	count := map[string]int{}
	for i := range 9 {
		o := until(t, podWatch(t, c, fmt.Sprintf("p-%d", i)), "bound", func(l line) bool { return l.Event.text("spec.nodeName") != "" })
		count[o.text("spec.nodeName")]++
	}
	for name, n := range count {
		if n != 3 {
			t.Errorf("%s has %d pods, want 3: %v", name, n, count)
		}
	}
}

func TestARestartedClusterRunsItsPodsOn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := idle(t, devcluster.Config{DataDir: dir})
	must(t, c, http.MethodPost, pods, pod("p", doc{"deltaplane.io/run-seconds": "0"}, nil))
	owner := must(t, c, http.MethodPost, configMaps, configMap("owner"))
	dep := configMap("dep")
	dep["metadata"] = doc{"name": "dep", "ownerReferences": []doc{{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.text("metadata.uid")}}}
	must(t, c, http.MethodPost, configMaps, dep)
	must(t, c, http.MethodDelete, configMaps+"/owner", nil)
	// Killed before anything was bound, run or collected.
	c = devclustertest.Start(t, devcluster.Config{DataDir: killed(t, dir), PodStart: time.Millisecond})
	until(t, podWatch(t, c, "p"), "succeeded", phase("Succeeded"))
	lines := watch(t, c, configMaps+"?watch=1&fieldSelector=metadata.name%3Ddep")
	if code, _ := call(t, c, http.MethodGet, configMaps+"/dep", nil); code == http.StatusOK {
		until(t, lines, "collected", func(l line) bool { return l.Type == "DELETED" })
	}
}

func TestANodeIsStoppedAndStartedByItsAnnotation(t *testing.T) {
	t.Parallel()
	c := devclustertest.Start(t, devcluster.Config{Nodes: 2, HeartbeatEvery: time.Hour}) // only the annotation wakes a kubelet
	annotate := func(value any) {
		t.Helper()
		must(t, c, http.MethodPatch, "/api/v1/nodes/node-1", doc{"metadata": doc{"annotations": doc{devcluster.StoppedAnnotation: value}}})
	}
	next(t, watch(t, c, "/api/v1/nodes?watch=1&fieldSelector=metadata.name%3Dnode-1")) // it is registered
	annotate("true")
	must(t, c, http.MethodPost, pods, pod("stuck", nil, doc{"nodeName": "node-1"}))
	must(t, c, http.MethodPost, pods, pod("runs", nil, doc{"nodeName": "node-2"}))
	until(t, podWatch(t, c, "runs"), "running", phase("Running"))
	if got := must(t, c, http.MethodGet, pods+"/stuck", nil).text("status.phase"); got != "Pending" {
		t.Errorf("a pod on the stopped node is %s, want Pending", got)
	}
	annotate(nil)
	until(t, podWatch(t, c, "stuck"), "running", phase("Running"))
}
