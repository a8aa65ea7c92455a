package devcluster_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/deltaplane/deltaplane/internal/devcluster"
	"github.com/deltaplane/deltaplane/internal/devcluster/devclustertest"
)

// bare is a cluster with nodes whose pods nobody runs.
func bare(t *testing.T, nodes int) *devcluster.Cluster {
	t.Helper()
	c := devclustertest.Start(t, devcluster.Config{})
	devclustertest.Nodes(t, c.URL(), nodes)
	return c
}

func podWatch(t *testing.T, c *devcluster.Cluster, name string) <-chan line {
	t.Helper()
	return watch(t, c, pods+"?watch=1&fieldSelector=metadata.name%3D"+name)
}

func TestADeletedPodWaitsForItsNodeAndThenForItsFinalizers(t *testing.T) {
	t.Parallel()
	c := bare(t, 1)
	must(t, c, http.MethodPost, pods, pod("plain", nil, nil))
	held := pod("held", nil, nil)
	held["metadata"].(doc)["finalizers"] = []string{"batch.kubernetes.io/job-tracking"}
	must(t, c, http.MethodPost, pods, held)
	for _, name := range []string{"plain", "held"} {
		lines := podWatch(t, c, name)
		until(t, lines, "bound", func(l line) bool { return l.Event.text("spec.nodeName") == "node-1" })
		must(t, c, http.MethodDelete, pods+"/"+name, nil)
		if got := must(t, c, http.MethodGet, pods+"/"+name, nil); got.at("metadata.deletionGracePeriodSeconds") != 30.0 {
			t.Errorf("%s: metadata = %v, want that it waits for its node", name, got["metadata"])
		}
		// What an agent does when the containers have ended.
		must(t, c, http.MethodPatch, pods+"/"+name+"/status", `{"status":{"phase":"Failed"}}`)
		must(t, c, http.MethodDelete, pods+"/"+name, doc{"gracePeriodSeconds": 0})
	}
	if code, _ := call(t, c, http.MethodGet, pods+"/plain", nil); code != http.StatusNotFound {
		t.Errorf("the plain pod answers %d, want it gone", code)
	}
	lines := podWatch(t, c, "held")
	if l := next(t, lines); l.Event.at("metadata.deletionGracePeriodSeconds") != 0.0 || l.Event.text("status.phase") != "Failed" {
		t.Errorf("the held pod = %s, want it failed with its grace over", l.raw)
	}
	must(t, c, http.MethodPatch, pods+"/held", `{"metadata":{"finalizers":null}}`)
	until(t, lines, "gone", func(l line) bool { return l.Type == "DELETED" })
}

func TestTheBinderMindsTaintsSelectorsAndReadiness(t *testing.T) {
	t.Parallel()
	c := bare(t, 3)
	node := func(n int) string { return fmt.Sprintf("/api/v1/nodes/node-%d", n) }
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
	c := bare(t, 3)
	for i := range 9 {
		must(t, c, http.MethodPost, pods, pod(fmt.Sprintf("p-%d", i), nil, nil))
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

func TestARestartedClusterGoesOnWhereItWas(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := idle(t, devcluster.Config{DataDir: dir})
	must(t, c, http.MethodPost, pods, pod("p", nil, nil))
	owner := must(t, c, http.MethodPost, configMaps, configMap("owner"))
	dep := configMap("dep")
	dep["metadata"] = doc{"name": "dep", "ownerReferences": []doc{{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.text("metadata.uid")}}}
	must(t, c, http.MethodPost, configMaps, dep)
	must(t, c, http.MethodDelete, configMaps+"/owner", nil)
	// Killed before anything was bound or collected.
	c = devclustertest.Start(t, devcluster.Config{DataDir: killed(t, dir)})
	devclustertest.Nodes(t, c.URL(), 1)
	until(t, podWatch(t, c, "p"), "bound", func(l line) bool { return l.Event.text("spec.nodeName") == "node-1" })
	lines := watch(t, c, configMaps+"?watch=1&fieldSelector=metadata.name%3Ddep")
	if code, _ := call(t, c, http.MethodGet, configMaps+"/dep", nil); code == http.StatusOK {
		until(t, lines, "collected", func(l line) bool { return l.Type == "DELETED" })
	}
}
