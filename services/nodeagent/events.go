package nodeagent

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/internal/kube"
)

// The reasons of the Events that the agent itself writes; most are the kubelet's.
const (
	reasonFailedMount     = "FailedMount"
	reasonFailedSync      = "FailedSync"
	reasonFailedKill      = "FailedKillPod"
	reasonNetworkNotReady = "NetworkNotReady"
	reasonDeadline        = "DeadlineExceeded"
	reasonUnsupported     = "UnsupportedPodSpec"
	reasonIgnored         = "IgnoredPodSpec"
	reasonBadEnv          = "InvalidEnvironmentVariableNames"
	reasonNoServices      = "ServicesUnknown"
)

func (a *Agent) event(pod *corev1.Pod, eventType, reason, message string) {
	if pod == nil {
		return
	}
	a.recorder.Event(kube.Pods.Involved(pod.Namespace, pod.Name, string(pod.UID)), eventType, reason, message)
}

func (a *Agent) warn(pod *corev1.Pod, reason, message string) {
	a.event(pod, kube.Warning, reason, message)
}
