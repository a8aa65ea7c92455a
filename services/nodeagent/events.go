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
)

// events writes Events about pods.
type events struct{ r *kube.Recorder }

// Event implements [kuberuntime.Recorder].
func (e events) Event(pod *corev1.Pod, eventType, reason, message string) {
	if pod == nil {
		return
	}
	e.r.Event(kube.Involved{
		APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID),
	}, eventType, reason, message)
}

func (a *Agent) warn(pod *corev1.Pod, reason, message string) {
	events{a.recorder}.Event(pod, corev1.EventTypeWarning, reason, message)
}
