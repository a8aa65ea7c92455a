package kuberuntime

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/deltaplane/deltaplane/services/nodeagent/container"
)

func TestASandboxWhoseNetworkIsNotSaidIsNoReasonToKill(t *testing.T) {
	t.Parallel()
	for _, hostNetwork := range []bool{true, false} {
		said := &runtimeapi.PodSandboxStatus{Id: "s", State: runtimeapi.PodSandboxState_SANDBOX_READY}
		if !hostNetwork {
			said.Network = &runtimeapi.PodSandboxNetworkStatus{Ip: "10.0.0.2"}
		}
		s := sandboxStatus(said)
		if s.HostNetwork != hostNetwork || len(s.IPs) == 1 == hostNetwork {
			t.Errorf("on the node's network: %+v, want %v", s, hostNetwork)
		}
		pod := &corev1.Pod{Spec: corev1.PodSpec{HostNetwork: hostNetwork, Containers: []corev1.Container{{Name: "c"}}}}
		a := Decide(pod, &container.PodStatus{Sandboxes: []container.SandboxStatus{s}, Containers: []container.Status{
			{Container: container.Container{ID: "c", Name: "c", State: container.Running, SandboxID: "s"}},
		}}, nil)
		if a.KillPod || a.CreateSandbox {
			t.Errorf("on the node's network %v: %+v", hostNetwork, a)
		}
	}
}
