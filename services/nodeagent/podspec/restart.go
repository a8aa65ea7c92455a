package podspec

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Sidecar reports whether an init container runs beside the others: its restart
// policy is Always.
func Sidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// RestartPolicy is a container's own policy where it has one, else the pod's; no policy
// is Always.
func RestartPolicy(pod *corev1.Pod, c *corev1.Container) corev1.RestartPolicy {
	switch {
	case c.RestartPolicy != nil:
		return corev1.RestartPolicy(*c.RestartPolicy)
	case pod.Spec.RestartPolicy != "":
		return pod.Spec.RestartPolicy
	default:
		return corev1.RestartPolicyAlways
	}
}

// ShouldRestart reports whether a container that ended with code is to run again: when one
// of its own rules says so for the code, else by its policy.
func ShouldRestart(pod *corev1.Pod, c *corev1.Container, code int32) bool {
	for i := range c.RestartPolicyRules {
		if r := &c.RestartPolicyRules[i]; r.Action == corev1.ContainerRestartRuleActionRestart && exited(r.ExitCodes, code) {
			return true
		}
	}
	switch RestartPolicy(pod, c) {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return code != 0
	default:
		return true
	}
}

// exited reports whether a rule is about an exit code. One of an unknown operator is about none.
func exited(want *corev1.ContainerRestartRuleOnExitCodes, code int32) bool {
	if want == nil {
		return false
	}
	in := slices.Contains(want.Values, code)
	switch want.Operator {
	case corev1.ContainerRestartRuleOnExitCodesOpIn:
		return in
	case corev1.ContainerRestartRuleOnExitCodesOpNotIn:
		return !in
	default:
		return false
	}
}
