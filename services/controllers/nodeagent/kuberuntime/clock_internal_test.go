package kuberuntime

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/services/controllers/nodeagent/container"
)

// A clock that was set back between two instances dates the newer one before the older.
func TestAClockThatWasSetBackMakesNoInstanceOlder(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyAlways, Containers: []corev1.Container{{Name: "c", Image: "app:1"}}}}
	hash := Hash(&pod.Spec.Containers[0])
	s := podStatus("uid", "ns", "p", begin, []*container.SandboxStatus{
		{Sandbox: container.Sandbox{ID: "s0", CreatedAt: begin}},
		{Sandbox: container.Sandbox{ID: "s1", Attempt: 1, Ready: true, CreatedAt: begin.Add(-time.Hour)}, IPs: []string{"10.0.0.2"}},
	}, []*container.Status{
		{Container: container.Container{ID: "c0", Name: "c", SandboxID: "s0", State: container.Exited, Hash: hash, CreatedAt: begin}},
		{Container: container.Container{
			ID: "c1", Name: "c", SandboxID: "s1", State: container.Running, Attempt: 1, Hash: hash, CreatedAt: begin.Add(-time.Hour),
		}},
	})
	if a := Decide(pod, s); a.KillPod || a.CreateSandbox || len(a.Kill)+len(a.Start) > 0 {
		t.Errorf("a pod that runs is to be changed: %+v", a)
	}
	if got := s.Latest("c"); got.ID != "c1" || len(s.IPs) != 1 {
		t.Errorf("the newest instance is %s, the addresses %v", got.ID, s.IPs)
	}
}
