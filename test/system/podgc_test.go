package system

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// nodeQuarantine is how long podgc lets a node be missing.
const nodeQuarantine = 40 * time.Second

// Node-1 never runs what is bound to it, node-2 takes over when it is gone, node-3 is put out of
// service. Both replicas of the controllers are killed while the quarantine of node-1 runs.
func TestRealPodsThatNobodyEndsAreCollected(t *testing.T) {
	t.Parallel()
	k := startKube(t, "--nodes", "3", "--zones", "1", "--lease-seconds", "4")
	p := k.startPlane(t, nil, []string{"--controllers", "job,podgc", "--terminated-pod-gc-threshold", "4", "--lease", "2s"})
	replicas := []string{"controllers", "controllers-2"}
	for _, name := range replicas {
		p.run(t, name)
	}
	p.ready(t, replicas...)
	x := &Target{API: k.api}
	k.silence(t, true, "node-1", "node-3")
	k.cordon(t, true, "node-2", "node-3")

	job := createJob(t, x, jobOf("survivor", map[string]string{runSeconds: "1"}, func(s *batchv1.JobSpec) {
		s.Parallelism, s.Completions = new(int32(2)), new(int32(2))
	}))
	k.heldPod(t, "orphan", "node-1")
	k.heldPod(t, "shut", "node-3")
	k.heldPod(t, "unbound", "")
	eventually(t, time.Minute, "the Job's pods are bound to node-1", func(ctx context.Context) error {
		pods, err := podsOf(ctx, x, job)
		if err != nil {
			return err
		}
		for _, pod := range pods {
			if pod.Spec.NodeName != "node-1" {
				return fmt.Errorf("%s is on %q", pod.Name, pod.Spec.NodeName)
			}
		}
		if len(pods) != 2 {
			return fmt.Errorf("there are %d", len(pods))
		}
		return nil
	})

	k.cordon(t, false, "node-2")
	gone := time.Now()
	if err := k.api.delete(t.Context(), "/api/v1/nodes/node-1", "Background"); err != nil {
		t.Fatal(err)
	}

	t.Run("a pod that is deleted and was never bound", func(t *testing.T) {
		k.deletePod(t, "unbound")
		k.failed(t, "unbound", "")
	})
	t.Run("a pod that is deleted on a node out of service", func(t *testing.T) {
		k.deletePod(t, "shut")
		if err := k.api.merge(t.Context(), "/api/v1/nodes/node-3", map[string]any{"spec": map[string]any{"taints": []any{
			map[string]any{"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"},
		}}}); err != nil {
			t.Fatal(err)
		}
		if pod := k.pod(t, "shut"); pod.Status.Phase == corev1.PodFailed {
			t.Fatal("it is failed although its node is ready")
		}
		conditions := map[string]any{"status": map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": "False", "reason": "Test"}}}}
		if err := k.api.merge(t.Context(), "/api/v1/nodes/node-3/status", conditions); err != nil {
			t.Fatal(err)
		}
		k.failed(t, "shut", "")
	})

	for _, name := range replicas {
		p.kill(t, name)
	}
	for _, name := range replicas {
		p.run(t, name)
	}
	p.ready(t, replicas...)

	t.Run("a pod of a node that is gone", func(t *testing.T) {
		k.failed(t, "orphan", "DeletionByPodGC")
		if took := time.Since(gone); took < nodeQuarantine {
			t.Errorf("it was failed %v after its node was deleted, want a quarantine of %v", took, nodeQuarantine)
		} else {
			t.Logf("failed %.1f s after its node was deleted", took.Seconds())
		}
	})
	t.Run("its Job ends on another node", func(t *testing.T) {
		done := waitCondition(t, x, job.Name, batchv1.JobComplete, "", 2*time.Minute)
		if done.Status.Succeeded != 2 || done.Status.Failed != 2 {
			t.Errorf("status is %+v, want 2 that succeeded and 2 that failed with their node", done.Status)
		}
	})
	t.Run("ended pods above the threshold", func(t *testing.T) {
		createJob(t, x, jobOf("more", map[string]string{runSeconds: "1"}, func(s *batchv1.JobSpec) {
			s.Parallelism, s.Completions = new(int32(5)), new(int32(5))
		}))
		waitCondition(t, x, "more", batchv1.JobComplete, "", 2*time.Minute)
		eventually(t, 2*time.Minute, "the surplus goes", func(ctx context.Context) error {
			var all corev1.PodList
			if err := k.api.get(ctx, podsPath, &all); err != nil {
				return err
			}
			if n := len(all.Items); n != 3+4 { // nothing more can be done to those that finalizers keep
				return fmt.Errorf("there are %d pods, want the 3 that are held and 4", n)
			}
			return nil
		})
	})
}

// cordon keeps new pods from nodes, or lets them come.
func (k *kubeCluster) cordon(t *testing.T, on bool, nodes ...string) {
	t.Helper()
	for _, node := range nodes {
		if err := k.api.merge(t.Context(), "/api/v1/nodes/"+node, map[string]any{"spec": map[string]any{"unschedulable": on}}); err != nil {
			t.Fatalf("cordon %s: %v", node, err)
		}
	}
}

// heldPod makes a pod that a finalizer keeps, so that what becomes of it can be seen. Without a
// node it finds none.
func (k *kubeCluster) heldPod(t *testing.T, name, node string) {
	t.Helper()
	pod := map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{"name": name, "finalizers": []string{"deltaplane.io/test"}},
		"spec": map[string]any{
			"nodeName": node, "nodeSelector": map[string]string{}, "restartPolicy": "Never",
			"containers": []any{map[string]any{"name": "main", "image": "none"}},
		},
	}
	if node == "" {
		pod["spec"].(map[string]any)["nodeSelector"] = map[string]string{"no": "node"}
	}
	if err := k.api.create(t.Context(), podsPath, pod, nil); err != nil {
		t.Fatalf("create pod %s: %v", name, err)
	}
}

func (k *kubeCluster) deletePod(t *testing.T, name string) {
	t.Helper()
	if err := k.api.delete(t.Context(), podsPath+"/"+name, "Background"); err != nil {
		t.Fatalf("delete pod %s: %v", name, err)
	}
}

func (k *kubeCluster) pod(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	if err := k.api.get(t.Context(), podsPath+"/"+name, pod); err != nil {
		t.Fatalf("pod %s: %v", name, err)
	}
	return pod
}

// failed waits until a pod that a finalizer keeps has failed and is deleted, for a reason; without
// one it must not be a disruption.
func (k *kubeCluster) failed(t *testing.T, name, reason string) {
	t.Helper()
	var pod *corev1.Pod
	eventually(t, 2*time.Minute, name+" is failed and deleted", func(context.Context) error {
		pod = k.pod(t, name)
		if pod.Status.Phase != corev1.PodFailed || pod.DeletionGracePeriodSeconds == nil || *pod.DeletionGracePeriodSeconds != 0 {
			return errors.New(string(pod.Status.Phase))
		}
		return nil
	})
	got := ""
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			got = c.Reason
		}
	}
	if got != reason {
		t.Errorf("%s is a disruption by %q, want %q", name, got, reason)
	}
}
