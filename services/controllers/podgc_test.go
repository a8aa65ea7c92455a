package controllers

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/client"
	rules "github.com/deltaplane/deltaplane/core/podgc"
	"github.com/deltaplane/deltaplane/core/taint"
	"github.com/deltaplane/deltaplane/internal/kube"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/controllers/podgc"
)

// brisk are the numbers of a cluster in a hurry.
var brisk = rules.Rules{Quarantine: 3 * time.Second, Every: 500 * time.Millisecond}

func collecting(c *Config) {
	c.Controllers, c.PodGC = []string{"job", "podgc"}, brisk
}

func (f *flow) deleteNode(name string) {
	f.t.Helper()
	_, err := f.kube.Delete(f.t.Context(), kube.Nodes.Ref("", name), kube.DeleteOptions{})
	f.ok(err)
}

// The node's agent is gone before its pod comes, which so never runs there.
func TestAJobOutlivesTheNodeOfItsPodThroughTheWholeFlow(t *testing.T) {
	t.Parallel()
	f := newFlow(t)
	for _, name := range []string{"a", "b"} {
		f.controllers(name, collecting)
	}
	f.nodes.Stop("node-1")
	f.createJob("j", 4, 4, "50ms")
	stuck := func() (names []string) {
		for _, p := range f.pods("j") {
			if p.Spec.NodeName == "node-1" && p.Status.Phase == corev1.PodPending {
				names = append(names, p.Name)
			}
		}
		return names
	}
	f.eventually("a pod waits for the dead node, the others are through", func() string {
		if n := len(stuck()); n == 0 || int(f.job("j").Status.Succeeded)+n < 4 {
			return fmt.Sprintf("%d wait, Job %+v", n, f.job("j").Status)
		}
		return ""
	})
	lost := len(stuck())
	f.deleteNode("node-1")
	f.eventually("the Job ends on the other node", func() string { return complete(f.job("j")) })
	if s := f.job("j").Status; s.Succeeded != 4 || int(s.Failed) != lost {
		t.Errorf("%d pods succeeded and %d failed, want 4 and %d", s.Succeeded, s.Failed, lost)
	}
}

func TestTheQuarantineOfANodeSurvivesTheLossOfEveryController(t *testing.T) {
	t.Parallel()
	f := newFlow(t)
	slow := rules.Rules{Quarantine: 10 * time.Minute}
	slowly := func(c *Config) { c.Controllers, c.PodGC = []string{"podgc"}, slow }
	_, stop := f.controllers("a", slowly)
	f.nodes.Stop("node-1")
	f.bind("p", "node-1")
	f.deleteNode("node-1")
	due := func() time.Time {
		resp, err := queuev1.NewQueueAdminServiceClient(f.queue).Inspect(f.t.Context(), &queuev1.InspectRequest{Queue: "dev/podgc", Key: "node-1"})
		if err != nil || resp.GetItem().GetDelayedUntil() == nil {
			return time.Time{}
		}
		return resp.GetItem().GetDelayedUntil().AsTime()
	}
	f.eventually("the quarantine runs", func() string {
		if due().IsZero() {
			return "it does not"
		}
		return ""
	})
	stop()
	f.controllers("b", slowly)
	again := time.Now() // when a quarantine would begin that started over
	f.eventually("it goes on", func() string {
		_, err := client.NewQueue(f.queue, "dev/podgc", "").Add(t.Context(), client.Keys("node-1")...)
		f.ok(err)
		if at := due(); at.IsZero() || !at.Before(again.Add(slow.Quarantine)) {
			return fmt.Sprint("it is due ", at)
		}
		return ""
	})
	f.leaves("its pod is there", "p")
}

func TestEndedPodsAboveTheThresholdAreDeletedThroughTheWholeFlow(t *testing.T) {
	t.Parallel()
	f := newFlow(t)
	few := brisk
	few.Threshold = new(3)
	for _, name := range []string{"a", "b"} {
		f.controllers(name, func(c *Config) { c.Controllers, c.PodGC = []string{"podgc"}, few })
	}
	f.bind("runs", "node-1")
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		f.bind(name, "node-2")
	}
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		f.end(name)
	}
	f.leaves("the oldest go", "d", "e", "f", "runs")
	indexers, err := client.NewIndex(f.index).Indexers(t.Context(), "dev/pods.v1")
	f.ok(err)
	for _, x := range indexers {
		if x.Name == phaseIndex && x.State == client.IndexerReady {
			return
		}
	}
	t.Errorf("indexes are %+v, want %s among them", indexers, phaseIndex)
}

// end makes a pod's phase Succeeded, as its node would.
func (f *flow) end(name string) {
	f.t.Helper()
	_, err := f.kube.Patch(f.t.Context(), kube.Pods.Ref("default", name).Status(), kube.MergePatch, []byte(`{"status":{"phase":"Succeeded"}}`), kube.WriteOptions{})
	f.ok(err)
}

func TestPodsThatNoNodeWillEndAreCollectedThroughTheWholeFlow(t *testing.T) {
	t.Parallel()
	f := newFlowOn(t, cluster(t)) // without agents: what is deleted stays
	for _, name := range []string{"shut", "well"} {
		body := fmt.Sprintf(`{"apiVersion":"v1","kind":"Node","metadata":{"name":%q}}`, name)
		_, err := f.kube.Create(t.Context(), kube.Nodes.Ref("", ""), []byte(body), kube.WriteOptions{})
		f.ok(err)
	}
	for name, node := range map[string]string{"on-shut": "shut", "on-well": "well", "unbound": ""} {
		body, err := json.Marshal(map[string]any{
			"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": name, "finalizers": []string{"test/held"}},
			"spec": map[string]any{"nodeName": node, "nodeSelector": map[string]any{"no": "node"}, "terminationGracePeriodSeconds": 600, "containers": []any{map[string]any{"name": "c", "image": "i"}}},
		})
		f.ok(err)
		_, err = f.kube.Create(t.Context(), kube.Pods.Ref("default", ""), body, kube.WriteOptions{})
		f.ok(err)
		_, err = f.kube.Delete(t.Context(), kube.Pods.Ref("default", name), kube.DeleteOptions{})
		f.ok(err)
	}
	f.controllers("a", func(c *Config) { c.Controllers, c.PodGC = []string{"podgc"}, brisk })
	phase := func(name string) string {
		raw, err := f.kube.Get(t.Context(), kube.Pods.Ref("default", name))
		f.ok(err)
		var p corev1.Pod
		f.ok(json.Unmarshal(raw, &p))
		return fmt.Sprint(p.Status.Phase, *p.DeletionGracePeriodSeconds)
	}
	f.eventually("one that was never bound", func() string {
		if got := phase("unbound"); got != "Failed0" {
			return got
		}
		return ""
	})
	if got := phase("on-shut"); got != "Pending600" {
		t.Errorf("a pod of a node in service is %s", got)
	}
	f.taintNode("shut", taint.Taint{Key: taint.OutOfService, Effect: taint.NoExecute})
	f.eventually("one on a node out of service", func() string {
		if got := phase("on-shut"); got != "Failed0" {
			return got
		}
		return ""
	})
	if got := phase("on-well"); got != "Pending600" {
		t.Errorf("a pod of another node is %s", got)
	}
}

func TestNothingIsDeletedByCollectionsThatAreNotFollowed(t *testing.T) {
	t.Parallel()
	live := func(name, rv string) client.CollectionStatus {
		return client.CollectionStatus{Collection: name, Synced: true, LiveAt: time.Now(), Bounds: client.Bounds{Revision: client.Revision{Epoch: 1, RV: rv}}}
	}
	for name, c := range map[string]struct {
		change func(*client.CollectionStatus)
		ok     bool
	}{
		"followed":             {func(*client.CollectionStatus) {}, true},
		"another one":          {func(c *client.CollectionStatus) { c.Collection = "dev/leases.v1" }, false},
		"not synced":           {func(c *client.CollectionStatus) { c.Synced = false }, false},
		"older than its bound": {func(c *client.CollectionStatus) { c.Stale = true }, false},
		"never heard of":       {func(c *client.CollectionStatus) { c.LiveAt = time.Time{} }, false},
		"of another cluster":   {func(c *client.CollectionStatus) { c.Collection = "old/nodes.v1" }, false},
	} {
		nodes := live("dev/nodes.v1", "7")
		c.change(&nodes)
		at, err := followed([]client.CollectionStatus{nodes, live("dev/pods.v1", "9")}, "dev/pods.v1", "dev/nodes.v1")
		if c.ok && (err != nil || at["dev/nodes.v1"].RV != "7" || at["dev/pods.v1"].RV != "9") {
			t.Errorf("%s: %v, %v", name, at, err)
		}
		if !c.ok && !errors.Is(err, podgc.ErrStale) {
			t.Errorf("%s: %v, want ErrStale", name, err)
		}
	}
}
