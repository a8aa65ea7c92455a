package controllers

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/core/taint"
	"github.com/deltaplane/deltaplane/internal/criruntime"
	"github.com/deltaplane/deltaplane/internal/kube"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// bind makes a pod on a node with tolerations of the taint "test".
func (f *flow) bind(name, node string, seconds ...int64) {
	f.t.Helper()
	f.bindTo(name, node, "test", seconds...)
}

// bindTo makes a pod on a node with tolerations of a taint.
func (f *flow) bindTo(name, node, key string, seconds ...int64) {
	f.t.Helper()
	list := []taint.Toleration{}
	for _, s := range seconds {
		list = append(list, taint.Toleration{Key: key, Operator: taint.Exists, Effect: taint.NoExecute, Seconds: new(s)})
	}
	body, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": name, "annotations": map[string]any{criruntime.RunSecondsAnnotation: "forever"}},
		"spec": map[string]any{"nodeName": node, "tolerations": list, "terminationGracePeriodSeconds": 0, "containers": []any{map[string]any{"name": "c", "image": "i"}}},
	})
	f.ok(err)
	_, err = f.kube.Create(f.t.Context(), kube.Pods.Ref("default", ""), body, kube.WriteOptions{})
	f.ok(err)
}

// taintNode replaces a node's taints.
func (f *flow) taintNode(name string, taints ...taint.Taint) {
	f.t.Helper()
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"taints": taints}})
	f.ok(err)
	_, err = f.kube.Patch(f.t.Context(), kube.Nodes.Ref("", name), kube.MergePatch, patch, kube.WriteOptions{})
	f.ok(err)
}

// left are the names of the pods there are, sorted.
func (f *flow) left() []string {
	f.t.Helper()
	page, err := f.kube.List(f.t.Context(), kube.Pods, kube.ListOptions{Scope: kube.Scope{Namespace: "default"}})
	f.ok(err)
	names := []string{}
	for _, raw := range page.Items {
		var p corev1.Pod
		f.ok(json.Unmarshal(raw, &p))
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return names
}

// reasons counts the Events about objects of a kind by reason; without names, about all.
func (f *flow) reasons(kind string, names ...string) map[string]int {
	f.t.Helper()
	reasons := map[string]int{}
	for _, namespace := range []string{"default", "kube-system"} {
		page, err := f.kube.List(f.t.Context(), kube.Resource{Version: "v1", Name: "events", Kind: "Event", Namespaced: true}, kube.ListOptions{Scope: kube.Scope{Namespace: namespace}})
		f.ok(err)
		for _, raw := range page.Items {
			var e corev1.Event
			f.ok(json.Unmarshal(raw, &e))
			if e.InvolvedObject.Kind == kind && (len(names) == 0 || slices.Contains(names, e.InvolvedObject.Name)) {
				reasons[e.Reason]++
			}
		}
	}
	return reasons
}

func (f *flow) leaves(what string, want ...string) {
	f.t.Helper()
	f.eventually(what, func() string {
		if got := f.left(); !slices.Equal(got, want) {
			return fmt.Sprint("pods left: ", got)
		}
		return ""
	})
}

func only(name string) func(*Config) {
	return func(c *Config) { c.Controllers = []string{name} }
}

func TestPodsAreEvictedThroughTheWholeFlow(t *testing.T) {
	t.Parallel()
	f := newFlow(t)
	f.controllers("a", only("tainteviction"))
	f.controllers("b", only("tainteviction"))
	f.controllers("c", only("tainteviction"))
	f.bind("none", "node-1")
	f.bind("soon", "node-1", 2)
	f.bind("late", "node-1", 600)
	f.bind("elsewhere", "node-2")
	f.eventually("pods run", func() string {
		if n := len(f.left()); n != 4 {
			return fmt.Sprint(n)
		}
		return ""
	})
	began := time.Now()
	placed := taint.Taint{Key: "test", Effect: taint.NoExecute, TimeAdded: new(began.Truncate(time.Second))}
	f.taintNode("node-1", placed)
	f.eventually("at once", func() string { // the next one may have gone as well by the time this is seen
		if slices.Contains(f.left(), "none") {
			return "the pod that tolerates nothing is there"
		}
		return ""
	})
	f.leaves("after 2 s", "elsewhere", "late")
	if took := time.Since(*placed.TimeAdded); took < 2*time.Second || took > 20*time.Second {
		t.Errorf("the pod that tolerates 2 s went after %v", took)
	}
	f.taintNode("node-1")
	f.eventually("events", func() string {
		page := f.reasons("Pod")
		if page["TaintManagerEviction"] < 3 {
			return fmt.Sprint(page)
		}
		return ""
	})
	f.leaves("the taint is gone", "elsewhere", "late")
}

func TestACountdownSurvivesTheLossOfEveryProcess(t *testing.T) {
	t.Parallel()
	f := newFlow(t)
	_, stop := f.controllers("a", only("tainteviction"))
	const soon, late = 20 * time.Second, 10 * time.Minute
	f.bind("p", "node-1", int64(soon/time.Second))
	f.bind("q", "node-1", int64(late/time.Second))
	// A pod counts from when its node admitted it, where that is after the taint.
	f.eventually("the node has the pods", func() string {
		page, err := f.kube.List(f.t.Context(), kube.Pods, kube.ListOptions{Scope: kube.Scope{Namespace: "default"}})
		f.ok(err)
		if n := bytes.Count(bytes.Join(page.Items, nil), []byte(`"PodScheduled"`)); n < 2 {
			return fmt.Sprint(n)
		}
		return ""
	})
	placed := taint.Taint{Key: "test", Effect: taint.NoExecute, TimeAdded: new(time.Now().Truncate(time.Second))}
	f.taintNode("node-1", placed)
	due := func(when string) (at time.Time) {
		f.eventually(when, func() string {
			resp, err := queuev1.NewQueueAdminServiceClient(f.queue).Inspect(f.t.Context(), &queuev1.InspectRequest{Queue: "dev/tainteviction", Key: "default/q"})
			if err != nil {
				return err.Error()
			}
			item := resp.GetItem()
			if at = item.GetDelayedUntil().AsTime(); item.GetDelayedUntil() == nil {
				return fmt.Sprint("it is not due at any time: ", item)
			}
			return ""
		})
		return at
	}
	before := due("the countdown runs")
	f.eventually("it has run for a while", func() string {
		if time.Since(*placed.TimeAdded) < soon/2 {
			return "not yet"
		}
		return ""
	})
	stop()
	f.stopQueue() // its memory engine keeps nothing
	f.startQueue()
	f.controllers("b", only("tainteviction"))
	if after := due("the countdown goes on"); after.Sub(before) > soon/4 {
		t.Errorf("after the restart the eviction is due %v later: the countdown started over", after.Sub(before))
	}
	f.leaves("in time", "q")
	if took := time.Since(*placed.TimeAdded); took < soon {
		t.Errorf("the pod that tolerates %v went %v after the taint", soon, took)
	}
}
