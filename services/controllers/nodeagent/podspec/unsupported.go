package podspec

import corev1 "k8s.io/api/core/v1"

// Unsupported lists the fields of a pod that this agent cannot honour, each error
// naming one by its path: such a pod is not run, it fails with reason UnsupportedPodSpec.
// None for a pod that can be run.
func Unsupported(pod *corev1.Pod) []error {
	return nil
}

// Ignored lists the fields of a pod that it runs without, by path and with what that
// means: one Warning Event should say so.
func Ignored(pod *corev1.Pod) []string {
	return nil
}
