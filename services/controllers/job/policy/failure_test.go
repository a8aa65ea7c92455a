package policy_test

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/services/controllers/job/policy"
)

const (
	ignore    = batchv1.PodFailurePolicyActionIgnore
	count     = batchv1.PodFailurePolicyActionCount
	failJob   = batchv1.PodFailurePolicyActionFailJob
	failIndex = batchv1.PodFailurePolicyActionFailIndex
	in        = batchv1.PodFailurePolicyOnExitCodesOpIn
	notIn     = batchv1.PodFailurePolicyOnExitCodesOpNotIn
)

func onCodes(action batchv1.PodFailurePolicyAction, op batchv1.PodFailurePolicyOnExitCodesOperator, values ...int32) batchv1.PodFailurePolicyRule {
	return batchv1.PodFailurePolicyRule{Action: action, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: op, Values: values}}
}

func onContainer(name string, r batchv1.PodFailurePolicyRule) batchv1.PodFailurePolicyRule {
	r.OnExitCodes.ContainerName = &name
	return r
}

func onDisruption(action batchv1.PodFailurePolicyAction, status corev1.ConditionStatus) batchv1.PodFailurePolicyRule {
	return batchv1.PodFailurePolicyRule{Action: action, OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{
		Type: corev1.DisruptionTarget, Status: status,
	}}}
}

// ended is a container that has ended.
func ended(name string, code int32) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}}
}

func disrupted(status corev1.ConditionStatus) []corev1.PodCondition {
	return []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: status}}
}

// TestMatchPodFailurePolicy rows and a few more.
func TestMatchPodFailurePolicy(t *testing.T) {
	t.Parallel()
	type rules = []batchv1.PodFailurePolicyRule
	type statuses = []corev1.ContainerStatus
	const yes, no, unknown = corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown
	const codeMessage = "Container main for pod default/mypod failed with exit code "
	for _, tc := range []struct {
		name       string
		rules      rules
		containers statuses
		inits      statuses
		conditions []corev1.PodCondition
		want       batchv1.PodFailurePolicyAction
		message    string
	}{
		{
			name:       "unknown action for rule matching by exit codes - skip rule with unknown action",
			rules:      rules{onCodes("UnknownAction", in, 1, 2), onCodes(failJob, in, 2, 3)},
			containers: statuses{ended("main", 2)}, want: failJob, message: codeMessage + "2 matching FailJob rule at index 1",
		},
		{
			name:       "unknown action for rule matching by pod conditions - skip rule with unknown action",
			rules:      rules{onDisruption("UnknownAction", yes), onDisruption(ignore, yes)},
			conditions: disrupted(yes), want: ignore,
		},
		{
			name:       "unknown operator - rule with unknown action is skipped for onExitCodes",
			rules:      rules{onCodes(ignore, "UnknownOperator", 1, 2), onCodes(failJob, in, 2, 3)},
			containers: statuses{ended("main", 2)}, want: failJob, message: codeMessage + "2 matching FailJob rule at index 1",
		},
		{name: "no policy rules", containers: statuses{ended("main", 2)}},
		{name: "ignore rule matched for exit codes", rules: rules{onCodes(ignore, in, 1, 2, 3)}, containers: statuses{ended("", 2)}, want: ignore},
		{
			name:  "ignore rule matched on negative exit codes - needed for Windows support",
			rules: rules{onCodes(ignore, in, -1073741676, -1073741510)}, containers: statuses{ended("", -1073741510)}, want: ignore,
		},
		{
			name: "FailJob rule matched for exit codes", rules: rules{onCodes(failJob, in, 1, 2, 3)},
			containers: statuses{ended("main", 2)}, want: failJob, message: codeMessage + "2 matching FailJob rule at index 0",
		},
		{
			name: "successful containers are skipped by the rules", rules: rules{onCodes(failJob, notIn, 111)},
			inits: statuses{ended("init", 0)}, containers: statuses{ended("main", 111), ended("support", 0)},
		},
		{
			name: "FailIndex rule matched for exit codes; JobBackoffLimitPerIndex enabled", rules: rules{onCodes(failIndex, in, 1, 2, 3)},
			containers: statuses{ended("", 2)}, want: failIndex,
		},
		{
			name: "pod failure policy with NotIn operator and value 0", rules: rules{onCodes(failJob, notIn, 0)},
			containers: statuses{ended("main", 1), ended("support", 0)}, want: failJob, message: codeMessage + "1 matching FailJob rule at index 0",
		},
		{
			name: "second jobfail rule matched for exit codes", rules: rules{onCodes(count, in, 1, 2, 3), onCodes(failJob, in, 4, 5, 6)},
			containers: statuses{ended("main", 6)}, want: failJob, message: codeMessage + "6 matching FailJob rule at index 1",
		},
		{
			name: "count rule matched for exit codes", rules: rules{onCodes(count, in, 1, 2, 3)},
			containers: statuses{{Name: "foo"}, ended("bar", 2)}, want: count,
		},
		{
			name: "FailIndex rule matched for pod conditions; JobBackoffLimitPerIndex enabled", rules: rules{onDisruption(failIndex, yes)},
			conditions: disrupted(yes), want: failIndex,
		},
		{name: "ignore rule matched for pod conditions", rules: rules{onDisruption(ignore, yes)}, conditions: disrupted(yes), want: ignore},
		{name: "ignore rule matches by the status=False", rules: rules{onDisruption(ignore, no)}, conditions: disrupted(no), want: ignore},
		{name: "ignore rule matches by the status=Unknown", rules: rules{onDisruption(ignore, unknown)}, conditions: disrupted(unknown), want: ignore},
		{
			name:  "ignore rule does not match when status for pattern is False, but actual True",
			rules: rules{onDisruption(ignore, no)}, conditions: disrupted(yes),
		},
		{
			name:  "ignore rule does not match when status for pattern is True, but actual False",
			rules: rules{onDisruption(ignore, yes)}, conditions: disrupted(no),
		},
		{name: "default - do not match condition with status=False", rules: rules{onDisruption(ignore, "")}, conditions: disrupted(no)},
		{name: "a pattern without status means True", rules: rules{onDisruption(ignore, "")}, conditions: disrupted(yes), want: ignore},
		{
			name: "job fail rule matched for pod conditions", rules: rules{onDisruption(failJob, yes)}, conditions: disrupted(yes),
			want: failJob, message: "Pod default/mypod has condition DisruptionTarget matching FailJob rule at index 0",
		},
		{name: "count rule matched for pod conditions", rules: rules{onDisruption(count, yes)}, conditions: disrupted(yes), want: count},
		{
			name: "no rule matched", rules: rules{
				onCodes(count, notIn, 8), onCodes(ignore, in, 1, 2, 3), onCodes(failJob, notIn, 5, 6, 7), onDisruption(ignore, yes),
			},
			containers: statuses{ended("", 32)}, want: count,
		},
		{
			name: "no rule matches", rules: rules{onCodes(count, in, 8), onCodes(ignore, notIn, 32), onDisruption(ignore, yes)},
			containers: statuses{ended("", 32)}, conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: yes}},
		},
		{
			name: "another container than the rule names", rules: rules{onContainer("main", onCodes(ignore, in, 5))},
			containers: statuses{ended("monitoring", 5), ended("main", 42)},
		},
		{
			name: "an init container", rules: rules{onCodes(failJob, in, 5)}, inits: statuses{ended("init", 5)}, containers: statuses{ended("main", 143)},
			want: failJob, message: "Container init for pod default/mypod failed with exit code 5 matching FailJob rule at index 0",
		},
		{
			name: "exit codes go before conditions in one rule", rules: rules{{
				Action: ignore, OnExitCodes: onCodes(ignore, in, 1).OnExitCodes, OnPodConditions: onDisruption(ignore, yes).OnPodConditions,
			}},
			containers: statuses{ended("main", 2)}, conditions: disrupted(yes),
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var p *batchv1.PodFailurePolicy
			if tc.rules != nil {
				p = &batchv1.PodFailurePolicy{Rules: tc.rules}
			}
			got := policy.OfFailure(p, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "mypod"},
				Status: corev1.PodStatus{
					Phase: corev1.PodFailed, ContainerStatuses: tc.containers, InitContainerStatuses: tc.inits, Conditions: tc.conditions,
				},
			})
			if want := (policy.Verdict{Action: tc.want, Message: tc.message}); got != want {
				t.Errorf("%+v, want %+v", got, want)
			}
			if got.Counts() != (tc.want != ignore) {
				t.Errorf("a failure of action %q counts: %v", got.Action, got.Counts())
			}
		})
	}
}
