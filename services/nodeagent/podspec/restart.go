package podspec

import corev1 "k8s.io/api/core/v1"

// Sidecar reports whether an init container runs beside the others: its restart
// policy is Always.
func Sidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// ShouldRestart reports whether a container that ended with code is to run again, by
// its own policy where it has one, else by the pod's. No policy is Always.
func ShouldRestart(pod *corev1.Pod, c *corev1.Container, code int32) bool {
	policy := string(pod.Spec.RestartPolicy)
	if c.RestartPolicy != nil {
		policy = string(*c.RestartPolicy)
	}
	switch policy {
	case string(corev1.RestartPolicyNever):
		return false
	case string(corev1.RestartPolicyOnFailure):
		return code != 0
	default:
		return true
	}
}
