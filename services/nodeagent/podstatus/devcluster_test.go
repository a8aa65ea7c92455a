package podstatus_test

import (
	"encoding/json"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/internal/devcluster"
	"github.com/deltaplane/deltaplane/internal/devcluster/devclustertest"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/nodeagent/podstatus"
)

var podResource = kube.Resource{Version: "v1", Name: "pods", Kind: "Pod", Namespaced: true}

func TestAPodsLifeOnAnAPIServer(t *testing.T) {
	t.Parallel()
	c, err := kube.Load(kube.Config{URL: devclustertest.Start(t, devcluster.Config{}).URL()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ref := kube.Ref{Resource: podResource, Namespace: "default", Name: "pod"}
	get := func() *corev1.Pod {
		t.Helper()
		raw, err := c.Get(t.Context(), ref)
		if kube.IsNotFound(err) {
			return nil
		}
		if err != nil {
			t.Fatal(err)
		}
		var pod corev1.Pod
		if err := json.Unmarshal(raw, &pod); err != nil {
			t.Fatal(err)
		}
		return &pod
	}
	until := func(what string, ok func(*corev1.Pod) bool) *corev1.Pod {
		t.Helper()
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for deadline := time.After(20 * time.Second); ; {
			pod := get()
			if ok(pod) {
				return pod
			}
			select {
			case <-tick.C:
			case <-deadline:
				t.Fatalf("no %s: %+v", what, pod)
			}
		}
	}
	body := `{"metadata":{"name":"pod"},"spec":{"nodeName":"elsewhere","containers":[{"name":"main","image":"i"}]}}`
	if _, err := c.Create(t.Context(), ref, []byte(body), kube.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := get()
	m := run(t, c, podstatus.Config{})
	m.Set(pod, podstatus.Generate(podstatus.Input{Pod: pod, Runtime: observed("ready main:run"), Now: time.Now()}))
	until("running pod", func(p *corev1.Pod) bool { return p != nil && p.Status.Phase == corev1.PodRunning })

	// Somebody else writes a condition; the version that the manager knows is old by that.
	status := ref
	status.Subresource = "status"
	if _, err := c.Patch(t.Context(), status, kube.StrategicPatch, []byte(`{"status":{"conditions":[{"type":"DisruptionTarget","status":"True"}]}}`), kube.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Delete(t.Context(), ref, kube.DeleteOptions{UID: string(pod.UID)}); err != nil {
		t.Fatal(err)
	}
	last, _ := m.Get(pod.UID)
	m.Set(pod, podstatus.Generate(podstatus.Input{Pod: pod, Last: &last, Runtime: observed("dead main:exit0"), Terminal: true, Now: time.Now()}))
	p := until("terminated container", func(p *corev1.Pod) bool { return p != nil && p.Status.ContainerStatuses[0].State.Terminated != nil })
	if condition(p, "DisruptionTarget") == nil {
		t.Errorf("conditions are %s", told(p.Status.Conditions))
	}
	if p.Status.Phase != corev1.PodRunning {
		t.Errorf("phase %s while something may run", p.Status.Phase)
	}
	m.Observe(p)
	m.Finish(p)
	until("end", func(p *corev1.Pod) bool { return p == nil })
}

func condition(p *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == kind {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}
