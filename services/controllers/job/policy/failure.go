package policy

import (
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// Verdict is what a policy says of a failed pod. The zero value is that of no rule.
type Verdict struct {
	// Action of the first rule that matches; empty when none does.
	Action batchv1.PodFailurePolicyAction
	// Message is why the Job fails, of the action FailJob.
	Message string
}

// Counts reports whether the failure counts towards back-off limits.
func (v Verdict) Counts() bool { return v.Action != batchv1.PodFailurePolicyActionIgnore }

// OfFailure is the verdict of the first rule that matches a failed pod; p may be nil. A rule with
// an action or operator that is not known matches nothing.
func OfFailure(p *batchv1.PodFailurePolicy, pod *corev1.Pod) Verdict {
	if p == nil {
		return Verdict{}
	}
	for i := range p.Rules {
		r := &p.Rules[i]
		why := matches(r, pod)
		switch {
		case why == "":
		case r.Action == batchv1.PodFailurePolicyActionFailJob:
			return Verdict{r.Action, fmt.Sprintf("%s matching %s rule at index %d", why, r.Action, i)}
		case r.Action == batchv1.PodFailurePolicyActionIgnore, r.Action == batchv1.PodFailurePolicyActionCount, r.Action == batchv1.PodFailurePolicyActionFailIndex:
			return Verdict{Action: r.Action}
		}
	}
	return Verdict{}
}

// matches says what about a pod a rule matches; nothing when it does not.
func matches(r *batchv1.PodFailurePolicyRule, pod *corev1.Pod) string {
	if codes := r.OnExitCodes; codes != nil {
		for _, statuses := range [][]corev1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses} {
			for i := range statuses {
				if s := &statuses[i]; exited(codes, s) {
					return fmt.Sprintf("Container %s for pod %s/%s failed with exit code %d", s.Name, pod.Namespace, pod.Name, s.State.Terminated.ExitCode)
				}
			}
		}
		return ""
	}
	for _, c := range pod.Status.Conditions {
		for _, want := range r.OnPodConditions {
			status := want.Status
			if status == "" {
				status = corev1.ConditionTrue
			}
			if c.Type == want.Type && c.Status == status {
				return fmt.Sprintf("Pod %s/%s has condition %s", pod.Namespace, pod.Name, c.Type)
			}
		}
	}
	return ""
}

// exited reports whether a container has ended with a code that is not zero and that is wanted.
func exited(want *batchv1.PodFailurePolicyOnExitCodesRequirement, s *corev1.ContainerStatus) bool {
	if s.State.Terminated == nil || s.State.Terminated.ExitCode == 0 || want.ContainerName != nil && *want.ContainerName != s.Name {
		return false
	}
	in := slices.Contains(want.Values, s.State.Terminated.ExitCode)
	switch want.Operator {
	case batchv1.PodFailurePolicyOnExitCodesOpIn:
		return in
	case batchv1.PodFailurePolicyOnExitCodesOpNotIn:
		return !in
	default:
		return false
	}
}
