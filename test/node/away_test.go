//go:build linux

package node_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// testForcedAway deletes a pod with no grace while the agent is away: nothing is left of it in the
// API, and its container runs on until the agent comes back.
func testForcedAway(t *testing.T, w *world) {
	w.runPod(t, w.boxPod(t, "forced", corev1.RestartPolicyAlways, "sleep", "1h"))
	pid := w.task(t, w.awaitRunning(t, "forced"))
	w.killAgent(t)
	if err := w.remove(t.Context(), podsPath+"/forced", 0); err != nil {
		t.Fatal(err)
	}
	if _, err := w.pod(t.Context(), "forced"); !errors.Is(err, errNotFound) {
		t.Fatalf("the pod is not gone: %v", err)
	}
	// The same name again is another pod.
	w.runPod(t, w.boxPod(t, "forced", corev1.RestartPolicyAlways, "sleep", "1h"))
	w.startAgent(t)
	eventually(t, 30*time.Second, "the container of the deleted pod is ended", func(context.Context) error {
		if syscall.Kill(pid, 0) == nil {
			return fmt.Errorf("process %d runs", pid)
		}
		return nil
	})
	w.awaitRunning(t, "forced")
}

// testNodeDies leaves the agent away for so long that the node is given up. While it is all there
// is nobody is evicted: every zone is down. Once another node is ready its pod is evicted, which
// needs the agent to become true.
func testNodeDies(t *testing.T, w *world) {
	pod := w.boxPod(t, "evicted", corev1.RestartPolicyAlways, "sleep", "1h")
	for _, key := range []string{corev1.TaintNodeUnreachable, corev1.TaintNodeNotReady} {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(1))})
	}
	w.runPod(t, pod)
	pid := w.task(t, w.awaitRunning(t, "evicted"))
	w.killAgent(t)
	killed := w.plane.length()
	said := func(message, attribute string) bool {
		for line := range strings.Lines(w.plane.since(killed)) {
			if strings.Contains(line, `msg="`+message+`"`) && slices.Contains(strings.Fields(line), attribute) {
				return true
			}
		}
		return false
	}
	tainted := func() bool { return said("node tainted", "node="+nodeName) }
	w.awaitNode(t, corev1.ConditionUnknown)
	unready := func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionFalse
	}
	w.await(t, "evicted", "is not ready", 30*time.Second, func(p *corev1.Pod) bool { return slices.ContainsFunc(p.Status.Conditions, unready) })
	// The pod goes a while after the taint: what is judged is the taint, and not before the zones are
	// seen to be down.
	eventually(t, 30*time.Second, "all zones are down", func(context.Context) error {
		if !said("all zones are down, or no longer", "stopped=true") {
			return errors.New("the plane has not said so")
		}
		return nil
	})
	if tainted() {
		t.Error("every zone is down, and the node is tainted")
	}
	if p, err := w.pod(t.Context(), "evicted"); err != nil {
		t.Error(err)
	} else if p.DeletionTimestamp != nil {
		t.Error("every zone is down, and its pod is evicted")
	}
	w.companion(t)
	w.await(t, "evicted", "is being deleted", 60*time.Second, func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil })
	if !tainted() {
		t.Error("the pod is evicted, and the plane did not say that it tainted the node")
	}
	if err := syscall.Kill(pid, 0); err != nil {
		t.Errorf("the container of a node that is only silent was ended: %v", err)
	}
	w.startAgent(t)
	w.awaitNode(t, corev1.ConditionTrue)
	w.awaitGone(t, "evicted", 60*time.Second)
	if syscall.Kill(pid, 0) == nil {
		t.Error("the pod is gone while its container runs")
	}
	eventually(t, 60*time.Second, "the node has no taint any more", func(ctx context.Context) error {
		var n corev1.Node
		err := w.get(ctx, nodesPath+"/"+nodeName, &n)
		if err == nil && len(n.Spec.Taints) > 0 {
			err = fmt.Errorf("taints are %v", n.Spec.Taints)
		}
		return err
	})
}

// companion is another node that is ready until the part ends; nothing is scheduled to it.
func (w *world) companion(t *testing.T) {
	t.Helper()
	const path = nodesPath + "/companion"
	node := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "companion"}, Spec: corev1.NodeSpec{Unschedulable: true}}
	if err := w.create(t.Context(), nodesPath, node, nil); err != nil {
		t.Fatal(err)
	}
	beat := func(ctx context.Context) error {
		ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}
		return w.merge(ctx, path+"/status", map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{ready}}})
	}
	eventually(t, startLimit, "the companion is ready", beat)
	ctx, stop := context.WithCancel(t.Context())
	beats := make(chan struct{})
	go func() {
		defer close(beats)
		for tick := time.Tick(2 * time.Second); ; {
			select {
			case <-ctx.Done():
				return
			case <-tick:
				_ = beat(ctx) // one may be lost: the grace is that of five
			}
		}
	}()
	t.Cleanup(func() {
		stop()
		<-beats
		if err := w.remove(context.Background(), path, 0); err != nil {
			t.Error(err)
		}
	})
}

// testRuntimeLater starts the agent while its runtime is down.
func testRuntimeLater(t *testing.T, w *world) {
	w.killAgent(t)
	if err := w.runtime.Kill(); err != nil {
		t.Fatal(err)
	}
	w.startAgent(t)
	w.awaitNode(t, corev1.ConditionFalse)
	w.runPod(t, w.boxPod(t, "early", corev1.RestartPolicyNever, "mark", "/mark/starts", "exit", "0"))
	if err := w.runtime.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.awaitNode(t, corev1.ConditionTrue)
	w.awaitPhase(t, "early", corev1.PodSucceeded)
	if n := len(w.starts(t, "early")); n != 1 {
		t.Errorf("it was started %d times", n)
	}
}

// testLogUnwritable puts a file where the pod's log folder belongs.
func testLogUnwritable(t *testing.T, w *world) {
	pod := w.boxPod(t, "mute", corev1.RestartPolicyAlways, "sleep", "1h")
	pod.Spec.NodeName, pod.Spec.SchedulerName = "", "nobody"
	made := w.runPod(t, pod)
	folder := filepath.Join(w.dir, "logs", fmt.Sprintf("default_%s_%s", made.Name, made.UID))
	if err := os.WriteFile(folder, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	binding := &corev1.Binding{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Binding"}, ObjectMeta: metav1.ObjectMeta{Name: made.Name, Namespace: "default"},
		Target: corev1.ObjectReference{Kind: "Node", Name: nodeName},
	}
	if err := w.create(t.Context(), podsPath+"/mute/binding", binding, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, "an event names the folder", func(ctx context.Context) error {
		events, err := w.events(ctx, "mute")
		if err != nil {
			return err
		}
		for reason, message := range events {
			if strings.HasPrefix(reason, "Failed") && strings.Contains(message, folder) {
				return nil
			}
		}
		return fmt.Errorf("events are %v", events)
	})
	if err := os.Remove(folder); err != nil {
		t.Fatal(err)
	}
	w.awaitRunning(t, "mute")
}

// testNotReadyDies lets the agent die while its node is not ready: silence counts all the same.
func testNotReadyDies(t *testing.T, w *world) {
	if err := w.runtime.Kill(); err != nil {
		t.Fatal(err)
	}
	w.awaitNode(t, corev1.ConditionFalse)
	w.killAgent(t)
	w.awaitNode(t, corev1.ConditionUnknown)
	w.heal(t)
	w.awaitNode(t, corev1.ConditionTrue)
}
